"""Kernels are compiled only if there is much to do, once, and their cache is safe to share."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import packer
from packer.algorithms import jit, permute
from packer.plan import partition_plan
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.small import shrink

PACKAGE = Path(__file__).parent.parent / "packer"


def test_no_two_purposes_of_random_streams_are_alike():
    purposes = {name: value for name, value in vars(permute).items() if name[0] != "_" and name.isupper()}
    assert len(purposes) >= 10
    assert all(type(value) is int and value > 0 for value in purposes.values())
    assert len(set(purposes.values())) == len(purposes)


COMMANDS = """
import json, sys
from packer.cli import cli
for command in json.loads(sys.argv[1]):
    cli(command, standalone_mode=False)
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(commands: list[list[str]], **environment: str) -> set[str]:
    """Run commands one after the other in a new process; return the modules that were imported."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMMANDS, json.dumps(commands)],
        capture_output=True, text=True, check=False, cwd=PACKAGE.parent, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("algorithm", ["auto", "bfd", "wrapped"])
def test_a_small_set_is_packed_without_numba_to_the_same_bytes(tmp_path, algorithm):
    source, out = save_arrow(tmp_path / "rows.arrow", made_documents(600)), tmp_path / "out"
    options = ["--max-len", "256", "--shard-size", "60KB", "--algorithm", algorithm]
    imported = modules_after(
        [
            ["pack", str(source), "-o", str(out), *options],
            ["verify", str(out), "--source", str(source)],
            ["stats", str(source), *options[:2]],
        ]
    )
    heavy = {"numba", "llvmlite", "torch", "transformers", "tokenizers", "datasets", "pandas", "ray", "highspy"}
    assert not imported & {*heavy, "pyarrow.parquet", "tqdm", "importlib.metadata"}
    packer.pack(source, tmp_path / "compiled", max_len=256, shard_size="60KB", algorithm=algorithm)
    assert hashes(out) == hashes(tmp_path / "compiled")


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(("documents", "length"), [(jit.FEW_SEGMENTS + 1, 3), (2, 32 * jit.FEW_SEGMENTS)])
def test_many_documents_or_segments_are_packed_by_compiled_kernels(tmp_path, documents, length):
    source = save_arrow(tmp_path / "rows.arrow", [[7] * length] * documents)
    assert "numba" in modules_after([["pack", str(source), "-o", str(tmp_path / "out"), "--max-len", "64"]])


def test_kernels_that_take_long_as_plain_python_go_on_compiled_to_the_same_bytes(tmp_path, monkeypatch):
    source = save_arrow(tmp_path / "rows.arrow", made_documents(600))
    packer.pack(source, tmp_path / "compiled", max_len=256, sync=False)
    monkeypatch.setattr(jit, "_is_compiling", False)
    shrink(monkeypatch, plain_seconds=jit._plain_seconds + 0.03)
    packer.pack(source, tmp_path / "both", max_len=256, sync=False)
    assert jit._is_compiling
    assert hashes(tmp_path / "both") == hashes(tmp_path / "compiled")


def test_a_plain_kernel_whose_helpers_are_compiled_meanwhile_draws_the_same():
    """Compiled helpers return keys as int, half of them above the largest int64."""
    seed, starts = np.uint64(7), np.arange(0, 401, 4)
    drawn = [np.arange(400) for _ in range(2)]
    owners = [np.zeros(400, np.int64) for _ in range(2)]
    for number, of in enumerate((lambda kernel: kernel.compiled, lambda kernel: kernel.function)):
        of(permute.permute_runs)(starts, seed, permute.EQUAL_LENGTHS, 1, drawn[number])
        of(partition_plan._deal_blocks)(np.empty(4, np.uint32), seed, owners[number])
    assert drawn[0].tolist() == drawn[1].tolist() != list(range(400))
    assert owners[0].tolist() == owners[1].tolist()


def test_a_shared_cache_keeps_kernels_of_different_sources_apart(tmp_path):
    """Also where a kernel's own file stays as it is, down to its time and size, and a helper in another one changes."""
    copy = Path(shutil.copytree(PACKAGE, tmp_path / "packer", ignore=shutil.ignore_patterns("__pycache__")))
    environment = os.environ | {"PACKER_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    folders = set()
    for change in ("", "# changed\n"):
        with (copy / "algorithms" / "memory.py").open("a") as helper:
            helper.write(change)
        code = "from packer.algorithms.permute import permute; print(permute.compiled.stats.cache_path)"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        folders.add(Path(done.stdout.strip()).parent)
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path / "cache"}
