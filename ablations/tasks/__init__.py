"""Tasks: each yields problems, grades answers and writes demonstrations. Any object with those functions will do."""
