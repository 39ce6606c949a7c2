"""The plan of 1e9 documents and more, and what packing them on object storage costs.

    python benchmarks/bench_scale_plan.py plan 1e9 1e10 1e11
    python benchmarks/bench_scale_plan.py costs 15e12 --shard-size 128MB --shard-size 512MB --shard-size 2GB

Both run the code that plans a pack, on documents of made-up lengths: log-normal, about 400 tokens on average. All the
driver's work is done, on one process: marking and dealing blocks, reading the notes of all tasks, the last step. Of the
lengths, the first `--surveyed` are looked at, and of the tasks of a stage, the first `--tasks` run; their seconds and
notes are multiplied, and the table says so. Reading the lengths themselves takes no time here.

"costs" multiplies requests, bytes and hours with prices. These are parameters. The defaults are list prices of 2025 of
Amazon S3 Standard and of an m7i.4xlarge (16 cores, up to 12.5 Gbit/s) in us-east-1: look up those of your store.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata

import click
from scale_costs import Setting, cost_lines, costs_of
from scale_plan import PlanFigures, plan_at_scale

from packer.options import parse_size

MEAN = 403.3057773
"""Tokens of a document on average."""


def _header() -> str:
    packages = " ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "numba", "pyarrow"))
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {gib:.0f} GiB, {platform.machine()}, Python {platform.python_version()}, {packages}"
    )


def _multiple(documents: float, surveyed: float) -> tuple[int, int]:
    """Return (documents, surveyed) with whole numbers, of which the first is a multiple of the second."""
    most = min(int(surveyed), max(1, round(documents)))
    return round(documents / most) * most, most


def _print_columns(names: list[str], columns: list[list[tuple[str, str]]]) -> None:
    print(f"{'':26}" + "".join(f"{name:>14}" for name in names))
    for lines in zip(*columns, strict=True):
        print(f"{lines[0][0]:26}" + "".join(f"{value:>14}" for _, value in lines))


def _plan_lines(plan: PlanFigures) -> list[tuple[str, str]]:
    mark = "" if plan.tasks_ran == plan.tasks else " *"
    of_survey = "" if plan.survey_ran == 1 else " *"
    return [
        ("tokens", f"{plan.tokens / 1e12:.2f} T"),
        ("shards", f"{plan.shards:,}{mark}"),
        ("blocks of a partition", f"{plan.blocks_each:.0f}"),
        ("rows of the pool", f"{plan.pool_rows / plan.rows:.2%}{mark}"),
        ("survey, CPU seconds", f"{plan.survey_seconds:,.0f}{of_survey}"),
        ("tasks", f"{plan.tasks:,}"),
        ("  that ran", f"{plan.tasks_ran:,}"),
        ("  CPU seconds", f"{plan.task_seconds:,.0f}{mark}"),
        ("driver, CPU seconds", f"{plan.driver_seconds:,.0f}"),
        ("driver, RssAnon", f"{plan.memory / 2**20:,.0f} MiB"),
        ("notes", f"{plan.note_bytes / 1e6:,.0f} MB{mark}"),
        ("  leftovers, last step", f"{plan.last_bytes / 1e6:,.1f} MB{mark}"),
    ]


@click.group()
def main() -> None:
    """Plan corpora that are too large for this machine."""


@main.command()
@click.argument("documents", nargs=-1, required=True, type=float)
@click.option("--shard-size", default="512MB", show_default=True)
@click.option("--max-len", default=4096, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--surveyed", default=1e8, show_default=True, type=float)
@click.option("--tasks", default=64, show_default=True)
def plan(
    documents: tuple[float, ...], shard_size: str, max_len: int, threads: int, surveyed: float, tasks: int
) -> None:
    """Print time, notes and memory of the plan of so many DOCUMENTS."""
    print(_header())
    print(f"max_len {max_len}, shards of {shard_size}, {threads} threads; * extrapolated")
    columns = []
    for each in documents:
        count, most = _multiple(each, surveyed)
        found = plan_at_scale(
            count,
            max_len=max_len,
            shard_size=parse_size(shard_size),
            threads=threads,
            most_surveyed=most,
            most_tasks=tasks,
        )
        columns.append(_plan_lines(found))
    _print_columns([f"{count:.0e}".replace("e+", "e") for count in documents], columns)


@main.command()
@click.argument("tokens", type=float)
@click.option("--shard-size", multiple=True, default=("128MB", "512MB", "2GB"), show_default=True)
@click.option("--max-len", default=4096, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--surveyed", default=1e8, show_default=True, type=float)
@click.option("--tasks", default=64, show_default=True)
@click.option("--get-price", default=0.0004, show_default=True, help="Dollars of 1,000 GET requests.")
@click.option("--put-price", default=0.005, show_default=True, help="Dollars of 1,000 PUT, POST or LIST requests.")
@click.option("--node-price", default=0.8064, show_default=True, help="Dollars of an hour of a node.")
@click.option("--transfer-price", default=0.0, show_default=True, help="Dollars of a GB; 0 within a region.")
@click.option("--nodes", default=16, show_default=True)
@click.option("--cores", default=16, show_default=True, help="Cores of a node.")
@click.option("--network", default=12.5, show_default=True, help="Gbit/s of a node, in each direction.")
@click.option("--core-speed", default=40e6, show_default=True, help="Tokens that a core packs in a second.")
@click.option("--latency", default=0.03, show_default=True, help="Seconds of a small request.")
@click.option("--at-once", default=16, show_default=True, help="Requests that a core waits for at the same time.")
@click.option("--part", default=16_000_000, show_default=True, help="Bytes of a part of an upload.")
@click.option("--batch", default=1000, show_default=True, help="Documents in a record batch of the source.")
def costs(
    tokens: float,
    shard_size: tuple[str, ...],
    max_len: int,
    threads: int,
    surveyed: float,
    tasks: int,
    **given: float,
) -> None:
    """Print what packing so many TOKENS costs in requests, bytes and node-hours, for several sizes of shards."""
    setting = Setting(**given)  # type: ignore[arg-type]
    documents, most = _multiple(tokens / MEAN, surveyed)
    print(_header())
    print(
        f"{documents * MEAN / 1e12:.2f} T tokens in {documents:,} documents, max_len {max_len}; extrapolated from the"
    )
    print(f"lengths of {most:,} documents and {tasks} tasks of a stage, with:")
    words = [f"{name.replace('_', ' ')} {value:g}" for name, value in given.items()]
    print("\n".join(", ".join(words[at : at + 6]) for at in range(0, len(words), 6)))
    columns = []
    for size in shard_size:
        found = plan_at_scale(
            documents,
            max_len=max_len,
            shard_size=parse_size(size),
            threads=threads,
            most_surveyed=most,
            most_tasks=tasks,
            rereads=False,
        )
        columns.append(cost_lines(found, costs_of(found, parse_size(size), setting, max_len), setting))
    _print_columns(list(shard_size), columns)


if __name__ == "__main__":
    main()
