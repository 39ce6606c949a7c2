"""Imports point down only: floor 4 on 3, 3 on 2, 2 on 1, 1 on 0; and the light parts stay light."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "packer"

FLOORS = {
    "arrow": 0,
    "column_names": 0,
    "options": 0,
    "errors": 0,
    "facts": 0,
    "labels": 0,
    "paths": 0,
    "progress": 0,
    "random_purposes": 0,
    "system_errors": 0,
    "algorithms": 0,
    "gather": 1,
    "plan": 1,
    "stats": 1,
    "sources": 2,
    "shards": 2,
    "text": 2,
    "output": 3,
    "notes": 3,
    "executors": 3,
    "exporting": 3,
    "pipeline": 3,
    "loader": 3,
    "attention": 3,
    "report": 4,
    "demo_corpus": 4,
    "cli": 4,
    "signals": 4,
    "__main__": 4,
    "__init__": 5,
}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """The parts of the package that a module imports at run time, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("packer.")}
    return found & set(FLOORS)


def test_every_part_has_a_floor():
    assert {part_of(path) for path in PACKAGE.rglob("*.py")} == set(FLOORS)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path):
    part = part_of(path)
    upward = {name for name in imported_parts(path) if name != part and FLOORS[name] > FLOORS[part]}
    assert not upward, f"{part} (floor {FLOORS[part]}) imports {upward}"


def modules_after(statement: str) -> set[str]:
    code = f"import json, sys; {statement}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    return set(json.loads(done.stdout))


HEAVY = {"numba", "torch", "datasets", "transformers", "pandas", "polars", "scipy"}


def test_the_loader_imports_numpy_and_pyarrow_only():
    assert not modules_after("import packer; packer.load; packer.batches") & (HEAVY | {"xxhash", "click", "tqdm"})


def test_attention_imports_torch_and_transformers_on_use_only():
    assert not modules_after("import packer; packer.attention.use; packer.attention.probe") & (HEAVY | {"numpy"})


def test_the_command_line_imports_nothing_heavy_until_it_works():
    assert not modules_after("import packer.cli") & (HEAVY | {"numpy", "pyarrow", "tqdm"})


def test_modules_stay_within_the_size_of_the_house():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 320, path
