"""Find the files of a source, be it a file, folder, glob, saved dataset, object or Hub id, and open tokenized ones."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from packer.errors import PackerError, SourceError
from packer.paths import PathList
from packer.shards.file_names import WORK
from packer.sources.columns.column_checks import check_types, find_columns
from packer.sources.columns.mask_columns import checked_lists, with_masks
from packer.sources.documents import MASKS, TURN_STARTS, Columns, Input, SourceFile, reading
from packer.sources.files.file_access import require_regular
from packer.sources.files.file_search import files_in, files_of_split, join_files, matches_of, splits_of
from packer.sources.files.hugging_face import (
    SPLITS,
    STATE,
    Found,
    find_on_hub,
    find_saved,
    find_table,
    is_dataset,
    no_splits,
)
from packer.sources.formats import FORMATS, InputFormat, format_of, known_formats
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.mapped.record_batches import TableInMemory
from packer.sources.packed.open_packed import is_packed_folder, open_packed, packed_columns, packed_folder, refuse_rows
from packer.sources.pairs import open_pairs
from packer.sources.source import Source
from packer.stores import AnyPath, RemotePath, any_path, is_remote
from packer.stores.listing import listed, pinned
from packer.stores.requests import opened_in_parallel

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Result = TypeVar("Result")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_source(
    source: str | Path | PathList | Dataset | DatasetDict,
    *,
    split: str | None = None,
    input_column: str = "input_ids",
    labels_column: str = "labels",
    keep: Sequence[str] = (),
    keep_tokens: Sequence[str] = (),
    turns: bool = False,
    pairs: bool = False,
    skips: bool = False,
) -> Source:
    """Open a tokenized dataset: find its files and columns, without reading the documents.

    Args:
        source: a file, folder, glob, folder of `save_to_disk`, several of these, a `datasets` object, or a Hub id
            ("org/name").
        split: name of the split; may be None if there is only one.
        input_column: the column with the token ids.
        labels_column: the column with the labels; only "labels" may be missing.
        keep: further columns to keep, with a value for each document.
        keep_tokens: further columns to keep, with a value for each token.
        turns: also keep the column "turn_starts", with the tokens at which turns of chats begin.
        pairs: read preference pairs from the columns `chosen_input_ids` and `rejected_input_ids`, with labels from
            `chosen_labels` and `rejected_labels` if present. Each pair makes two documents; `role` tells them apart.
        skips: reject documents that cannot be used, with an empty one in the place of each. Mapped files are read once.

    Raises:
        PackerError: the path, split or column does not exist, or the format is unknown.
        SourceError: a file is truncated or corrupt, or the type of a column is not supported.
    """
    refuse_masks((*keep, *keep_tokens))
    if pairs:
        return open_pairs(lambda columns: _opened(source, split, columns, skips=skips), tuple(keep))
    places = (TURN_STARTS,) if turns and TURN_STARTS not in keep else ()
    columns = Columns(input_column, labels_column, (*keep, *keep_tokens, *places), tuple(keep_tokens))
    opened = _opened(source, split, columns, skips=skips)
    if labels_column != "labels" and not opened.has_labels:
        raise PackerError(f"{opened.name}: no labels column '{labels_column}'; name one that exists")
    return opened


def refuse_masks(keep: Sequence[str]) -> None:
    """Raise a PackerError if one of the columns to keep is a mask."""
    for name in keep:
        if name in MASKS:
            raise PackerError(f"keep {name!r}: masks become labels and are not kept; leave it out")


def _opened(
    source: str | Path | PathList | Dataset | DatasetDict, split: str | None, columns: Columns, *, skips: bool
) -> Source:
    packed = packed_folder(source)
    if packed is not None:
        return open_packed(packed, split, columns)
    found = find_source(source, split)
    names = _names_in(found, columns.input_ids if skips else None)
    refuse_rows(found.name, names)
    read = with_masks(columns, names)
    if found.table is not None:
        opened: list[Input] = [_open_table(found.table, found.name, read)]
    else:
        opened = for_each_file(lambda kind, path, name: kind.open_lists(path, name, read, skips=skips), found)
    check_types(found.name, columns.extra, [(input_.file.name, input_.declared_types) for input_ in opened])
    inputs = checked_lists(opened, columns, read, skips=skips)
    if not found.saved:
        _check_labels(inputs, columns)
    chats = TURN_STARTS in names
    return Source(found.name, inputs, columns, found.indices, pad_id=found.pad_id, skips=skips, holds_chats=chats)


def column_names(
    source: str | Path | PathList | Dataset | DatasetDict, split: str | None, usable: str | None = None
) -> list[str]:
    """Return the column names of the first file of a source; raises as `find_source` does.

    Args:
        source: as in `open_source`.
        split: as in `open_source`.
        usable: column that a record must have for its names to count, if unusable records are rejected.
    """
    packed = packed_folder(source)
    return packed_columns(packed) if packed is not None else _names_in(find_source(source, split), usable)


def find_source(source: str | Path | PathList | Dataset | DatasetDict, split: str | None) -> Found:
    """Find the files or the table of a source.

    Raises:
        PackerError: the path or split does not exist.
        SourceError: a folder of `save_to_disk` is damaged.
    """
    if isinstance(source, PathList):
        return _find_several(source, split)
    if not isinstance(source, (str, Path)):
        if not is_dataset(source):
            kind = type(source).__name__
            raise PackerError(f"a source of type {kind} is not supported; give a path, a Dataset or a DatasetDict")
        return find_table(source, split)
    found = _find_files(source, split)
    return found if found is not None else find_on_hub(str(source), split)


def count_files(path: str | Path, split: str | None) -> int:
    """Count the files of a path, which may be one of several or a whole source; raises as `find_source` does."""
    if packed_folder(path) is not None:
        return 1
    found = _find_files(path, split if _is_folder(path) else None)
    return len((find_on_hub(str(path), split) if found is None else found).files)


def _find_several(source: PathList, split: str | None) -> Found:
    """Find the files of several paths. A split is chosen in every folder; files are read whatever their names.

    Raises:
        PackerError: a path does not exist or holds a file of another, or a folder does not have the split.
    """
    folders = [_is_folder(path) for path in source.paths]
    if split is not None and not any(folders):
        raise no_splits(f"{source} are files", split)
    every = []
    for path, is_folder in zip(source.paths, folders, strict=True):
        found = _find_files(path, split if is_folder else None)
        if found is None:
            raise PackerError(
                f"{path}: no such file or folder (a Hub id cannot be one of several paths); check the path"
            )
        every.append(found)
    return join_files(str(source), every)


def _is_folder(path: str | Path) -> bool:
    if is_remote(path):
        return not glob.has_magic(str(path)) and not any_path(path).is_file()
    return os.path.isdir(path)  # noqa: PTH112 (a name may be too long)


def _find_files(source: str | Path, split: str | None) -> Found | None:
    """Find the files of a path; return None if it does not exist and may be a Hub id.

    Raises:
        PackerError: the path or split does not exist.
        SourceError: a folder of `save_to_disk` is damaged.
    """
    path = any_path(source)
    with reading(str(source)):
        if isinstance(path, RemotePath) and not glob.has_magic(path.key):
            path = path.pinned() if path.is_file() else listed(path)
        is_folder, exists = path.is_dir(), path.exists()
    if is_folder:
        return _find_in_folder(path, split)
    if exists:
        root, files = path.parent, [path]
    elif glob.has_magic(str(source)):
        root, files = matches_of(path)
    elif isinstance(path, RemotePath):
        raise PackerError(f"{source}: no such object, nor objects that begin with it; check the address")
    elif path.is_symlink():
        raise PackerError(f"{source}: a link that leads to no file or folder ({path.readlink()}); correct the link")
    elif _HUB_ID.fullmatch(str(source)):
        return None
    else:
        raise PackerError(f"{source}: no such file or folder, and not a Hub id like org/name; check the path")
    if split is not None:
        raise no_splits(f"{source} consists of files", split)
    return _name_files(str(source), root, files)


def _find_in_folder(folder: AnyPath, split: str | None) -> Found:
    with reading(str(folder)):
        if is_packed_folder(folder):
            raise _not_alone(folder)
        if (folder / WORK).is_dir():
            raise PackerError(f"{folder} is an unfinished pack; give the dataset it is packed from")
        is_saved = (folder / STATE).exists() or (folder / SPLITS).exists()
    if is_saved:
        found = find_saved(folder, split)
        for path, name in found.files:
            require_regular(path, name)
        return found
    files = files_in(str(folder), [folder])
    splits = splits_of(_relative(file, folder) for file in files)
    if splits:
        files = [folder / name for name in files_of_split(str(folder), len(files), splits, split)]
    elif split is not None:
        raise no_splits(f"{folder} consists of files", split)
    return _name_files(str(folder), folder, files)


def _name_files(name: str, root: AnyPath, files: Sequence[AnyPath]) -> Found:
    """Name the files of a source relative to its root; raises a PackerError if there are none or one is special."""
    if not files:
        raise PackerError(f"{name}: no file to read; supported formats are {known_formats()}")
    names = [_relative(file, root) for file in files]
    named = [(pinned(file), name) for file, name in zip(files, names, strict=True)]
    for file in named:
        require_regular(*file)
    return Found(name, named)


def _not_alone(folder: AnyPath) -> PackerError:
    """Return the error for a packed dataset that cannot be read as documents."""
    where = "copy it to a local disk" if isinstance(folder, RemotePath) else "give it alone, without --tokenizer"
    return PackerError(f"{folder} is already packed; to pack its documents again {where}, or give its source")


def _relative(file: AnyPath, root: AnyPath) -> str:
    return PurePosixPath(str(file)).relative_to(PurePosixPath(str(root))).as_posix()


def _open_table(table: Any, name: str, columns: Columns) -> MappedLists:
    has_labels = find_columns(table.table.schema, name, columns)
    wanted = columns.wanted(has_labels=has_labels)
    return MappedLists(
        file=SourceFile(name=name, bytes=table.table.select(list(wanted)).nbytes),
        path=None,
        stores=(TableInMemory.of(table, wanted, wanted[: 1 + has_labels]),),
        input_ids=columns.input_ids,
        labels=columns.labels if has_labels else None,
        extra=columns.extra,
    )


def for_each_file(task: Callable[[InputFormat, AnyPath, str], Result], found: Found) -> list[Result]:
    """Call a function with (format, path, name) of each file, in threads if the files are in object storage."""

    def call(file: tuple[AnyPath, str]) -> Result:
        path, name = file
        return task(FORMATS["arrow"] if found.saved else format_of(path, name), path, name)

    if any(isinstance(path, RemotePath) for path, _ in found.files):
        return opened_in_parallel(call, found.files)
    return [call(file) for file in found.files]


def _formats(found: Found) -> Iterator[tuple[InputFormat, AnyPath, str]]:
    """Yield (format, path, name) of each file."""
    for path, name in found.files:
        yield FORMATS["arrow"] if found.saved else format_of(path, name), path, name


def _names_in(found: Found, usable: str | None) -> list[str]:
    """Return the column names of the first file that has any."""
    if found.table is not None:
        return list(found.table.table.column_names)
    for kind, path, name in _formats(found):
        names = kind.column_names(path, name, usable)
        if names:
            return names
    return []


def _check_labels(inputs: tuple[Input, ...], columns: Columns) -> None:
    """Raise a SourceError if some files have labels and others have none."""
    by_labels = {input_.has_labels: input_.file.name for input_ in inputs}
    if True in by_labels and False in by_labels:
        raise SourceError(
            f"{by_labels[True]} has a column '{columns.labels}', {by_labels[False]} has none; "
            "give labels to all files or to none"
        )
