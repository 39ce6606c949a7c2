"""The commands about this machine: doctor, what it has for packing, and demo, a pack of its Python's source files."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import click

from packer import __version__
from packer.cli.checking_commands import verify
from packer.cli.command import command
from packer.cli.figures_commands import stats
from packer.cli.printing import echo, echo_json
from packer.cli.shared_options import AsJson
from packer.cli.writing_commands import pack
from packer.errors import PackerError
from packer.figures.plain_text import render_table
from packer.options import Option, PackOptions, RunOptions, byte_size
from packer.options.option import GENERAL
from packer.paths import local_output

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
    """Show versions, formats, cores, memory, disk, the cache of kernels, and which optional packages are missing."""
    from packer.engine import available_workers
    from packer.shards.manifest import FORMAT_VERSION

    if compile_kernels:
        _compile_kernels()
    disk, page = shutil.disk_usage(Path()), os.sysconf("SC_PAGE_SIZE")
    own = {"packer": __version__, "python": platform.python_version()}
    facts = {
        "versions": {**own, **{name: _version(name) for name in REQUIRED}},
        "optional": {name: _version(name) for name in OPTIONAL},
        "tokenizing": _tokenizing(),
        "formats": [FORMAT_VERSION],
        "machine": {
            "platform": platform.platform(),
            "cores": available_workers(),
            "memory_bytes": page * os.sysconf("SC_PHYS_PAGES"),
            "memory_available_bytes": page * os.sysconf("SC_AVPHYS_PAGES"),
            "disk_free_bytes": disk.free,
            "disk_bytes": disk.total,
        },
        "kernel_cache": _kernel_cache(),
    }
    if as_json:
        echo_json(facts)
    else:
        echo(_render(facts))


def _version(name: str) -> str | None:
    """Return the version of a distribution; None if it is missing."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tokenizing() -> str:
    """The library that tokenizes text."""
    from packer.text.fast_tokens import SWITCH, is_switched_on, version

    if version() is None:
        return "tokenizers"
    return "gigatoken for BPE, tokenizers for all others" if is_switched_on() else f"tokenizers, because {SWITCH} is 0"


def _kernel_cache() -> dict[str, Any]:
    """The folder in which kernels are cached (None if no folder can be written), and how many are there."""
    from packer import permute

    kernel: Any = permute.permute
    package = Path(permute.__file__).parent
    if kernel.compiled.stats.cache_path is None:
        return {"folder": None, "kernels": 0}
    root = Path(kernel.compiled.stats.cache_path).parent
    root = package if package in root.parents else root  # where the cache is next to each module
    return {"folder": str(root), "kernels": len([*root.rglob("*.nbc")])}


def _compile_kernels() -> None:
    """Compile all kernels: pack, verify and compare small sources of every common type, and run every algorithm."""
    from tempfile import TemporaryDirectory

    import numpy as np
    import pyarrow as pa

    from packer.algorithms import ALGORITHMS, Algorithm, jit
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
            assert verify(out, source)
        compare(source, options=PackOptions(max_len=64))
    histogram = np.zeros(65, np.int64)  # small, but no heuristic packs it as tightly as the bounds allow
    histogram[1:] = np.arange(64, 0, -1)
    histogram[22:43:2] += 50
    for algorithm in ALGORITHMS.values():
        if isinstance(algorithm, Algorithm):
            algorithm.solve(histogram, 3)


def _render(facts: dict[str, Any]) -> str:
    machine, cache = facts["machine"], facts["kernel_cache"]
    sizes = {name: byte_size(value) for name, value in machine.items() if name.endswith("_bytes")}
    rows = {name: version or f"missing: pip install {name}" for name, version in facts["versions"].items()}
    rows |= {name: version or f"not installed ({OPTIONAL[name]})" for name, version in facts["optional"].items()}
    rows |= {
        "tokenizing by": facts["tokenizing"],
        "reads formats": ", ".join(map(str, facts["formats"])),
        "platform": machine["platform"],
        "cores": str(machine["cores"]),
        "memory": f"{sizes['memory_available_bytes']} free of {sizes['memory_bytes']}",
        "disk here": f"{sizes['disk_free_bytes']} free of {sizes['disk_bytes']}",
        "kernel cache": cache["folder"] or "none that can be written: every process compiles; set PACKER_CACHE_DIR",
        "kernels in it": f"{cache['kernels']:,}" if cache["kernels"] else "0: the first pack compiles them",
    }
    return render_table(list(rows.items()), align="<<")


