"""`python -m analysis.bench [--quick] [--rounds N]`: see the package."""

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
    load, cells, grown = [os.getloadavg()], {}, {}
    for size, prompts in (("S", 32), ("M", 32), ("L", 8)):
        for natural in (False, True):
            work = Work(size, natural, prompts)
            cells[size, work.ends] = measure.compared(work, given.rounds, DEAD)
            print(report.main_table(cells), flush=True)
    for what, rows in measure.growth(max(2, given.rounds // 2)):
        grown.setdefault(what, []).append(rows)
        print(report.growth_table(what, grown[what]), flush=True)
    load.append(os.getloadavg())
    folder = Path(results_folder()) / "bench"
    report.write(folder, cells, grown, load)
    print(f"{folder / 'report.md'}")


if __name__ == "__main__":
    main()
