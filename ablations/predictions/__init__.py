"""What theory predicts for an ablation's question beside what this code does, as curves: the `predictions` of
conf/ablation/*.yaml.

`ablations.oracles` checks single numbers; a curve shows the reader where an effect begins, and how large it gets.
"""
