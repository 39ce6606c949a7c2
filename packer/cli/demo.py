"""`packer demo`: the main commands on a corpus that every machine has, the Python standard library's source files."""

from __future__ import annotations

import shlex
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import click

from packer.cli import command_named
from packer.cli.command import command
from packer.errors import PackerError
from packer.options import PackOptions, RunOptions

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
    import json

    import pyarrow as pa

    from packer.text import END_OF_TEXT, train_byte_level

    names, texts = zip(*standard_library_texts(), strict=True)
    tokenizer = train_byte_level(texts[:: max(1, len(texts) // _TRAINING_FILES)], _VOCAB_SIZE)
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [[*encoded.ids, end] for encoded in tokenizer.encode_batch(list(texts))]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_OF_TEXT}) + "\n")
    table = pa.table({"input_ids": pa.array(ids, pa.list_(pa.int32())), "path": list(names)})
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
    from packer.loader.dataset import load

    source, packed = str(output / "stdlib.arrow"), str(output / f"stdlib-packed-{max_len}")
    click.echo("Tokenizing the Python standard library with a byte-level BPE tokenizer trained on it ...")
    try:
        write_corpus(output)
    except OSError as error:
        raise PackerError(f"{error.filename or output}: {error.strerror}: choose another --output") from error
    _run("stats", source, "--max-len", str(max_len))
    _run("pack", source, "--max-len", str(max_len), "--output", packed, "--overwrite")
    _run("verify", packed, "--source", source)

    click.echo(f'\n>>> next(packer.batches(packer.load("{packed}"), rows=4))')
    for name, value in next(batches(load(packed), rows=4, tensors="numpy")).items():
        click.echo(f"{name:16} {value.dtype} {value.shape}" if hasattr(value, "shape") else f"{name:16} {value}")
    click.echo(f"\nOne row as text: packer show {packed} 0 --tokenizer {output / 'tokenizer.json'}")


def _run(name: str, *arguments: str) -> None:
    """Show a command line and run it; errors are those of this command."""
    click.echo(f"\n$ {shlex.join(['packer', name, *arguments])}")
    command = command_named(name)
    assert command.callback is not None
    with command.make_context(name, list(arguments), parent=click.get_current_context()) as context:
        del context.params["debug"]
        context.invoke(command.callback, **context.params)
