"""Policies: what samples answers and says how likely they were. The only room that imports transformers."""
