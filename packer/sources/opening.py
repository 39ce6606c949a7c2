"""Find what a source consists of: one file, a folder or glob of files, a saved dataset, an object, a Hub id."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from packer.errors import PackerError, SourceError
from packer.sources import ipc, jsonl, parquet
from packer.sources.column_types import as_plain
from packer.sources.documents import MASKS, TURN_STARTS, Columns, Input, SourceFile, find_columns, reading
from packer.sources.hugging_face import SPLITS, STATE, Found, find_on_hub, find_saved, find_table, is_dataset
from packer.sources.masks import apply_masks, with_masks
from packer.sources.pairs import open_pairs
from packer.sources.source import Source, check_types

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset, DatasetDict

ENDINGS = re.compile(r"\.(arrow|ipc|feather|parquet|(jsonl|ndjson|json)(\.gz|\.zst)?)$")
"""File names that are read inside a folder; others there (a README, a licence) are left alone."""

_MANIFEST, _UNFINISHED = "manifest.json", ".packer"
_SIDE_FILES = {"dataset_info.json", "dataset_infos.json", "config.json", _MANIFEST, STATE, SPLITS}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FORMATS = "Arrow (.arrow .ipc .feather), Parquet (.parquet) and JSON lines (.jsonl .ndjson .json, also .gz .zst)"


def open_source(
    source: str | Path | Dataset | DatasetDict,
    *,
    split: str | None = None,
    input_column: str = "input_ids",
    labels_column: str = "labels",
    keep: Sequence[str] = (),
    keep_tokens: Sequence[str] = (),
    turns: bool = False,
    pairs: bool = False,
) -> Source:
    """Open a tokenized dataset: see which files and columns are there, without reading the documents.

    Args:
        source: a file, folder, glob, folder of `save_to_disk`, `datasets` object, or Hub id ("org/name").
        split: which split, where there are several.
        input_column: the column with the token ids.
        labels_column: the column with the labels; "labels" may be missing.
        keep: columns with a value for each document, to be read beside the tokens.
        keep_tokens: columns with a value for each token, to be read beside the tokens.
        turns: read where the turns of chats begin, too, from the column "turn_starts".
        pairs: whether rows are preference pairs, of columns `chosen_input_ids` and `rejected_input_ids`, and labels
            of such names, where they are there: two documents a row, and the column `role` says which is which.

    Raises:
        PackerError: no such path, split or column, or an unknown format.
        SourceError: a file is truncated or corrupt, or the columns are of a type that is not taken.
    """
    refuse_masks((*keep, *keep_tokens))
    if pairs:
        return open_pairs(lambda columns: _opened(source, split, columns), tuple(keep))
    places = (TURN_STARTS,) if turns and TURN_STARTS not in keep else ()
    columns = Columns(input_column, labels_column, (*keep, *keep_tokens, *places), tuple(keep_tokens))
    opened = _opened(source, split, columns)
    if labels_column != "labels" and not opened.has_labels:
        raise PackerError(f"{opened.name}: no labels column '{labels_column}'; name one that is there")
    return opened


def refuse_masks(keep: Sequence[str]) -> None:
    """Raise a PackerError where a mask is to be kept."""
    for name in keep:
        if name in MASKS:
            raise PackerError(f"keep {name!r}: masks become labels and are not kept; leave it out")


def _opened(source: str | Path | Dataset | DatasetDict, split: str | None, columns: Columns) -> Source:
    found = find(source, split)
    read = with_masks(columns, _names_in(found))
    if found.table is not None:
        opened: list[Input] = [_open_table(found.table, found.name, read)]
    elif found.saved:
        opened = [ipc.open_ipc(path, name, read) for path, name in found.files]
    else:
        opened = [_open_file(path, name, read) for path, name in found.files]
    schemas = [(given.file.name, given.groups.schema) for given in opened if isinstance(given, parquet.ParquetFile)]
    check_types(found.name, columns.extra, schemas)
    inputs = apply_masks(opened, columns, read)
    if not found.saved:
        _check_labels(inputs, columns)
    return Source(found.name, inputs, columns, found.indices, pad_id=found.pad_id)


def column_names(source: str | Path | Dataset | DatasetDict, split: str | None) -> list[str]:
    """The names of the columns of a source's first file, as far as its beginning tells; raises as `find`."""
    return _names_in(find(source, split))


