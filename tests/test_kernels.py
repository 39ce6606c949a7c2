"""What holds for every kernel: few arguments, and random streams that nothing else draws from."""

import ast
from pathlib import Path

from packer import random_purposes

PACKAGE = Path(__file__).parent.parent / "packer"

MOST_ARGUMENTS = 8


def kernels():
    """(file, name, number of arguments) of every function that is compiled by `jit`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and "jit" in map(ast.unparse, node.decorator_list):
                arguments = node.args
                number = sum(map(len, (arguments.posonlyargs, arguments.args, arguments.kwonlyargs)))
                yield path.relative_to(PACKAGE).as_posix(), node.name, number


def test_no_kernel_has_more_than_eight_arguments():
    found = list(kernels())
    assert len(found) > 50
    assert not [kernel for kernel in found if kernel[2] > MOST_ARGUMENTS]


def test_no_two_purposes_of_random_streams_are_alike():
    purposes = {name: value for name, value in vars(random_purposes).items() if name.isupper()}
    assert len(purposes) >= 10
    assert all(type(value) is int and value > 0 for value in purposes.values())
    assert len(set(purposes.values())) == len(purposes)


def test_purposes_are_listed_in_one_module():
    """Whoever makes the key of a stream takes its purpose from the list: a name that is imported from there."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        listed = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "packer.random_purposes"
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("stream_key", "key_of"):
                purpose = ast.unparse(node.args[1])
                assert purpose in listed or purpose == "purpose", f"{path.name}: {ast.unparse(node)}"
