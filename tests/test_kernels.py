"""What holds for every kernel: few arguments, random streams of its own, and compiled only if there is much to do."""

import ast
import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import random_purposes
from packer.algorithms import jit, open_packs
from packer.algorithms.jit import jit_if_large
from packer.gather import (
    RowLayout,
    TokenColumn,
    any_trained,
    count_trained,
    fill_gaps,
    gather_kernels,
    lengths_of,
    mask_context,
)
from packer.gather.token_column import VALUE_TYPES
from packer.labels import NO_LOSS
from packer.plan import extents, row_kernels
from tests.compiled import compiled
from tests.test_pack import hashes, made_documents, save_arrow

PACKAGE = Path(__file__).parent.parent / "packer"

MOST_ARGUMENTS = 8
IN_NUMPY = ("jit_or_numpy", "jit_helper_or_numpy")
DECORATORS = ("jit", "jit_helper", "jit_if_large", "jit_if_many_tokens", *IN_NUMPY)


def kernels(decorators=DECORATORS):
    """(file, name, number of arguments) of every function that is compiled."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(decorator).partition("(")[0] in decorators for decorator in node.decorator_list
            ):
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


# ---- compiled only if there is much to do ----


def add_one(out):
    """A kernel for tests."""
    for i in range(len(out)):
        out[i] += 1


@pytest.fixture
def no_numba_yet(monkeypatch):
    """As in a process that has compiled nothing."""
    monkeypatch.setattr(jit, "is_prepared", lambda: False)
    monkeypatch.setattr(jit, "_plain_seconds", 0.0)
    monkeypatch.setattr(jit, "PLAIN_SECONDS", 0.3)


@pytest.mark.usefixtures("no_numba_yet")
def test_a_kernel_is_compiled_when_its_arrays_are_large():
    kernel = jit_if_large(add_one)
    small, large = np.zeros(jit.SMALL, np.int64), np.zeros(jit.SMALL + 1, np.int64)
    kernel(small)
    assert kernel._compiled is None
    kernel(large)
    assert len(kernel.compiled.signatures) == 1
    assert small.all()
    assert large.all()


@pytest.mark.usefixtures("no_numba_yet")
def test_a_kernel_is_compiled_when_plain_calls_took_long(monkeypatch):
    kernel = jit_if_large(add_one)
    kernel(np.zeros(3, np.int64))
    assert kernel._compiled is None
    assert jit._plain_seconds > 0
    monkeypatch.setattr(jit, "_plain_seconds", 0.3)
    kernel(np.zeros(3, np.int64))
    assert len(kernel.compiled.signatures) == 1


@pytest.mark.usefixtures("no_numba_yet")
def test_with_numba_there_a_kernel_with_little_to_do_is_loaded_from_the_cache_but_not_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(jit, "is_prepared", lambda: True)
    monkeypatch.setenv("PACKER_CACHE_DIR", str(tmp_path))
    first, second = jit_if_large(add_one), jit_if_large(add_one)
    first(np.zeros(3, np.int64))
    assert not first.compiled.signatures
    first(np.zeros(jit.SMALL + 1, np.int64))
    first(np.zeros(3, np.int64))
    assert len(first.compiled.signatures) == 1
    second(np.zeros(3, np.int64))
    assert sum(second.compiled.stats.cache_hits.values()) == 1


COPY_CAST, COPY_INT32 = map(compiled, (gather_kernels._copy_cast, gather_kernels._copy_int32))


@pytest.mark.parametrize("value_type", VALUE_TYPES)
@given(lists=st.lists(st.lists(st.integers(-128, 127), max_size=5), min_size=1, max_size=6), allowed=st.just(NO_LOSS))
def test_numpy_computes_what_compiled_loops_do(value_type, lists, allowed):
    flat, lengths = np.array([value for each in lists for value in each]), np.array([len(each) for each in lists])
    labels, places = flat.astype(np.int32), np.cumsum(lengths) - lengths
    assert count_trained.plain(places, lengths, labels) == count_trained(places, lengths, labels)
    found = [np.empty(len(lists), np.bool_) for _ in range(2)]
    any_trained.plain(places, lengths, labels, found[0])
    any_trained(places, lengths, labels, found[1])
    assert (found[0] == found[1]).all()
    for helper, kernel, values in (
        (gather_kernels._copy_cast, COPY_CAST, flat.astype(value_type)),
        (gather_kernels._copy_int32, COPY_INT32, labels.ctypes.data),
    ):
        for limit in (0, allowed):
            out = [np.empty(len(flat), np.int32) for _ in range(2)]
            assert helper(values, out[0], limit) == kernel(values, out[1], limit)
            assert (out[0] == out[1]).all()


def both_forms(kernel, *arguments):
    """Results of a kernel by NumPy and compiled, each with the arrays and tuples of its own that it was given."""
    for run in (kernel.plain, compiled(kernel)):
        own = copy.deepcopy(arguments)
        yield run(*own), own


def assert_forms_are_equal(kernel, *arguments):
    np.testing.assert_equal(*both_forms(kernel, *arguments))


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=40),
    max_len=st.integers(1, 16),
    policy=st.sampled_from([extents.SPLIT, extents.TRUNCATE, extents.DROP]),
    data=st.data(),
)
def test_numpy_surveys_and_sorts_as_compiled_loops_do(lengths, max_len, policy, data):
    stride = data.draw(st.integers(1, max_len))
    lengths = np.array(lengths, np.int32)
    cutting = extents.Cutting(max_len, policy, stride)
    with patch.object(extents, "BLOCK", 8):  # also that of the compiled kernel, which is made here
        histogram, heads = np.ones(max_len + 1, np.int64), np.ones(-(-len(lengths) // 8), np.int64)
        first = data.draw(st.integers(0, len(heads)))
        assert_forms_are_equal(extents.survey, lengths, first, len(heads), cutting, histogram, heads)
    lengths = np.minimum(lengths, max_len)
    groups, numbers = np.zeros(max_len + 2, np.int64), np.zeros(np.count_nonzero(lengths), np.uint32)
    assert_forms_are_equal(row_kernels.sort_by_extent, lengths, groups, numbers)


@given(rows=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=5), data=st.data())
def test_numpy_expands_and_fills_as_compiled_loops_do(rows, data):
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
    packs = np.array([data.draw(st.integers(1, 3)) for _ in numbers], np.int64)
    offsets = np.cumsum([0, *map(len, rows)])
    values, depths = np.concatenate(rows).astype(np.int32), np.diff(offsets)
    numbers = np.array(numbers, np.int32)
    out = np.zeros(packs @ depths[numbers], np.int32), np.zeros(packs.sum() + 1, np.int64)
    assert_forms_are_equal(row_kernels.expand_patterns, numbers, packs, offsets, values, *out)

    # each value is the extent of a segment of half as many tokens; rows have room for one more
    max_len = max(map(sum, rows)) + 1
    ends = np.add.reduceat(values, offsets[:-1]).astype(np.int64)
    before = np.cumsum(values) - values
    places = before - np.repeat(before[offsets[:-1]], depths) + np.repeat(np.arange(len(rows)) * max_len, depths)
    extents, tokens = values.astype(np.int64), (values + 1) // 2
    flat = np.full(len(rows) * max_len, 7, np.int32)
    assert_forms_are_equal(fill_gaps, RowLayout(places, tokens.astype(np.int64), extents, ends), max_len, -3, flat)
    assert_forms_are_equal(mask_context, places, extents // 2, NO_LOSS, flat)

    column = TokenColumn.from_arrow(
        [pa.array(rows, kind) for kind in (pa.list_(pa.int32()), pa.large_list(pa.int32()))]
        + [pa.array([[1, 2]], pa.list_(pa.int32(), 2))]
    )
    lists = np.array(data.draw(st.lists(st.integers(0, 2 * len(rows)))), np.int64)
    assert_forms_are_equal(lengths_of, column.addresses, lists, np.zeros(len(lists), np.int32))


@given(st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=4), max_size=5))
def test_numpy_unrolls_chains_as_compiled_loops_do(chains):
    links, lasts, sizes = [], [], []
    for chain in chains:
        last = open_packs.NONE
        for extent, repeat in chain:
            links.append((extent, repeat, last))
            last = len(links) - 1
        lasts.append(last)
        sizes.append(sum(repeat for _, repeat in chain))
    offsets = np.cumsum([0, *sizes])
    out = np.zeros(offsets[-1], np.int32)
    links = np.array(links, np.int64).reshape(-1, 3)
    assert_forms_are_equal(open_packs.unroll, links, np.array(lasts, np.int64), offsets, out)
    written = [extent for chain in chains for extent, repeat in chain for _ in range(repeat)]
    compiled(open_packs.unroll)(links, np.array(lasts, np.int64), offsets, out)
    assert out.tolist() == written


def test_every_kernel_with_a_form_in_numpy_is_compared_with_it():
    found = {name for _, name, _ in kernels(IN_NUMPY)}
    loops = {"count_trained", "any_trained", "_copy_cast", "_copy_int32", "fill_gaps", "mask_context", "lengths_of"}
    assert found == loops | {"survey", "sort_by_extent", "expand_patterns", "unroll"}


@jit.jit
def add(out, value):
    """A helper for tests."""
    for i in range(len(out)):
        out[i] += value


@jit.jit
def add_three(out):
    """A kernel for tests."""
    add(out, 1)
    add(out, 2)


def test_a_helper_is_compiled_once_for_all_constants():
    out = np.zeros(3, np.int64)
    add_three(out)
    assert out.tolist() == [3, 3, 3]
    assert len(add.compiled.signatures) == 1


COMMANDS = """
import json, sys
from packer.algorithms import jit
from packer.cli import cli
jit.PLAIN_SECONDS = jit.NUMPY_SECONDS = 10  # three commands on a busy machine
for command in json.loads(sys.argv[1]):
    cli(command, standalone_mode=False)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("algorithm", ["auto", "bfd", "wrapped"])
