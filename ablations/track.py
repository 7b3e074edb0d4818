"""`ablate-track sync`: copy to MLflow what it lacks of the runs on disk.

For a store that was away while runs ended, was lost, or is another one. The runs' folders are enough.

ablate-track sync                       every ablation, to the store under results/
ablate-track sync length_bias           one ablation
ablate-track sync uri=http://host:5000  to that server
"""

import sys
from pathlib import Path

from ablations import identity, tracking

USAGE = "ablate-track sync [NAME ...] [uri=URI]"


def cli(arguments: list[str] | None = None) -> None:
    """Entry point of `ablate-track`: exit code 0 if the store has everything now, else 1."""
    given = sys.argv[1:] if arguments is None else arguments
    settings = dict(word.split("=", 1) for word in given if "=" in word)
    words = [word for word in given if "=" not in word]
    if words[:1] != ["sync"] or set(settings) - {"uri"}:
        sys.exit(f"ablate-track: {' '.join(given) or 'nothing'} was given; it takes: {USAGE}")
    results = Path(identity.results_folder())
    try:
        uri = tracking.store_uri(results, settings.get("uri", "sqlite"))
    except ValueError as error:
        sys.exit(f"ablate-track: {error}")
    if uri is None:
        sys.exit("ablate-track: uri=none names no store; leave it out, or give the URI of one.")
    names = words[1:] or sorted({path.parents[2].name for path in results.glob(f"*/runs/*/{tracking.RECORD}")})
    records = [path for name in names for path in sorted((results / name / "runs").glob(f"*/{tracking.RECORD}"))]
    if not records:
        sys.exit(f"ablate-track: there are no runs of {', '.join(words[1:]) or 'any ablation'} in {results}.")
    missing = [record.parent for record in records if not tracking.sync(record.parent, uri, results)]
    print(f"{len(records) - len(missing)} of {len(records)} runs are whole in {uri}.")
    for folder in missing:
        print(f"not: {folder}")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    cli()
