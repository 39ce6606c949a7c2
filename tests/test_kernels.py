"""What holds for every kernel: few arguments, random streams of its own, and compiled only if there is much to do."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import random_purposes
from packer.algorithms import jit, open_packs
from packer.gather import gather_kernels
from tests.test_pack import hashes, made_documents, save_arrow

PACKAGE = Path(__file__).parent.parent / "packer"

MOST_ARGUMENTS = 8
DECORATORS = ("jit", "jit_helper", "jit_if_large", "jit_if_many_tokens")


def kernels():
    """(file, name, number of arguments) of every function that is compiled."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(decorator) in DECORATORS for decorator in node.decorator_list
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


@given(st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=4), max_size=5))
def test_chains_are_unrolled_from_their_last_links(chains):
    links, lasts = [], []
    for chain in chains:
        last = open_packs.NONE
        for extent, repeat in chain:
            links.append((extent, repeat, last))
            last = len(links) - 1
        lasts.append(last)
    written = [[extent for extent, repeat in chain for _ in range(repeat)] for chain in chains]
    offsets = np.cumsum([0, *map(len, written)])
    out = np.zeros(offsets[-1], np.int32)
    open_packs.unroll(np.array(links, np.int64).reshape(-1, 3), np.array(lasts, np.int64), offsets, out)
    assert out.tolist() == [extent for each in written for extent in each]


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
    numba.njit(add_three.function)(out)  # anew: the cache would hold both kernels
    assert out.tolist() == [3, 3, 3]
    assert len(add.compiled.signatures) == 1


COMMANDS = """
import json, sys
from packer.cli import cli
for command in json.loads(sys.argv[1]):
    cli(command, standalone_mode=False)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("algorithm", ["auto", "bfd", "wrapped"])
def test_a_small_set_is_packed_without_numba_to_the_same_bytes(tmp_path, algorithm):
    """However long its kernels take: a number of documents decides, so that it is the same on every machine."""
    source, out = save_arrow(tmp_path / "rows.arrow", made_documents(jit.FEW_DOCUMENTS)), tmp_path / "out"
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
jit.compile_from_now_on()
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
from packer.cli import cli

called, compiled = set(), []
run = {kind: kind.__call__ for kind in (jit._CompiledIfLarge, jit._Compiled, jit._Helper)}
for kind, call in run.items():
    def counted(kernel, *arguments, call=call):
        called.add(kernel.function.__qualname__)
        return call(kernel, *arguments)
    kind.__call__ = counted
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
jit.compile_from_now_on()
cli(sys.argv[1].split() + ["compiled"], standalone_mode=False)
print(json.dumps([sorted(called), sorted(compiled)]))
"""


def test_a_large_pack_compiles_each_kernel_that_it_calls_once_and_no_other(tmp_path):
    """Called are those that run as plain Python, helpers included, when the same set is packed without Numba."""
    save_arrow(tmp_path / "rows.arrow", [*made_documents(jit.FEW_DOCUMENTS - 1), [7] * 600])
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


@pytest.mark.parametrize(("documents", "length"), [(jit.FEW_DOCUMENTS + 1, 3), (2, jit.FEW_TOKENS // 2 + 1)])
def test_many_documents_or_tokens_are_packed_by_compiled_kernels(tmp_path, documents, length):
    source = save_arrow(tmp_path / "rows.arrow", [[7] * length] * documents)
    code = "import sys; from packer.cli import cli; cli(sys.argv[1:], standalone_mode=False); "
    code += "assert 'numba' in sys.modules"
    command = ["pack", str(source), "-o", str(tmp_path / "out"), "--max-len", "64"]
    subprocess.run([sys.executable, "-c", code, *command], cwd=PACKAGE.parent, check=True)


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
        jit.state_of_sources.cache_clear()
        folders.add(gather_kernels._locate._new_dispatcher().stats.cache_path)
    jit.state_of_sources.cache_clear()
    assert len(folders) == 2
    assert all(folder.startswith(f"{tmp_path}/cache/") for folder in folders)


def test_the_state_of_sources_covers_every_kernel():
    for path, _, _ in kernels():
        assert path.split("/")[0] in jit._SOURCES
    assert len(jit.state_of_sources()) == 16
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
    code = "from packer.algorithms import jit; jit.compile_from_now_on(); from packer.cli import cli; import sys; "
    code += "cli(sys.argv[1:], standalone_mode=False)"
    subprocess.run([sys.executable, "-c", code, *command], env=environment, check=True, cwd=PACKAGE.parent)
    assert len(list((tmp_path / "kernels").rglob("*.nbc"))) == found["kernels"]
