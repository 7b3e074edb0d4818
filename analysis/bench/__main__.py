"""`python -m analysis.bench [--quick] [--rounds N] [--only PART]`: see the package."""

import argparse
import os
from pathlib import Path

from ablations.identity import results_folder
from analysis.bench import measure, report
from analysis.bench.work import Work

# Share of the answers that the default run's 60 steps leave out of their updates: mean of update/skipped, seed 0.
DEAD = 0.54


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m analysis.bench")
    parser.add_argument("--quick", action="store_true", help="size S with natural ends alone, three rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=report.PARTS, help="this part alone; can be repeated")
    given = parser.parse_args()
    measure.prepare_torch()
    if given.quick:
        rows = measure.compared(Work("S", True), 2, DEAD)
        print(report.main_table({("S", "natural"): rows}))
        found = measure.ratios(rows)
        print(
            f"S natural: {found['times TRL']:.2f} times TRL, {found['times generate']:.2f} times generate, "
            f"{100 * found['share of the ceiling']:.0f} % of the ceiling"
        )
        return
    folder = Path(results_folder()) / "bench"
    for part in given.only or report.PARTS:
        load = os.getloadavg()[0]
        if part in report.WHAT:
            works = measure.growth(part)
            cells = [measure.compared(work, max(2, given.rounds // 2), 0, everyone=False) for work in works]
            print(report.growth_table(part, cells), flush=True)
        else:
            size, ends = part.split()
            cells = [measure.compared(Work(size, ends == "natural", 8 if size == "L" else 32), given.rounds, DEAD)]
            print(report.main_table({(size, ends): cells[0]}), flush=True)
        report.add(folder, part, cells, load)
    print(folder / "report.md")


if __name__ == "__main__":
    main()
