"""`packer doctor`: versions, resources and kernels of this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import click

from packer import __version__
from packer.cli.command import AsJson, command
from packer.options import Option
from packer.options.option import GENERAL

CompileKernels = Annotated[
    bool, Option("Compile all kernels into the cache, as for a container image.", GENERAL, flags=("--compile",))
]

REQUIRED = (
    *("numpy", "numba", "highspy", "pyarrow", "datasets", "transformers", "tokenizers", "jinja2", "click", "tqdm"),
    "xxhash",
)
"""Distributions that packer needs."""

OPTIONAL = {
    "gigatoken": "text is tokenized many times as fast",
    "torch": "tensors from packer.load, and packer check",
    "trl": "training with TRL",
    "accelerate": "training with Hugging Face's Trainer",
    "lightning": "training with Lightning",
    "torchdata": "its StatefulDataLoader",
}
"""Optional distributions, and what they are for."""


@command(short_help="Show what this machine has for packing.")
def doctor(compile_kernels: CompileKernels = False, as_json: AsJson = False) -> None:
    """Show versions, cores, memory, disk, the cache of compiled kernels, and which optional packages are missing."""
    if compile_kernels:
        _compile_kernels()
    facts = {
        "versions": {"packer": __version__, "python": platform.python_version(), **_versions(REQUIRED)},
        "optional": _versions(OPTIONAL),
        "tokenizing": _tokenizing(),
        "machine": _machine(),
        "kernel_cache": _kernel_cache(),
    }
    click.echo(json.dumps(facts, indent=1) if as_json else _render(facts))


def _versions(names: Iterable[str]) -> dict[str, str | None]:
    """Versions of distributions by name; None for one that is missing."""
    from importlib import metadata

    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _tokenizing() -> str:
    """The library that tokenizes text."""
    from packer.text.fast_tokens import SWITCH, is_switched_on, version

    if version() is None:
        return "tokenizers"
    if not is_switched_on():
        return f"tokenizers, because {SWITCH} is 0"
    return "gigatoken for BPE, tokenizers for all others"


def _machine() -> dict[str, Any]:
    """The platform, the cores this process may use, and bytes of memory and of disk."""
    from packer.engine import available_workers

    disk = shutil.disk_usage(Path())
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        "platform": platform.platform(),
        "cores": available_workers(),
        "memory_bytes": page * os.sysconf("SC_PHYS_PAGES"),
        "memory_available_bytes": page * os.sysconf("SC_AVPHYS_PAGES"),
        "disk_free_bytes": disk.free,
        "disk_bytes": disk.total,
    }


def _kernel_cache() -> dict[str, Any]:
    """The folder in which kernels are cached (None if no folder can be written), and how many are there."""
    from packer.plan import permute

    kernel: Any = permute.permute
    folder = kernel.compiled.stats.cache_path
    package = Path(permute.__file__).parent.parent
    root = Path(folder) if folder is not None else None
    if root is not None and package in root.parents:  # the cache is next to each module
        root = package
    elif root is not None:
        root = root.parent
    return {
        "folder": None if root is None else str(root),
        "kernels": 0 if root is None else len([*root.rglob("*.nbc")]),
    }


def _compile_kernels() -> None:
    """Compile all kernels: pack, verify and compare small sources of every common type, and run every algorithm."""
    from tempfile import TemporaryDirectory

    import numpy as np
    import pyarrow as pa

    from packer.algorithms import ALGORITHMS, Algorithm, jit
    from packer.options import PackOptions
    from packer.pipeline.comparing import compare
    from packer.pipeline.job import Job
    from packer.pipeline.packing import pack
    from packer.pipeline.verifying import verify

    jit.compile_from_now_on()
    documents = [list(range(1 + 7 * number % 40)) for number in range(200)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("int32", "int64", "uint16", "uint32"):
            lists = pa.array(documents, pa.list_(pa.type_for_alias(kind)))
            table = pa.table({"input_ids": lists, "labels": pa.array(documents, pa.list_(pa.int32()))})
            source, out = folder / f"{kind}.arrow", folder / kind
            with pa.OSFile(str(source), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
            options = PackOptions(max_len=64, shard_size=8_000, add_column=("position_ids",))
            pack(source, options=options, job=Job(output=out))
            assert not list(verify(out, source))
        compare(source, options=PackOptions(max_len=64))
    histogram = np.zeros(65, np.int64)  # small, but no heuristic packs it as tightly as the bounds allow
    histogram[1:] = np.arange(64, 0, -1)
    histogram[22:43:2] += 50
    for algorithm in ALGORITHMS.values():
        if isinstance(algorithm, Algorithm):
            algorithm.solve(histogram, 3)


def _render(facts: dict[str, Any]) -> str:
    from packer.figures.plain_text import render_table
    from packer.options import byte_size

    machine, cache = facts["machine"], facts["kernel_cache"]
    folder = cache["folder"] or "none that can be written: every process compiles; set PACKER_CACHE_DIR"
    rows = [[name, version or "missing: pip install " + name] for name, version in facts["versions"].items()]
    rows += [[name, version or f"not installed ({OPTIONAL[name]})"] for name, version in facts["optional"].items()]
    rows += [
        ["tokenizing by", facts["tokenizing"]],
        ["platform", machine["platform"]],
        ["cores", str(machine["cores"])],
        ["memory", "{1} free of {0}".format(*(byte_size(machine[f"memory_{n}bytes"]) for n in ("", "available_")))],
        ["disk here", f"{byte_size(machine['disk_free_bytes'])} free of {byte_size(machine['disk_bytes'])}"],
        ["kernel cache", folder],
        ["kernels in it", f"{cache['kernels']:,}" if cache["kernels"] else "0: the first pack compiles them"],
    ]
    return render_table(rows, align="<<")
