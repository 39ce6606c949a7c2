"""Packed datasets in tests/golden, whose bytes must not change: other bytes need a new version of the format."""

import os
import shutil
from pathlib import Path

from tests.helpers.pack import hashes

GOLDEN = Path(__file__).parent.parent / "golden"


def is_golden(out: Path, name: str) -> Path:
    """Require that a packed dataset has the bytes of a golden folder, and return the folder.

    With PACKER_WRITE_GOLDEN=1, the dataset becomes the golden folder.
    """
    golden = GOLDEN / name
    if os.environ.get("PACKER_WRITE_GOLDEN"):
        shutil.rmtree(golden, ignore_errors=True)
        shutil.copytree(out, golden)
    assert hashes(out) == hashes(golden)
    return golden
