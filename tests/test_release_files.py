"""Files for package indexes and hosts agree with the package."""

import re
import sys
from pathlib import Path

import pytest

import packer

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_everywhere():
    (cited,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert PROJECT["version"] == packer.__version__ == cited


def test_the_distribution_has_a_script_of_its_own_name():
    """So that `uvx packer-llm` and `pipx run packer-llm` need no other name."""
    assert PROJECT["scripts"][PROJECT["name"]] == PROJECT["scripts"]["packer"]


def test_workflows_test_every_version_of_python_that_is_named():
    (matrix,) = re.findall(r"^ +python: \[(.*)\]$", (ROOT / ".github/workflows/ci.yml").read_text(), re.MULTILINE)
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", each)]
    assert {*named} <= {*re.findall(r"[\d.]+", matrix)}
    assert f">={named[0]}" == PROJECT["requires-python"]


def test_workflows_run_tests_that_exist():
    workflows = [path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")]
    names = {name for text in workflows for name in re.findall(r"tests/\w+\.py", text)}
    assert len(names) > 12
    assert [name for name in names if not (ROOT / name).is_file()] == []
