"""A part imports only from lower floors, and no modules in a circle; and the light parts stay light."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers.layers import FLOORS

PACKAGE = Path(__file__).parent.parent / "packer"


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_part_has_a_floor():
    assert {part_of(path) for path in PACKAGE.rglob("*.py")} == set(FLOORS)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(path: Path) -> set[str]:
    """The modules of the package that a module imports: at once, in functions, for types alone, or by their names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} - {"packer.__version__"}
            found |= inside if inside <= set(MODULES) else inside | {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and re.fullmatch(r"packer(\.\w+){2,}", str(node.value)):
            found.add(node.value if node.value in MODULES else node.value.rpartition(".")[0])  # the latter of a class
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):  # any module of a folder
            folder = str(node.values[0].value)
            found |= {name for name in MODULES if name.count(".") > 1 and folder == f"{name.rpartition('.')[0]}."}
    return found & set(MODULES) - {module_name(path)}


@cache
def imports() -> dict[str, set[str]]:
    return {name: imported(path) for name, path in MODULES.items()}


def test_imports_point_down():
    """What everything else may use (floor 0) counts as one part, and so does the front door (the highest floor)."""
    one_part = {0, max(FLOORS.values())}
    for module, names in imports().items():
        part = part_of(MODULES[module])
        for other in {part_of(MODULES[name]) for name in names} - {part}:
            is_lower = FLOORS[other] < FLOORS[part] or (FLOORS[other] == FLOORS[part] and FLOORS[part] in one_part)
            assert is_lower, f"{module} (floor {FLOORS[part]}) imports from {other} (floor {FLOORS[other]})"


def refuse_circles(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_no_modules_import_each_other_in_a_circle():
    """Packages count by their modules: a package imports its own modules, and they not the package."""
    refuse_circles(imports())


def test_no_parts_import_each_other_in_a_circle():
    graph = defaultdict(set)
    for module, names in imports().items():
        graph[part_of(MODULES[module])] |= {part_of(MODULES[name]) for name in names} - {part_of(MODULES[module])}
    refuse_circles(graph)


def test_no_folders_import_each_other_in_a_circle():
    """A part may have folders: one of two is the lower one."""
    graph = defaultdict(set)
    for module, names in imports().items():
        here = MODULES[module].parent
        graph[str(here)] |= {str(MODULES[name].parent) for name in names} - {str(here), str(PACKAGE)}
    refuse_circles({here: names for here, names in graph.items() if here != str(PACKAGE)})


def test_functions_can_be_read_at_once():
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_no_two_modules_have_one_name():
    names = Counter(path.name for path in MODULES.values() if path.name != "__init__.py")
    assert max(names.values()) == 1, names.most_common(3)


def test_no_two_classes_have_one_name():
    trees = (ast.parse(path.read_text()) for path in MODULES.values())
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert max(names.values()) == 1, names.most_common(3)


def test_loading_and_the_format_draw_nothing():
    for part in ("loader", "shards"):
        for path in (PACKAGE / part).rglob("*.py"):
            assert "packer.report" not in path.read_text(), path


def test_modules_stay_within_the_size_of_the_house():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 700, path


def test_no_module_imports_from_a_module_of_tests():
    importing = re.compile(r"^ *(from|import) (tests\.)?test_", re.MULTILINE)
    found = [path.name for path in Path(__file__).parent.rglob("*.py") if importing.search(path.read_text())]
    assert found == []
