"""Demonstration of packing on a corpus that every machine has: the source files of the Python standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from packer.errors import PackerError
from packer.progress import Progress

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


def run_demo(folder: Path, *, max_len: int, progress: Progress) -> Iterator[str]:
    """Create the corpus, pack it, verify it and load a batch; yield the output of each step.

    Args:
        folder: folder of the corpus and the packed dataset.
        max_len: tokens per row.
        progress: callback, called as `progress(stage, done, total)`.

    Raises:
        PackerError: the folder cannot be written, or a step failed.
    """
    import time

    from packer.loader.batching.collating import batches
    from packer.loader.dataset import load
    from packer.options import PackOptions
    from packer.pipeline import packing, verifying
    from packer.pipeline.collect_figures import dataset_figures
    from packer.report import run_summary
    from packer.report.figure_tables import render_figures

    source, output = folder / "stdlib.arrow", folder / f"stdlib-packed-{max_len}"
    options = PackOptions(max_len=max_len)
    yield "Tokenizing the Python standard library with a byte-level BPE tokenizer trained on it ..."
    try:
        write_corpus(folder)
    except OSError as error:
        raise PackerError(f"{error.filename or folder}: {error.strerror}: choose another --output") from error

    yield f"\n$ packer stats {source} --max-len {max_len}"
    yield render_figures(dataset_figures(source, options=options, progress=progress))
    yield f"\n$ packer pack {source} --max-len {max_len} --overwrite"
    started = time.perf_counter()
    result = packing.pack(source, output, options=options, overwrite=True, progress=progress)
    seconds = time.perf_counter() - started
    yield run_summary.render_manifest_summary(result.manifest, output=str(output), seconds=seconds)
    yield f"\n$ packer verify {output} --source {source}"
    for fault in verifying.verify(output, source, progress=progress):
        raise PackerError(f"{output}: {fault}")
    yield f"{output} is verified: hashes, structure and every token of the source"
    yield f'\n>>> next(packer.batches(packer.load("{output}"), rows=4))'
    batch = next(batches(load(output), rows=4, tensors="numpy"))
    for name, value in batch.items():
        yield f"{name:16} {value.dtype} {value.shape}" if hasattr(value, "shape") else f"{name:16} {value}"
    yield f"\nOne row as text: packer show {output} 0 --tokenizer {folder / 'tokenizer.json'}"
