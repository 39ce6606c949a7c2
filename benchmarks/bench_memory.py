"""Memory and seconds of `packer pack` and `packer verify --source` by the number of documents.

    python benchmarks/bench_memory.py 1e6 1e7 1e8
    python benchmarks/bench_memory.py 1e7 --max-len 512 --folder /dev/shm
    python benchmarks/bench_memory.py 1e7 --algorithm sequential

Documents are tiny, 1 to 7 tokens of uint16 with labels of int32, so that what is held for each of them shows. They are
saved in record batches of 1,000, as `datasets` writes them. Every command is a process of its own with two workers.
Memory is the peak of RssAnon, looked at every 5 ms; pages of mapped files are not counted. The first line is a run that
is not counted, in which the kernels are compiled.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from bench_pack import timed

TOGETHER = 1000  # documents of a record batch


def make_source(path: Path, documents: int) -> int:
    """Write an Arrow stream of tiny documents with labels; return how many tokens they have."""
    random = np.random.default_rng(0)
    schema = pa.schema({"input_ids": pa.list_(pa.uint16()), "labels": pa.list_(pa.int32())})
    tokens = 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for first in range(0, documents, TOGETHER):
            lengths = random.integers(1, 8, min(TOGETHER, documents - first))
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            ids = random.integers(0, 1 << 16, offsets[-1], dtype=np.uint16)
            columns = [
                pa.ListArray.from_arrays(pa.array(offsets), pa.array(one)) for one in (ids, ids.astype(np.int32))
            ]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            tokens += len(ids)
    return tokens


@click.command()
@click.argument("documents", nargs=-1, type=float, required=True)
@click.option("--max-len", default=4096, show_default=True)
@click.option("--algorithm", default="auto", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(documents: tuple[float, ...], max_len: int, algorithm: str, folder: Path | None) -> None:
    work = Path(tempfile.mkdtemp(prefix="bench-memory-", dir=folder))
    source, out = work / "source.arrow", work / "packed"
    packer = [sys.executable, "-m", "packer"]
    options = ["--max-len", str(max_len), "--algorithm", algorithm, "--workers", "2"]
    commands = {
        "pack": [*packer, "pack", str(source), "-o", str(out), *options],
        "verify --source": [*packer, "verify", str(out), "--source", str(source)],
    }
    try:
        print(f"{'documents':>13} {'tokens':>13} {'command':16} {'seconds':>8} {'RssAnon':>10}")
        for count in (10_000, *map(int, documents)):
            tokens = make_source(source, count)
            for name, command in commands.items():
                run = timed(command)
                shown = f"{run.seconds:8.1f} {run.anonymous / 2**20:6.0f} MiB"
                print(f"{count:13,} {tokens:13,} {name:16} {shown}", flush=True)
            shutil.rmtree(out)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
