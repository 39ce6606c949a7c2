"""What `tests/test_bad_input.py` shares with other tests."""

from pathlib import Path

from tests.helpers.refusals import save, table


def write_source(path: Path, documents: list) -> Path:
    save(path, table(path.name, documents))
    return path