def test_a_small_set_is_packed_without_numba_to_the_same_bytes(tmp_path, algorithm):
    source, out = save_arrow(tmp_path / "rows.arrow", made_documents(900)), tmp_path / "out"
    options = ["--max-len", "256", "--shard-size", "60KB", "--algorithm", algorithm]
    commands = [
        ["pack", str(source), "-o", str(out), *options],
        ["verify", str(out), "--source", str(source)],
        ["stats", str(source), *options[:2]],
    ]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMMANDS, json.dumps(commands)],
        capture_output=True, text=True, check=True, cwd=PACKAGE.parent,
    )  # fmt: skip
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    heavy = {"numba", "llvmlite", "torch", "transformers", "tokenizers", "datasets", "pandas", "ray", "highspy"}
    assert not imported & {*heavy, "pyarrow.parquet", "tqdm", "importlib.metadata"}
    others = {"loader", "text", "ray_engine", "cli.show", "sources.text_source", "sources.mixture", "stats.row_figures"}
    assert not imported & {f"packer.{name}" for name in others}
    packer.pack(source, tmp_path / "compiled", max_len=256, shard_size="60KB", algorithm=algorithm)
    assert hashes(out) == hashes(tmp_path / "compiled")


GATHERED = """
import numpy as np, pyarrow as pa
from packer.algorithms import jit
from packer.gather import Spans, TokenColumn, gather
jit.PLAIN_SECONDS = 0
one = np.array([1])
out = np.zeros(2, np.int32)
column = TokenColumn.from_arrow([pa.array([[7], [8, 9]], pa.list_(pa.int32()))])
assert gather(column.addresses, Spans(one, one * 0, one * 2, one * 0), 0, out) == -1
assert out.tolist() == [8, 9]
"""


