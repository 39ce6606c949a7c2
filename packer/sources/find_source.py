"""Find the files of a source, be it a file, folder, glob, saved or packed dataset, object or Hub id."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from packer.errors import PackerError
from packer.inputs.document_errors import reading
from packer.inputs.file_search import files_in, files_of_split, join_files, matches_of, splits_of
from packer.inputs.format_reader import Reader
from packer.inputs.formats import FORMATS, format_of, known_formats, require_regular
from packer.inputs.hugging_face import SPLITS, STATE, Found, find_on_hub, find_saved, find_table, is_dataset, no_splits
from packer.paths import PathList
from packer.shards.file_names import MANIFEST, WORK
from packer.shards.reader import read_manifest
from packer.stores import AnyPath, RemotePath, any_path, is_remote, pinned
from packer.stores.buckets import opened_in_parallel
from packer.stores.remote_path import listed

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Result = TypeVar("Result")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find_source(source: str | Path | PathList | Dataset | DatasetDict, split: str | None) -> Found:
    """Find the files or the table of a source, or the folder of a local packed dataset.

    The split may be None if there is only one. A PackerError is raised if the path or split does not exist, a
    SourceError if a folder of `save_to_disk` is damaged.
    """
    packed = packed_folder(source)
    if packed is not None:
        if split is not None:
            raise no_splits(f"{packed} is packed", split)
        return Found(name=str(packed), files=[], packed=packed)
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
    """Find the files of several paths. A split is chosen in every folder; files are read whatever their names."""
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
    """Find the files of a path; return None if it does not exist and may be a Hub id."""
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


def refuse_packed(found: Found) -> None:
    """Raise a PackerError if a source is a packed dataset, which holds neither text nor lengths alone."""
    if found.packed is not None:
        raise _not_alone(found.packed)


def _not_alone(folder: AnyPath) -> PackerError:
    """Return the error for a packed dataset that cannot be read as documents."""
    where = "copy it to a local disk" if isinstance(folder, RemotePath) else "give it alone, without --tokenizer"
    return PackerError(f"{folder} is already packed; to pack its documents again {where}, or give its source")


def _relative(file: AnyPath, root: AnyPath) -> str:
    return PurePosixPath(str(file)).relative_to(PurePosixPath(str(root))).as_posix()


def packed_folder(source: object) -> Path | None:
    """Return the folder of a source that is a local packed dataset, intact or not; None for any other source."""
    if not isinstance(source, (str, Path)) or is_remote(source):
        return None
    folder = any_path(source)
    try:
        return folder if isinstance(folder, Path) and is_packed_folder(folder) else None
    except (OSError, ValueError):  # no path, such as a name that is too long
        return None


def is_packed_folder(folder: AnyPath) -> bool:
    """Whether a folder holds a packed dataset, rather than one with a manifest.json of another kind."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return (folder / STATE).exists()  # damaged: `read_manifest` explains how
    return isinstance(manifest, dict) and "format_version" in manifest


def for_each_file(task: Callable[[type[Reader], AnyPath, str], Result], found: Found) -> list[Result]:
    """Call a function with (reader class, path, name) of each file, in threads if the files are in object storage."""

    def call(file: tuple[AnyPath, str]) -> Result:
        path, name = file
        return task(_reader_of(found, path, name), path, name)

    if any(isinstance(path, RemotePath) for path, _ in found.files):
        return opened_in_parallel(call, found.files)
    return [call(file) for file in found.files]


def column_names(found: Found, usable: str | None = None) -> list[str]:
    """Return the column names of the first file that has any.

    If unusable records are rejected, `usable` is a column that a record must have for its names to count.
    """
    if found.packed is not None:
        options = read_manifest(found.packed).options
        return ["input_ids", "labels", *options.kept, *options.keep_tokens]
    if found.table is not None:
        return list(found.table.table.column_names)
    for path, name in found.files:
        names = _reader_of(found, path, name).column_names(path, name, usable)
        if names:
            return names
    return []


def _reader_of(found: Found, path: AnyPath, name: str) -> type[Reader]:
    return (FORMATS["arrow"] if found.saved else format_of(path, name)).reader_class
