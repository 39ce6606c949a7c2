"""Seconds to pack corpora of bare tokens where they lie, to read and to verify them, against the same in Arrow.

    python benchmarks/bench_token_files.py --tokens 200e6 --runs 3

One corpus of int32 in every format. A run is a process of its own, which warms up on a few documents of the format and
then takes the time of each step: `packer.pack` with and without `--index-only` (without fsync), every row by batches
from the copied dataset and from the index, and `packer.verify` with the source. Runs are in turn, A B C A B C, after
one round that is thrown away, and ratios to Arrow are taken round by round.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.csv
from corpora import make_corpus

EOS = 0

RUN = """
import json, os, shutil, sys, time
from pathlib import Path
import packer
small, source, work, options = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])

def read(packed, **source):
    dataset = packer.load(packed, **source)
    for batch in packer.batches(dataset, rows=8, seed=None, tensors="numpy"):
        pass

def steps(path, work):
    copy, index = work / "copy", work / "index"
    yield "pack", lambda: packer.pack(path, copy, sync=False, **options)
    yield "index", lambda: packer.pack(path, index, sync=False, index_only=True, **options)
    yield "read copy", lambda: read(copy)
    yield "read index", lambda: read(index, source=path)
    yield "verify", lambda: list(packer.verify(copy, path))

for name, step in steps(small, work / "small"):
    step()
found = {}
for name, step in steps(source, work / "large"):
    times, begun = os.times(), time.perf_counter()
    step()
    seconds, after = time.perf_counter() - begun, os.times()
    found[name] = [seconds, after.user + after.system - times.user - times.system]
print(json.dumps(found))
"""
STEPS = ("pack", "index", "read copy", "read index", "verify")
OF_ARRAYS = {"dtype": "int32", "eos_id": EOS}
KINDS = {
    "arrow": ("arrow", {}),
    ".idx": ("a.idx", {}),
    ".ds": ("a.ds", {}),
    ".npy, .csv.gz": ("a.npy", {"dtype": "int32"}),
    ".bin, EOS": ("plain/a.bin", OF_ARRAYS),
}


def make_sources(folder: Path, tokens: int) -> int:
    """Write a corpus, whose documents end in EOS, in every format; return the number of tokens."""
    count = make_corpus(folder / "made", tokens, 4096, labels=False, power=3)
    with pa.memory_map(str(folder / "made" / "data-00000-of-00001.arrow")) as file:
        lists = pa.ipc.open_stream(file).read_all().column("input_ids").combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy()).astype(np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    ids = np.maximum(lists.values.to_numpy(), EOS + 1)
    ids[ends - 1] = EOS
    (folder / "arrow").mkdir()
    (folder / "plain").mkdir()
    with pa.OSFile(str(folder / "arrow" / "a.arrow"), "wb") as file:
        made = pa.ListArray.from_arrays(lists.offsets, pa.array(ids))
        with pa.ipc.new_stream(file, pa.schema({"input_ids": made.type})) as stream:
            stream.write_table(pa.table({"input_ids": made}), max_chunksize=1000)
    for name in ("a.bin", "a.ds", "a.npy", "plain/a.bin"):
        ids.tofile(folder / name)
    ends.astype("<u8").tofile(folder / "a.ds.index")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 4, len(ends), len(ends) + 1)
    firsts = 4 * (ends - lengths)
    (folder / "a.idx").write_bytes(
        header + lengths.tobytes() + firsts.tobytes() + np.arange(len(ends) + 1, dtype=np.int64).tobytes()
    )
    lines = pa.table({"start": ends - lengths, "end": ends})
    with pa.CompressedOutputStream(str(folder / "a.csv.gz"), "gzip") as file:
        pa.csv.write_csv(lines, file, pa.csv.WriteOptions(include_header=False))
    shutil.rmtree(folder / "made")
    return count


def timed(small: Path, source: Path, work: Path, options: dict[str, object]) -> dict[str, list[float]]:
    """Take all steps in a process of its own; seconds and CPU seconds of each."""
    work.mkdir()
    command = [sys.executable, "-c", RUN, str(small), str(source), str(work), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    shutil.rmtree(work)
    if done.returncode:
        raise SystemExit(f"{source}: {done.stderr}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@click.command()
@click.option("--tokens", default=200e6, show_default=True)
@click.option("--max-len", default=4096, show_default=True)
@click.option("--runs", default=3, show_default=True, help="Rounds that count.")
@click.option("--threads", default=os.cpu_count(), show_default="the cores")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(tokens: float, max_len: int, runs: int, threads: int, folder: Path | None) -> None:
    work = Path(tempfile.mkdtemp(prefix="bench-tokens-", dir=folder))
    try:
        small, large = work / "small", work / "large"
        make_sources(small, 20_000)
        count = make_sources(large, int(tokens))
        print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
              f"Python {platform.python_version()}")  # fmt: skip
        print(f"{count:,} tokens of int32, max_len {max_len}, {threads} threads, median of {runs} rounds: "
              "seconds/CPU seconds, and CPU seconds as a multiple of Arrow's\n")  # fmt: skip
        found: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in KINDS}
        for turn in range(runs + 1):
            for kind, (name, options) in KINDS.items():
                options = {"max_len": max_len, "workers": threads, **options}
                measured = timed(small / name, large / name, work / "run", options)
                found[kind] += [measured] if turn else []
        print(f"{'':14}" + "".join(f"{step:>19}" for step in STEPS))
        for kind, rounds in found.items():
            cells = []
            for step in STEPS:
                seconds, cpu = (statistics.median(each[step][at] for each in rounds) for at in (0, 1))
                pairs = zip(rounds, found["arrow"], strict=True)
                ratio = statistics.median(one[step][1] / other[step][1] for one, other in pairs)
                cells.append(f"{seconds:6.2f}/{cpu:5.2f} x{ratio:5.2f}")
            print(f"{kind:14}" + "".join(f"{cell:>19}" for cell in cells), flush=True)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
