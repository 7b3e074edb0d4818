"""How whoever watches a run ends it."""


class Stopped(Exception):
    """The watcher has seen enough of a run; the message says why. The run ends as pruned, and its rows are kept."""
