"""Predictions with known right answers, against the code that trains.

Theory says what a choice of baseline, scale, KL, clip or aggregation does to the expected update. Here each such
sentence stands beside the number that the advantage, KL and loss code of a training run gives: exactly, by enumerating
every group that a small policy can produce (`enumerate`), or as a run of the training loop itself (`runs`). A module
per subject; `command` runs them all.
"""
