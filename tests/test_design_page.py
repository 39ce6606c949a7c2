"""The pages for people who change the code name files, functions and tests that exist."""

import re
from pathlib import Path

import pytest

from tests.helpers.design_page import names_in
from tests.helpers.layers import FLOORS

ROOT = Path(__file__).parent.parent
PAGES = ["CONTRIBUTING.md", "README.md", "docs/design.md", "docs/explanation/guarantees.md"]

FILE = re.compile(r"(?:packer|tests|benchmarks|examples|docs|\.ci|\.github)/[\w./-]*\w/?")


def quoted(page: str) -> list[str]:
    """Everything between backticks on a line: `packer/pipeline/packing.py::pack`."""
    return re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_files_and_functions_on_the_page_exist(page):
    missing = []
    for text in quoted(page):
        path, _, name = text.partition("::")
        if not FILE.fullmatch(path) or re.search(r"\bNAME\b|\b[xy]\b|test_[xy]\b", path):  # placeholders
            continue
        is_there = (ROOT / path).exists()
        if not is_there or (name and name not in names_in(ROOT / path)):
            missing.append(text)
    assert not missing
    assert "@@" not in (ROOT / page).read_text()


def test_the_floors_on_the_page_are_those_that_are_enforced():
    text = (ROOT / "docs/design.md").read_text()
    floors = {}
    for floor, parts in re.findall(r"^\| (\d+) \| ([^|]*) \|", text, re.MULTILINE):
        for part in re.findall(r"`(?:packer/)?(\w+)(?:\.py)?`", parts):
            floors[part] = int(floor)
    assert floors == FLOORS


def test_the_fast_lane_names_test_files():
    for line in (ROOT / "tests/fast.txt").read_text().splitlines():
        path, _, name = line.removeprefix("--deselect=").partition("::")
        assert (ROOT / path).is_file(), line
        assert not name or name in names_in(ROOT / path), line
