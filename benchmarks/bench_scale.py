"""One process against several ranks and Ray on the same work: seconds, memory, and whether the bytes are the same.

    python benchmarks/bench_scale.py 250e6
    python benchmarks/bench_scale.py 250e6 --kind jsonl --rounds 5
    python benchmarks/bench_scale.py 10e6 --store --rounds 1

Every round runs one process with one worker, one with two, 1, 2 and 3 ranks with one worker each, and Ray on one node
of two cores and on two nodes of one. All are processes of this machine. The time of ranks ends with the last of them;
that of Ray begins when its nodes are up, and contains the connection to them. Memory is the largest peak of RssAnon of
a process, of Ray that of the driver. The first round compiles the kernels, and is not counted. Every output is compared
with the first, hash by hash. With --store, source and output are in object storage, on moto's S3 server on this
machine, and requests and bytes are counted there; such a server is far slower than a store, so that its seconds say
little.

What cannot be run here, the plan of 1e9 documents and more and what it costs, is in bench_scale_plan.py.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
import pyarrow as pa
from bench_pack import timed

from packer.stores import AnyPath, RemotePath

if TYPE_CHECKING:
    from tests.store_server import StoreServer

sys.path.insert(0, str(Path(__file__).parent.parent))


class Way(NamedTuple):
    """Who does the work."""

    workers: int = 1
    """Threads of each process, or cores of each node."""

    ranks: int = 0
    nodes: int = 0
    """Nodes of a Ray cluster."""

    @property
    def cores(self) -> int:
        """Cores that can work at the same time, up to the two of the process that it is compared with."""
        return min(2, max(self.ranks, self.nodes, 1) * self.workers)


WAYS = {
    "1 process, 1 worker": Way(),
    "1 process, 2 workers": Way(workers=2),
    "1 rank": Way(ranks=1),
    "2 ranks": Way(ranks=2),
    "3 ranks": Way(ranks=3),
    "Ray, 1 node": Way(nodes=1, workers=2),
    "Ray, 2 nodes": Way(nodes=2),
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


@contextmanager
def started(way: Way) -> Iterator[list[str]]:
    """Start what a way needs; yield the options that name it."""
    if not way.nodes:
        yield ["--workers", str(way.workers)]
        return
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(way.nodes):
            cluster.add_node(num_cpus=way.workers)
        cluster.wait_for_nodes()
        yield ["--engine", "ray", "--ray-address", cluster.address]
    finally:
        cluster.shutdown()


def run(source: AnyPath, out: AnyPath, way: Way) -> tuple[float, int]:
    """Pack once; return the seconds, and the largest peak of anonymous memory of a process, in bytes."""
    command = [sys.executable, "-m", "packer", "pack", str(source), "-o", str(out), "--max-len", "4096"]
    command += ["--shard-size", "32MB"]
    with started(way) as options:
        begun = time.perf_counter()
        if not way.ranks:
            peaks = [timed([*command, *options]).anonymous]
        else:
            with ThreadPoolExecutor(way.ranks) as pool:
                each = [
                    [*command, *options, "--rank", str(rank), "--ranks", str(way.ranks)] for rank in range(way.ranks)
                ]
                peaks = [found.anonymous for found in pool.map(timed, each)]
        return time.perf_counter() - begun, max(peaks)


def remove(out: AnyPath) -> None:
    """Remove a packed dataset."""
    if isinstance(out, RemotePath):
        out.remove_all()
    else:
        shutil.rmtree(out)


def hashes(out: AnyPath) -> object:
    """Return the content of the manifest, which has the hash of every shard."""
    return json.loads((out / "manifest.json").read_bytes())


@contextmanager
def places(work: Path, source: Path, *, store: bool) -> Iterator[tuple[AnyPath, AnyPath, StoreServer | None]]:
    """Yield (source, output, server of the store that both are in)."""
    if not store:
        yield source, work / "packed", None
        return
    from tests.store_server import StoreServer

    with StoreServer.started() as server:
        os.environ.update(server.environment)
        bucket = RemotePath.of(f"s3://{server.new_bucket()}")
        for file in source.iterdir():
            (bucket / "source" / file.name).upload(file)
        yield bucket / "source", bucket / "packed", server


@click.command()
@click.argument("tokens", type=float)
@click.option("--kind", type=click.Choice(["arrow", "jsonl"]), default="arrow", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--store", is_flag=True, help="Source and output in object storage, on a server of this machine.")
@click.option("--ray/--no-ray", default=True, show_default=True, help="Run the ways with Ray, too.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work [default: the temporary folder].")
def main(tokens: float, kind: str, rounds: int, store: bool, ray: bool, folder: Path | None) -> None:
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
    ways = {name: way for name, way in WAYS.items() if ray or not way.nodes}
    work = Path(tempfile.mkdtemp(prefix="bench-scale-", dir=folder))
    try:
        made = make_source(work / "source", kind, int(tokens))
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        peaks: dict[str, int] = dict.fromkeys(ways, 0)
        asked: dict[str, str] = dict.fromkeys(ways, "")
        expected = None
        with places(work, made, store=store) as (source, out, server):
            for number in range(rounds + 1):
                for name, way in ways.items():
                    if server is not None:
                        server.faults()
                    taken, peak = run(source, out, way)
                    if server is not None:
                        asked[name] = described(server.faults(), server)
                    found = hashes(out)
                    expected = expected or found
                    assert found == expected, f"{name}: other bytes"
                    remove(out)
                    if number:
                        seconds[name].append(taken)
                        peaks[name] = max(peaks[name], peak)
    finally:
        shutil.rmtree(work)
    where = "in object storage" if store else "on disk"
    print(f"{tokens:,.0f} tokens of {kind} {where}, {rounds} rounds; the same bytes everywhere")
    print(f"{'':22} {'seconds':>16} {'of 1 process':>13} {'RssAnon':>9}")
    alone = {1: seconds["1 process, 1 worker"], 2: seconds["1 process, 2 workers"]}
    for name, way in ways.items():
        like = alone[way.cores]  # the process that uses as many cores
        ratio = statistics.median(one / other for one, other in zip(seconds[name], like, strict=True))
        middle = f"{statistics.median(seconds[name]):.1f} ({min(seconds[name]):.1f}-{max(seconds[name]):.1f})"
        print(f"{name:22} {middle:>16} {ratio:13.2f} {peaks[name] / 2**20:5.0f} MiB {asked[name]}".rstrip())


def described(counted: dict[str, int], server: StoreServer) -> str:
    """Return the requests and bytes that a server has counted, in one line."""
    requests = ", ".join(f"{counted[method]} {method}" for method in sorted(counted))
    return f"{requests}; {server.sent / 1e6:.0f} MB read, {server.received / 1e6:.0f} MB written"


if __name__ == "__main__":
    main()
