"""What `tests/test_exporting.py` shares with other tests."""

from pathlib import Path

import pyarrow.parquet as pq

from tests.helpers.packed_rows import rows_on_disk


def read(folder: Path) -> list[dict]:
    """Read all rows of an export, file by file, with only pyarrow."""
    if list(folder.glob("*.arrow")):
        return rows_on_disk(folder)
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def beside(out: Path) -> list[str]:
    """Return the names of hidden files and folders beside an export."""
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith("."))
