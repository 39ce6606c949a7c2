"""What `tests/test_cli.py` shares with other tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pack import made_documents, save_arrow

ROOT = Path(__file__).parents[2]


def run_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in another process, in this folder."""
    command = [sys.executable, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """300 documents of 0 to 59 tokens, in the folder in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return save_arrow(tmp_path / "rows.arrow", made_documents(300)).relative_to(tmp_path)
