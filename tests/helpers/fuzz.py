"""Damage files from the command line; `tests/helpers/fuzzing.py` says how.

python -m tests.helpers.fuzz stream --first 0 --count 100000      more than the test suite runs
python -m tests.helpers.fuzz stream --first 4711 --count 1        a single one; with --keep FOLDER, it is only written
"""

import argparse
import tempfile
from pathlib import Path

from tests.helpers import fuzzing


def main() -> None:
    """Run mutations, or write the damaged files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*fuzzing.SOURCES, *fuzzing.PACKED, *(f"kept-{column}" for column in fuzzing.KEPT)]
    names += [f"set-{name}" for name in fuzzing.SETS]
    parser.add_argument("name", choices=[*names, "all"])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="write the damaged files here, and do nothing else")
    asked = parser.parse_args()
    for name in names if asked.name == "all" else [asked.name]:
        if asked.keep:
            asked.keep.mkdir(parents=True, exist_ok=True)
            whole, _ = fuzzing.open_target(name, asked.keep / "whole")
            for number in range(asked.first, asked.first + asked.count):
                (asked.keep / f"{name}-{number}").write_bytes(fuzzing.mutate(whole, number))
        else:
            wrong = fuzzing.run(name, asked.first, asked.count, Path(tempfile.gettempdir()))
            print(f"{name}: {len(wrong)} faults in {asked.count} mutations", *wrong, sep="\n", flush=True)


if __name__ == "__main__":
    main()
