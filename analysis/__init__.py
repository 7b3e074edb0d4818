"""From stored runs to verdicts: the tidy frame, the statistics, the claims, the figures, the report.

Nothing here imports `ablations`: the stored results are the contract, so a report can be made wherever the results
folder is.
"""
