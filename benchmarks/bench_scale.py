"""One process against several ranks on the same work: seconds, memory, and whether the bytes are the same.

    python benchmarks/bench_scale.py 250e6
    python benchmarks/bench_scale.py 250e6 --kind jsonl --rounds 5

Every round runs one process with one worker, one with two, and 1, 2 and 3 ranks with one worker each. Ranks are
processes of this machine; their time ends with the last of them. Memory is the largest peak of RssAnon of a process.
The first round compiles the kernels, and is not counted. Every output is compared with the first, hash by hash.
What cannot be run here, the plan of 1e9 documents and more and what it costs, is in bench_scale_plan.py.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from bench_pack import timed

WAYS = {  # ranks, 0 for a process that works alone, and workers of each
    "1 process, 1 worker": (0, 1),
    "1 process, 2 workers": (0, 2),
    "1 rank": (1, 1),
    "2 ranks": (2, 1),
    "3 ranks": (3, 1),
}


def make_source(folder: Path, kind: str, tokens: int) -> Path:
    """Write documents of log-normal lengths, 400 tokens on average, in 8 files."""
    random = np.random.default_rng(0)
    folder.mkdir()
    for number in range(8):
        lengths = np.maximum(1, random.lognormal(5.5, 1, tokens // 8 // 400)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ids = random.integers(0, 50_000, offsets[-1], dtype=np.int32)
        table = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))})
        if kind == "arrow":
            with pa.ipc.new_stream(folder / f"{number}.arrow", table.schema) as stream:
                stream.write_table(table, max_chunksize=1000)
        else:
            with (folder / f"{number}.jsonl").open("w") as file:
                file.writelines(json.dumps(record) + "\n" for record in table.to_pylist())
    return folder


def run(source: Path, out: Path, ranks: int, workers: int) -> tuple[float, int]:
    """Pack once; return the seconds, and the largest peak of anonymous memory of a process, in bytes."""
    command = [sys.executable, "-m", "packer", "pack", str(source), "-o", str(out), "--max-len", "4096"]
    command += ["--workers", str(workers), "--shard-size", "32MB"]
    begun = time.perf_counter()
    if not ranks:
        peaks = [timed(command).anonymous]
    else:
        with ThreadPoolExecutor(ranks) as pool:
            each = [[*command, "--rank", str(rank), "--ranks", str(ranks)] for rank in range(ranks)]
            peaks = [found.anonymous for found in pool.map(timed, each)]
    return time.perf_counter() - begun, max(peaks)


def hashes(out: Path) -> object:
    """Return the content of the manifest, which has the hash of every shard."""
    return json.loads((out / "manifest.json").read_bytes())


@click.command()
@click.argument("tokens", type=float)
@click.option("--kind", type=click.Choice(["arrow", "jsonl"]), default="arrow", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(tokens: float, kind: str, rounds: int, folder: Path | None) -> None:
    work = Path(tempfile.mkdtemp(prefix="bench-scale-", dir=folder))
    try:
        source = make_source(work / "source", kind, int(tokens))
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        peaks: dict[str, int] = dict.fromkeys(WAYS, 0)
        expected = None
        for number in range(rounds + 1):
            for way, (ranks, workers) in WAYS.items():
                out = work / "packed"
                taken, peak = run(source, out, ranks, workers)
                found = hashes(out)
                expected = expected or found
                assert found == expected, f"{way}: other bytes"
                shutil.rmtree(out)
                if number:
                    seconds[way].append(taken)
                    peaks[way] = max(peaks[way], peak)
        print(f"{tokens:,.0f} tokens of {kind}, {rounds} rounds; the same bytes everywhere")
        print(f"{'':22} {'seconds':>16} {'of 1 process':>13} {'RssAnon':>9}")
        alone = {1: seconds["1 process, 1 worker"], 2: seconds["1 process, 2 workers"]}
        for way, (ranks, workers) in WAYS.items():
            like = alone[min(2, max(ranks, 1) * workers)]  # the process that uses as many cores
            ratio = statistics.median(one / other for one, other in zip(seconds[way], like, strict=True))
            middle = f"{statistics.median(seconds[way]):.1f} ({min(seconds[way]):.1f}-{max(seconds[way]):.1f})"
            print(f"{way:22} {middle:>16} {ratio:13.2f} {peaks[way] / 2**20:5.0f} MiB")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
