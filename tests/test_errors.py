"""Errors of packer that cross processes, as those of multiprocessing and Ray do."""

import importlib
import inspect
import pickle
import re
from pathlib import Path

import pytest

import packer

ROOT = Path(packer.__file__).parent
DEFINED = re.compile(r"^class (\w+)\((?:[\w.]*Error|Exception)\):", re.MULTILINE)
ARGUMENTS = {"int": 3, "str": "some words", "str | None": "a place"}


def classes():
    """Return all classes of errors that modules of the package define."""
    found = [(path, name) for path in sorted(ROOT.rglob("*.py")) for name in DEFINED.findall(path.read_text())]
    modules = [(".".join(path.relative_to(ROOT.parent).with_suffix("").parts), name) for path, name in found]
    return [getattr(importlib.import_module(module.removesuffix(".__init__")), name) for module, name in modules]


def made(kind):
    """Return an error of a class with values for its arguments."""
    if "__init__" not in vars(kind) and not issubclass(kind, packer.PackerError):
        return kind("some words")
    parameters = inspect.signature(kind).parameters.values()
    return kind(*(ARGUMENTS[each.annotation] for each in parameters if each.kind == each.POSITIONAL_OR_KEYWORD))


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_every_error_is_the_same_in_another_process(kind):
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_the_error_of_a_source_without_splits_is_the_same_in_another_process(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [1, 2]}\n')
    with pytest.raises(packer.PackerError) as told:
        packer.pack(tmp_path / "rows.jsonl", tmp_path / "out", max_len=8, split="train")
    assert str(told.value).endswith("leave split out")  # options are named as in Python
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)
