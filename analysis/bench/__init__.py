"""What a step costs beside TRL's trainer, transformers' generate and the machine's own matrix products.

    make bench            sizes S, M and L, growth, report and figures under results/bench/
    make bench QUICK=1    size S with natural ends alone, one line at the end
    python -m analysis.bench --only "M fixed"      one part again, in place of its earlier numbers

Unlike the rest of `analysis`, this room runs the training code: what it measures is not in any stored result.
"""