_MARK = ".packer-demo"
"""File in the folder of the demonstration: the folder was made by it, so that it may replace the files in it."""

_VOCAB_SIZE = 4096
_TRAINING_FILES = 400  # more files barely change the tokenizer
_EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def standard_library_texts() -> Iterator[tuple[str, str]]:
    """Yield (path in the library, text) of the Python files in this interpreter's standard library, without tests."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py"), key=lambda path: path.as_posix().encode()):
        name = path.relative_to(library)
        if _EXCLUDED_FOLDERS.isdisjoint(name.parts):
            text = path.read_text(encoding="utf-8", errors="replace")
            if text:
                yield name.as_posix(), text


def write_corpus(folder: Path) -> Path:
    """Tokenize the standard library and return the path of the tokens, `folder`/stdlib.arrow.

    The tokenizer, a byte-level BPE that is trained on a sample of the files, is written to the same folder, with a
    tokenizer_config.json that names the token which ends a text.
    """
    import numpy as np
    import pyarrow as pa

    from packer.arrow import as_arrow, strings
    from packer.text.tokenizer import END_OF_TEXT, train_byte_level

    names, texts = zip(*standard_library_texts(), strict=True)
    tokenizer = train_byte_level(texts[:: max(1, len(texts) // _TRAINING_FILES)], _VOCAB_SIZE)
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [np.array([*encoded.ids, end], np.int32) for encoded in tokenizer.encode_batch(list(texts))]
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).write_text("packer demo made this folder, and replaces its files when it is run again\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_OF_TEXT}) + "\n")
    lists = pa.ListArray.from_arrays(as_arrow(offsets), as_arrow(np.concatenate(ids)))
    table = pa.table({"input_ids": lists, "path": strings(names)})
    path = folder / "stdlib.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return path


@command(
    RunOptions,
    PackOptions,
    changes={
        "output": {
            "default": Path("packer-demo"),
            "default_words": None,
            "help": "Folder for the corpus and the packed dataset.",
        },
        "max_len": {"default": 4096},
    },
    resumes=True,
    short_help="Pack the source files of this machine's Python.",
)
def demo(output: Path, max_len: int) -> None:
    """Pack the source files of this machine's Python standard library; nothing is downloaded.

    It trains a byte-level BPE tokenizer on the files and runs stats, pack, verify and one batch of the loader.
    """
    from packer.loader.collating import batches
    from packer.loader.load import load

    output = local_output(output, "packer demo")
    source, packed = str(output / "stdlib.arrow"), str(output / f"stdlib-packed-{max_len}")
    try:
        if output.is_dir() and any(output.iterdir()) and not (output / _MARK).is_file():
            raise PackerError(f"{output} exists and was not made by packer demo: choose another --output")
        echo("Tokenizing the Python standard library with a byte-level BPE tokenizer trained on it ...")
        write_corpus(output)
    except OSError as error:
        raise PackerError(f"{error.filename or output}: {error.strerror}: choose another --output") from error
    _run(stats, source, "--max-len", str(max_len))
    _run(pack, source, "--max-len", str(max_len), "--output", packed, "--overwrite")
    _run(verify, packed, "--source", source)

    echo(f'\n>>> next(packer.batches(packer.load("{packed}"), rows=4))')
    for name, value in next(batches(load(packed), rows=4, tensors="numpy")).items():
        echo(f"{name:16} {value.dtype} {value.shape}" if hasattr(value, "shape") else f"{name:16} {value}")
    echo(f"\nOne row as text: packer show {packed} 0 --tokenizer {output / 'tokenizer.json'}")


def _run(command: click.Command, *arguments: str) -> None:
    """Show a command line and run it; errors are those of this command."""
    name = str(command.name)
    echo(f"\n$ {shlex.join(['packer', name, *arguments])}")
    assert command.callback is not None
    with command.make_context(name, list(arguments), parent=click.get_current_context()) as context:
        del context.params["debug"]
        context.invoke(command.callback, **context.params)
