"""Controlled ablations of group-relative policy optimisation: one run, a crossing of runs, and what they show."""