def find(source: str | Path | Dataset | DatasetDict, split: str | None) -> Found:
    """Find what a source consists of.

    Raises:
        PackerError: no such path or split.
        SourceError: a folder of `save_to_disk` is damaged.
    """
    if not isinstance(source, (str, Path)):
        if not is_dataset(source):
            raise PackerError(f"a source of type {type(source).__name__}; taken are a path, a Dataset or a DatasetDict")
        return find_table(source, split)
    path = Path(source)
    if path.is_dir():
        if _is_packed(path):
            raise PackerError(f"{path} is already packed (it has a {_MANIFEST}); give the dataset it was packed from")
        if (path / _UNFINISHED).is_dir():
            raise PackerError(f"{path} is an unfinished pack; give the dataset it is packed from")
        if (path / STATE).exists() or (path / SPLITS).exists():
            return find_saved(path, split)
        root, files = path, sorted(_walk(path), key=os.fsencode)
    elif path.exists():
        root, files = path.parent, [path]
    elif glob.has_magic(str(source)):
        root = _fixed_part(path)
        matches = (Path(match) for match in glob.glob(str(path), recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
        found = {file for match in matches for file in (_walk(match) if match.is_dir() else [match])}
        files = sorted(found, key=os.fsencode)
    elif _HUB_ID.fullmatch(str(source)):
        return find_on_hub(str(source), split)
    else:
        raise PackerError(f"{source}: no such file or folder, and not a Hub id like org/name; check the path")
    if not files:
        raise PackerError(f"{source}: no file to read; taken are {_FORMATS}")
    if split is not None:
        raise PackerError(f"--split {split}: {source} consists of files without splits; leave --split out")
    return Found(str(source), [(file, file.relative_to(root).as_posix()) for file in files])


def _open_table(table: pa.Table, name: str, columns: Columns) -> ipc.MappedLists:
    has_labels = find_columns(table.schema, name, columns)
    table = table.select(list(columns.wanted(has_labels=has_labels)))
    batches = table.to_batches()  # aligns the chunks of both columns without copying
    return ipc.MappedLists(
        file=SourceFile(name=name, bytes=table.nbytes),
        path=None,
        input_ids=tuple(batch.column(0) for batch in batches),
        labels=tuple(batch.column(1) for batch in batches) if has_labels else None,
        extra={name: tuple(as_plain(batch.column(name)) for batch in batches) for name in columns.extra},
    )


def _open_file(path: Path, name: str, columns: Columns) -> Input:
    """Open one file."""
    kind = format_of(path, name)
    if kind is jsonl:
        return jsonl.JsonLines.open(path, name, columns)
    return parquet.ParquetFile.open(path, name, columns) if kind is parquet else ipc.open_ipc(path, name, columns)


def _names_in(found: Found) -> list[str]:
    """The names of the columns of the first file that has any, as far as its beginning tells."""
    if found.table is not None:
        return list(found.table.column_names)
    if not found.files:
        return []
    names = (_names_of(path, name, ipc if found.saved else format_of(path, name)) for path, name in found.files)
    return next(filter(None, names), [])


def _names_of(path: Path, name: str, kind: ModuleType) -> list[str]:
    if kind is jsonl:
        return list(jsonl.first_record(path, name) or ())
    return parquet.schema_names(path, name) if kind is parquet else ipc.schema_names(path, name)


def format_of(path: Path, name: str) -> ModuleType:
    """The module that reads a file: JSON lines by its ending, Arrow and Parquet by their first bytes.

    Raises:
        PackerError: there is none, or the file cannot be read.
    """
    ending = ENDINGS.search(path.name)
    if ending and ending[1].startswith(("json", "ndjson")):
        return jsonl
    with reading(name), path.open("rb") as file:
        start = file.read(len(ipc.MAGIC))
    if start.startswith(parquet.MAGIC) or path.suffix == ".parquet":
        return parquet
    if ending or start == ipc.MAGIC or start.startswith(b"\xff\xff\xff\xff"):
        return ipc
    raise PackerError(f"{name}: unknown format (it begins with {start!r}); taken are {_FORMATS}")


def _check_labels(inputs: tuple[Input, ...], columns: Columns) -> None:
    """Raise if some files have labels and others none."""
    by_labels = {given.has_labels: given.file.name for given in inputs}
    if True in by_labels and False in by_labels:
        raise SourceError(
            f"{by_labels[True]} has a column '{columns.labels}', {by_labels[False]} has none; "
            "give labels to all files or to none"
        )


def _walk(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders that have a known ending, hidden ones left out."""
    real = os.path.realpath(folder)
    if real in above:  # a link back up
        return
    with reading(str(folder)):
        children = [child for child in folder.iterdir() if not child.name.startswith(".")]
    saved = sorted(str(c) for c in children if c.is_dir() and ((c / STATE).exists() or (c / SPLITS).exists()))
    if saved:
        raise PackerError(
            f"{folder} contains {len(saved)} saved dataset(s): {', '.join(saved[:5])}; give one of them as the source"
        )
    for child in children:
        if child.is_dir():
            yield from _walk(child, above | {real})
        elif ENDINGS.search(child.name) and child.name not in _SIDE_FILES:
            yield child


def _fixed_part(pattern: Path) -> Path:
    """Return the folders of a glob before the first wildcard; names of files are relative to it."""
    fixed = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _is_packed(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and "format_version" in manifest
