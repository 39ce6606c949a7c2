"""Seconds to pack what must be decoded, against just decoding it with pyarrow and with polars.

    python benchmarks/bench_sources.py --megabytes 400 --runs 5

One corpus (input_ids, small ids far more frequent) in every format. A decoder reads the whole file into memory with its
defaults; polars is left out where it is not installed. Every run is a process of its own that imports and warms up
first (packer on a corpus of a few documents), then takes its time; runs are in turn, A B C A B C, after one round that
is thrown away, and ratios are taken round by round. `--files` cuts the corpus into several files. Packs are without
fsync, as decoders write nothing. For `arrow`, pyarrow reads the stream into memory; for `shuffled`, a dataset of
`datasets` with an indices mapping, it is `flatten_indices`, which writes it in order.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
from corpora import make_corpus

START = """
import json, os, shutil, sys, time
from pathlib import Path
kind, path, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
max_len, threads = map(int, sys.argv[4:])
files = sorted(path.glob("*.*"))
"""
END = """
times, begun = os.times(), time.perf_counter()
found = run()
seconds, after = time.perf_counter() - begun, os.times()
print(json.dumps([seconds, after.user + after.system - times.user - times.system]))
"""
WAYS = {
    "pyarrow": """
import pyarrow as pa, pyarrow.json, pyarrow.parquet
if kind == "shuffled":
    import datasets
    shuffled = datasets.load_from_disk(path).shuffle(seed=0, load_from_cache_file=False)
pa.set_cpu_count(threads)
def run():
    if kind == "shuffled":
        return shuffled.flatten_indices(cache_file_name=str(work / "flat.arrow"))
    if kind == "arrow":
        return [pa.ipc.open_stream(pa.OSFile(str(file))).read_all() for file in files if file.suffix == ".arrow"]
    if kind.startswith("parquet"):
        return [pa.parquet.read_table(file) for file in files]
    return [pa.json.read_json(pa.input_stream(str(file))) for file in files]
""",
    "polars": """
os.environ["POLARS_MAX_THREADS"] = str(threads)
import polars
def run():
    return polars.read_parquet(files) if kind.startswith("parquet") else polars.read_ndjson(files)
""",
    "packer": """
import packer, packer.pipeline
small = work / "small.jsonl"
small.write_text('{"input_ids": [1, 2, 3]}\\n' * 100)
packer.pack(small, work / "small", max_len=max_len, workers=threads)
source = path
if kind == "shuffled":
    import datasets
    source = datasets.load_from_disk(path).shuffle(seed=0, load_from_cache_file=False)
def run():
    return packer.pack(source, work / "packed", max_len=max_len, workers=threads, sync=False)
""",
}


def make_sources(work: Path, tokens: int, files: int) -> tuple[dict[str, Path], int]:
    """Write the corpus in every format; return the folders, and the tokens there are."""
    saved = work / "arrow"
    tokens = make_corpus(saved, tokens, 4096, labels=False, power=3)
    with pa.memory_map(str(saved / "data-00000-of-00001.arrow")) as file:
        table = pa.ipc.open_stream(file).read_all()
    folders = {"arrow": saved, "shuffled": saved}
    for kind in ("parquet snappy", "parquet zstd", "jsonl", "jsonl.gz", "jsonl.zst"):
        folders[kind] = work / kind.replace(" ", "-")
        folders[kind].mkdir()
    rows = -(-len(table) // files)
    for number in range(files):
        part = table.slice(number * rows, rows).combine_chunks()
        for codec in ("snappy", "zstd"):
            path = folders[f"parquet {codec}"] / f"{number:02}.parquet"
            pq.write_table(part, path, compression=codec, row_group_size=20_000)
        text = folders["jsonl"] / f"{number:02}.jsonl"
        with text.open("w") as file:
            for batch in part.to_batches(1000):
                lines = (json.dumps({"input_ids": ids}) + "\n" for ids in batch.column("input_ids").to_pylist())
                file.writelines(lines)
        for codec, ending in (("gzip", "gz"), ("zstd", "zst")):
            path = folders[f"jsonl.{ending}"] / f"{number:02}.jsonl.{ending}"
            with text.open("rb") as plain, pa.output_stream(str(path), compression=codec) as packed:
                shutil.copyfileobj(plain, packed, 1 << 22)
    return folders, tokens


def timed(way: str, kind: str, path: Path, work: Path, max_len: int, threads: int) -> tuple[float, float]:
    """Run one way in a process of its own; seconds and CPU seconds."""
    work.mkdir()
    arguments = [sys.executable, "-c", START + WAYS[way] + END, kind, path, work, max_len, threads]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, env=os.environ)
    shutil.rmtree(work)
    if done.returncode:
        raise SystemExit(f"{way}, {kind}: {done.stderr}")
    seconds, cpu = json.loads(done.stdout.splitlines()[-1])
    return seconds, cpu


@click.command()
@click.option("--megabytes", default=400, show_default=True, help="Size of the tokens as int32.")
@click.option("--files", default=1, show_default=True, help="How many files of each format.")
@click.option("--kinds", help="Only these, separated by commas.")
@click.option("--max-len", default=4096, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Rounds that count.")
@click.option("--threads", default=os.cpu_count(), show_default="the cores", help="For decoders and packer alike.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(
    megabytes: int, files: int, kinds: str | None, max_len: int, runs: int, threads: int, folder: Path | None
) -> None:
    work = Path(tempfile.mkdtemp(prefix="bench-sources-", dir=folder))
    try:
        folders, tokens = make_sources(work, megabytes * 10**6 // 4, files)
        peers = ["pyarrow", *(["polars"] if importlib.util.find_spec("polars") else [])]
        versions = " ".join(f"{name} {metadata.version(name)}" for name in (*peers, "numba", "datasets"))
        print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
              f"Python {platform.python_version()}, {versions}")  # fmt: skip
        print(f"{tokens:,} tokens, {files} file(s) of each kind, max_len {max_len}, {threads} threads, "
              f"median of {runs} rounds; CPU seconds behind the slash\n", flush=True)  # fmt: skip
        print(f"{'':15} {'MB':>6} {'pyarrow':>14} {'polars':>14} {'packer':>14} {'x pyarrow':>10} {'x polars':>9}")
        for kind in kinds.split(",") if kinds else folders:
            ways = [way for way in WAYS if way == "packer" or way in peers]
            if kind in ("arrow", "shuffled"):
                ways.remove("polars") if "polars" in ways else None
            took: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for turn in range(runs + 1):
                for way in ways:
                    measured = timed(way, kind, folders[kind], work / "run", max_len, threads)
                    if turn:
                        took[way].append(measured)
            print(_row(kind, folders[kind], took), flush=True)
    finally:
        shutil.rmtree(work)


def _row(kind: str, folder: Path, took: dict[str, list[tuple[float, float]]]) -> str:
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    cells = [f"{kind:15} {size:6.0f}"]
    for way in WAYS:
        seconds, cpu = map(statistics.median, zip(*took[way], strict=True)) if way in took else (0.0, 0.0)
        cells.append(f"{seconds:7.2f}/{cpu:6.2f}" if way in took else f"{'':14}")
    for peer, width in (("pyarrow", 10), ("polars", 9)):
        ratios = [own[0] / other[0] for own, other in zip(took["packer"], took.get(peer, ()), strict=False)]
        cells.append(f"{statistics.median(ratios):{width}.2f}" if ratios else " " * width)
    return " ".join(cells)


if __name__ == "__main__":
    main()
