"""`ablate-check`: is what trains here what was published?

Exit code 0 if everything agrees, 1 if something does not, 2 if there was nothing to check.

ablate-check vectors tests/reference      numbers that other trainers' code computed
ablate-check oracles                      what theory predicts for every knob; writes results/oracles
ablate-check oracles file=my.py           predictions of your own
ablate-check tables                       README's tables of options and presets; `tables write` puts them in
"""

import argparse
import sys
from collections.abc import Sequence

from ablations import tables, vectors
from ablations.oracles import command as oracles


def cli(arguments: Sequence[str] | None = None) -> int:
    """The command. arguments: without the program's name, sys.argv's if None. -> the exit code."""
    parser = argparse.ArgumentParser(prog="ablate-check", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("vectors", help="reference cases against the knobs and the loss that train here")
    command.add_argument("folder", help="a folder of *.json cases, for example tests/reference")
    command.set_defaults(run=lambda given: vectors.command(given.folder))
    command = commands.add_parser("oracles", help="predictions of theory against the code that trains")
    command.add_argument("choice", nargs="*", help="file=my.py, only=A1,A5 (subjects), trained=false (no runs)")
    command.set_defaults(run=lambda given: oracles.command(given.choice))
    command = commands.add_parser("tables", help="README's tables of options and presets, from the config files")
    command.add_argument("write", nargs="?", choices=["write"], help="put them into README.md")
    command.set_defaults(run=lambda given: tables.command(bool(given.write)))
    given = parser.parse_args(arguments)
    return given.run(given)


if __name__ == "__main__":
    sys.exit(cli())
