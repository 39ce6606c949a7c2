"""How long commands on little data take: start-up, imports and compiling, in CPU and wall seconds.

    python benchmarks/bench_start.py                     ten runs each; cold ones compile, and take minutes
    python benchmarks/bench_start.py --runs 3 --no-cold

Commands are warm, with kernels in Numba's cache, or cold: then the cache is an empty folder in every run. Bytecode is
always compiled before, as pip does when it installs: PYTHONDONTWRITEBYTECODE is switched off. The large source has more
tokens than kernels take as plain Python, so it needs Numba. Chats are packed if PACKER_TEST_DATA names a folder with
them. For comparison, Python's import of NumPy, pyarrow and Numba, and TRL's import where it is installed.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from bench_pack import installed

ROOT = Path(__file__).parent.parent


def write_source(path: Path, documents: int) -> None:
    """Write documents of 1 to 899 tokens."""
    random = np.random.default_rng(0)
    tokens = [random.integers(0, 1000, length).tolist() for length in random.integers(1, 900, documents)]
    table = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def seconds_of(arguments: list[str], folder: Path, cache: Path) -> tuple[float, float]:
    """Run Python in a process of its own; return (CPU seconds, wall seconds)."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(cache)}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    after, ended = os.times(), time.perf_counter()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, ended - began


def measure(name: str, arguments: list[str], folder: Path, *, runs: int, is_cold: bool, output: str | None) -> None:
    """Print the medians and ranges of a command; the first run of a warm one is thrown away."""
    found = []
    for run in range(runs + (not is_cold)):
        if output is not None:
            shutil.rmtree(folder / output, ignore_errors=True)
        cache = folder / (f"cache-{run}" if is_cold else "cache")
        seconds = seconds_of(arguments, folder, cache)
        if is_cold:
            shutil.rmtree(cache, ignore_errors=True)
        if is_cold or run > 0:
            found.append(seconds)
    shown = (f"{statistics.median(of):6.2f} ({min(of):5.2f} to {max(of):5.2f})" for of in zip(*found, strict=True))
    print(f"{name:38}", *shown, sep="  ", flush=True)


@click.command()
@click.option("--runs", default=10, show_default=True, help="Runs of each command.")
@click.option("--cold/--no-cold", default=True, help="Measure with an empty cache, too.")
@click.option("--trl/--no-trl", default=find_spec("trl") is not None, help="Measure TRL's import.")
def main(runs: int, cold: bool, trl: bool) -> None:
    versions = " ".join(f"{name} {installed(name)}" for name in ("pyarrow", "numpy", "numba"))
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {versions}")
    print(f"\n{'':38}  {'CPU seconds, median (range)':24}  wall seconds")
    folder = Path(tempfile.mkdtemp(prefix="packer-start-"))
    try:
        write_source(folder / "small.arrow", 200)
        write_source(folder / "large.arrow", 20_000)
        pack = ["-m", "packer", "pack", "--max-len", "1024", "-o", "out"]
        commands = {
            "import numpy, pyarrow": (["-c", "import numpy, pyarrow"], None),
            "import numpy, pyarrow, numba": (["-c", "import numpy, pyarrow, numba"], None),
            "import trl.SFTTrainer": (["-c", "from trl import SFTTrainer"], None),
            "pack, 200 documents": ([*pack, "small.arrow"], "out"),
            "verify --source": (["-m", "packer", "verify", "out", "--source", "small.arrow"], None),
            "stats": (["-m", "packer", "stats", "small.arrow", "--max-len", "1024"], None),
            "compare": (["-m", "packer", "compare", "small.arrow", "--max-len", "1024"], None),
            "pack, 20,000 documents": ([*pack, "large.arrow"], "out"),
        }
        data = os.environ.get("PACKER_TEST_DATA")
        if data is not None:
            chats = (Path(data) / "corpora" / "gsm8k.jsonl").read_text().splitlines(keepends=True)[:50]
            (folder / "chats.jsonl").write_text("".join(chats))
            with_tokenizer = ["--tokenizer", str(Path(data) / "tokenizers" / "qwen3")]
            commands["pack, 50 chats, Qwen3's tokenizer"] = ([*pack, "chats.jsonl", *with_tokenizer], "out")
        for name, (arguments, output) in commands.items():
            if name.startswith("import trl") and not trl:
                continue
            measure(name, arguments, folder, runs=runs, is_cold=False, output=output)
        for name in ("pack, 200 documents", "compare", "pack, 20,000 documents") if cold else ():
            arguments, output = commands[name]
            measure(f"cold {name}", arguments, folder, runs=runs, is_cold=True, output=output)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
