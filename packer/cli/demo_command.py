"""The command demo: a pack of the source files of this machine's Python."""

from __future__ import annotations

import json
import shlex
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import click

from packer.cli.command import command
from packer.cli.printing import echo
from packer.cli.reading_commands import verify
from packer.cli.writing_commands import pack
from packer.errors import PackerError
from packer.options import CutOptions, RunOptions
from packer.paths import local_output

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
    CutOptions,
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

    It trains a byte-level BPE tokenizer on the files, and runs pack and verify.
    """
    from packer.report.plain_text import share
    from packer.shards.reader import read_manifest

    output = local_output(output, "packer demo")
    source, packed = str(output / "stdlib.arrow"), str(output / f"stdlib-packed-{max_len}")
    try:
        if output.is_dir() and any(output.iterdir()) and not (output / _MARK).is_file():
            raise PackerError(f"{output} exists and was not made by packer demo: choose another --output")
        echo("Tokenizing the Python standard library ...")
        write_corpus(output)
    except OSError as error:
        raise PackerError(f"{error.filename or output}: {error.strerror}: choose another --output") from error
    _run(pack, source, "--max-len", str(max_len), "--output", packed, "--overwrite")
    _run(verify, packed, "--source", source)

    totals = read_manifest(Path(packed)).totals
    padded = 1 - totals.tokens_packed / (totals.segments * max_len)
    echo(f"\nPadding: {share(padded)} with each document in rows of its own, {share(1 - totals.efficiency)} packed.")
    echo(f"More figures: packer stats {source}")
    echo(f"A row as text: packer show {packed} --tokenizer {output / 'tokenizer.json'}")


def _run(command: click.Command, *arguments: str) -> None:
    """Show a command line and run it; errors are those of this command."""
    name = str(command.name)
    echo(f"\n$ {shlex.join(['packer', name, *arguments])}")
    assert command.callback is not None
    with command.make_context(name, list(arguments), parent=click.get_current_context()) as context:
        del context.params["debug"]
        context.invoke(command.callback, **context.params)