def test_no_kernel_is_compiled_for_a_type_that_tokens_do_not_have(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", GATHERED], env=environment, check=True, cwd=PACKAGE.parent)
    compiled = {path.name.split("-")[0].partition(".")[2] for path in tmp_path.rglob("*.nbc")}
    assert compiled == {"_gather_int32", "_find_values", "_locate", "_copy_int32"}


def test_kernels_that_read_memory_are_compiled_after_others(tmp_path):
    """An algorithm that runs first must not keep Numba from what packer/gather/memory.py teaches it."""
    prepared = "from packer.algorithms.prepare_numba import prepared_numba; prepared_numba()"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", prepared + GATHERED], env=environment, check=True, cwd=PACKAGE.parent)


PACKED_TWICE = """
import json, sys
from packer.algorithms import jit
from packer.algorithms.prepare_numba import prepared_numba
from packer.cli import cli

called, compiled = set(), []
run = {kind: kind.__call__ for kind in (jit._CompiledIfLarge, jit._Compiled, jit._Helper)}
for kind, call in run.items():
    def counted(kernel, *arguments, call=call):
        called.add(kernel.function.__qualname__)
        kernel.plain = kernel.function
        return call(kernel, *arguments)
    kind.__call__ = counted
limits = jit.SMALL, jit.PLAIN_SECONDS, jit.NUMPY_SECONDS
jit.PLAIN_SECONDS = jit.NUMPY_SECONDS = float("inf")
jit._values = lambda arguments: 0  # every call is a small one
cli(sys.argv[1].split() + ["plain"], standalone_mode=False)
assert "numba" not in sys.modules

for kind, call in run.items():
    kind.__call__ = call
from numba.core import event
class Listener(event.Listener):
    def on_start(self, event):
        function = event.data["dispatcher"].py_func
        if function.__module__.startswith("packer"):
            compiled.append(function.__qualname__)
    def on_end(self, event):
        pass
event.register("numba:compile", Listener())
_, jit.PLAIN_SECONDS, jit.NUMPY_SECONDS = limits
jit._plain_seconds = 0.0
jit._values = lambda arguments: jit.FEW_TOKENS + 1  # every call is a large one
cli(sys.argv[1].split() + ["compiled"], standalone_mode=False)
print(json.dumps([sorted(called), sorted(compiled)]))
"""


def test_a_large_pack_compiles_each_kernel_that_it_calls_once_and_no_other(tmp_path):
    """Called are those that run as plain Python, helpers included, when the same set is packed without Numba."""
    save_arrow(tmp_path / "rows.arrow", made_documents(900))
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(PACKAGE.parent)}
    command = "pack rows.arrow --max-len 256 --shard-size 60KB --workers 1 -o"
    done = subprocess.run(
        [sys.executable, "-c", PACKED_TWICE, command], env=environment, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    called, compiled = json.loads(done.stdout.splitlines()[-1])
    assert len(compiled) > 10
    assert set(compiled) <= set(called)
    assert len(compiled) == len(set(compiled))
    assert hashes(tmp_path / "plain") == hashes(tmp_path / "compiled")


@pytest.mark.parametrize("command", ["pack rows.arrow --max-len 256 -o", "stats rows.arrow --max-len 256 --json"])
def test_kernels_in_the_cache_do_not_run_as_plain_python_in_a_large_set(tmp_path, command):
    save_arrow(tmp_path / "rows.arrow", [[1, 2, 3]] * (jit.SMALL + 1))
    script = "import sys; from packer.algorithms import jit; from packer.cli import cli; jit.PLAIN_SECONDS = {}\n"
    script += "cli(sys.argv[1:], standalone_mode=False); print(jit._plain_seconds, file=sys.stderr)"
    for limit in (0, 10):  # all are compiled, or loaded from the cache of the tests
        words = [*command.split(), *([f"out-{limit}"] if command.endswith("-o") else [])]
        done = subprocess.run(
            [sys.executable, "-c", script.format(limit), *words], env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert done.stderr.split()[-1] == "0.0"


def test_processes_that_compile_at_once_leave_a_cache_that_others_read(tmp_path):
    environment = os.environ | {"PACKER_CACHE_DIR": str(tmp_path), "NUMBA_CACHE_DIR": os.devnull}
    command = [sys.executable, "-c", GATHERED]
    writers = [subprocess.Popen(command, env=environment, cwd=PACKAGE.parent) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    counted = GATHERED + "from packer.gather.gather_kernels import _gather_int32\n"
    counted += "print(sum(_gather_int32.compiled.stats.cache_misses.values()))"
    done = subprocess.run(
        [sys.executable, "-c", counted], env=environment, cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0"]


def test_a_shared_cache_keeps_kernels_of_different_sources_apart(tmp_path, monkeypatch):
    """Also where a kernel's own file stays as it is, down to its time and size, and a helper in another one changes."""
    monkeypatch.setenv("PACKER_CACHE_DIR", str(tmp_path / "cache"))
    copy = Path(shutil.copytree(PACKAGE, tmp_path / "packer", ignore=shutil.ignore_patterns("__pycache__")))
    monkeypatch.setattr(jit, "__file__", str(copy / "algorithms" / "jit.py"))
    folders = set()
    for change in ("", "# changed\n"):
        with (copy / "gather" / "memory.py").open("a") as helper:
            helper.write(change)
        jit._state_of_sources.cache_clear()
        folders.add(gather_kernels._locate._new_dispatcher().stats.cache_path)
    jit._state_of_sources.cache_clear()
    assert len(folders) == 2
    assert all(folder.startswith(f"{tmp_path}/cache/") for folder in folders)


def test_the_state_of_sources_covers_every_kernel():
    for path, _, _ in kernels():
        assert path.split("/")[0] in jit._SOURCES
    assert len(jit._state_of_sources()) == 16
    assert all((PACKAGE / name).exists() for name in jit._SOURCES)


@pytest.mark.slow
def test_the_doctor_compiles_what_a_pack_needs(tmp_path):
    environment = os.environ | {"PACKER_CACHE_DIR": str(tmp_path / "kernels")}
    command = [sys.executable, "-m", "packer", "doctor", "--compile", "--json"]
    done = subprocess.run(command, env=environment, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["kernel_cache"]
    assert Path(found["folder"]).parent == tmp_path / "kernels"
    source = save_arrow(tmp_path / "rows.arrow", [[7] * 999] * 200)
    command = ["pack", str(source), "-o", str(tmp_path / "out"), "--max-len", "1000"]
    code = "from packer.algorithms import jit; jit.PLAIN_SECONDS = 0; from packer.cli import cli; import sys; "
    code += "cli(sys.argv[1:], standalone_mode=False)"
    subprocess.run([sys.executable, "-c", code, *command], env=environment, check=True, cwd=PACKAGE.parent)
    assert len(list((tmp_path / "kernels").rglob("*.nbc"))) == found["kernels"]
