"""Find the files of a source, be it a file, folder, saved dataset, object or Hub id.

Every folder is searched once, whatever links lead to it. Splits follow from names, as `datasets` sorts the files of
folders and of repositories on the Hub.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from packer.errors import OtherSourceError, PackerError
from packer.inputs.documents import SourceFile, reading
from packer.inputs.format_reader import Reader
from packer.inputs.formats import FORMATS, ending_of, format_by_name, format_of, known_formats, require_regular
from packer.inputs.hugging_face import (
    SPLITS,
    STATE,
    Found,
    choose_split,
    find_on_hub,
    find_saved,
    find_table,
    is_dataset,
    no_splits,
    table_reader,
)
from packer.inputs.loss_columns import Fields
from packer.inputs.token_files import BIN, OLMO_MASKS, OLMO_TOKENS
from packer.paths import PathList
from packer.shards.file_names import MANIFEST, WORK
from packer.stores import AnyPath, RemotePath, any_path, is_remote, pinned
from packer.stores.buckets import opened_in_parallel
from packer.stores.remote_path import listed

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Result = TypeVar("Result")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


_SIDE_FILES = {"dataset_info.json", "dataset_infos.json", "config.json", "manifest.json", STATE, SPLITS}
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_SEPARATOR = "[-._ 0-9]"

log = logging.getLogger(__name__)


def find_source(source: str | Path | PathList | Dataset | DatasetDict, split: str | None) -> Found:
    """Find the files or the table of a source.

    The split may be None if there is only one. A PackerError is raised if the path or split does not exist, or the
    source is packed, a SourceError if a folder of `save_to_disk` is damaged.
    """
    if isinstance(source, PathList):
        return _find_several(source, split)
    if not isinstance(source, (str, Path)):
        if not is_dataset(source):
            kind = type(source).__name__
            remedy = _MADE_OF.get(kind, "a path, a Dataset or a DatasetDict")
            raise PackerError(f"a source of type {kind} is not supported; give {remedy}")
        return find_table(source, split)
    found = _find_files(source, split)
    return found if found is not None else find_on_hub(str(source), split)


def _find_several(source: PathList, split: str | None) -> Found:
    """Find the files of several paths. A split is chosen in every folder, and does not concern single files."""
    named = set(map(str, source.paths))  # a shell that expands a wildcard names both files of an index
    paths = [path for path in source.paths if not (str(path).endswith(BIN) and str(_index_of(path)) in named)]
    folders = [_is_folder(path) for path in paths]
    if split is not None and not any(folders):
        raise no_splits(f"{source} are files", split)
    every = []
    for path, is_folder in zip(paths, folders, strict=True):
        found = _find_files(path, split if is_folder else None)
        if found is None:
            raise PackerError(
                f"{path}: no such file or folder (a Hub id cannot be one of several paths); check the path"
            )
        every.append(found)
    return join_files(str(source), every)


_MADE_OF = {
    "dict": "datasets.Dataset.from_dict(...)",
    "DataFrame": "datasets.Dataset.from_pandas(...)",
    "Table": "datasets.Dataset(table), or write it to a Parquet file",
    "IterableDataset": "datasets.Dataset.from_generator(dataset.__iter__), or write it to Parquet files",
    "generator": "datasets.Dataset.from_generator(function)",
}
"""Sources that users try by the name of their type, and what to give instead."""


def _index_of(path: AnyPath | str) -> AnyPath:
    """Return the path of the `.idx` beside a `.bin`; Megatron also names both files by their path without an ending."""
    path = any_path(path)
    return path.parent / f"{path.name.removesuffix(BIN)}.idx"


def _is_folder(path: str | Path) -> bool:
    if is_remote(path):
        return not any_path(path).is_file()
    return os.path.isdir(path)  # noqa: PTH112 (a name may be too long)


def _find_files(source: str | Path, split: str | None) -> Found | None:
    """Find the files of a path; return None if it does not exist and may be a Hub id."""
    path = any_path(source)
    with reading(str(source)):
        if isinstance(path, RemotePath):
            path = path.pinned() if path.is_file() else listed(path)
        is_folder, exists = path.is_dir(), path.exists()
        if not is_folder and (path.suffix == BIN or not exists) and _index_of(path).is_file():
            path, exists = _index_of(path), True
    if is_folder:
        return _find_in_folder(path, split)
    if exists:
        root, files = path.parent, [path]
    elif any(wildcard in str(source) for wildcard in "*?["):
        raise PackerError(
            f"{source}: no such file or folder; packer does not expand wildcards: leave that to the shell, or to "
            "Python's glob, and give the paths"
        )
    elif isinstance(path, RemotePath):
        raise PackerError(f"{source}: no such object, nor objects that begin with it; check the address")
    elif path.is_symlink():
        raise PackerError(f"{source}: a link that leads to no file or folder ({path.readlink()}); correct the link")
    elif _HUB_ID.fullmatch(str(source)) and not ending_of(str(source)):
        return None
    elif str(source).startswith(("https:/", "http:/")):
        raise PackerError(f"{source}: packer does not download files: download it, and name the local file")
    else:
        raise PackerError(f"{source}: no such file or folder, and not a Hub id like org/name; check the path")
    if split is not None:
        raise no_splits(f"{source} consists of files", split)
    return _name_files(str(source), root, files)


def _find_in_folder(folder: AnyPath, split: str | None) -> Found:
    with reading(str(folder)):
        if is_packed_folder(folder):
            raise PackerError(
                f"{folder} is packed already: pack the source that it was packed from, or what `packer tokenize` wrote"
            )
        if (folder / WORK).is_dir():
            raise PackerError(f"{folder} is an unfinished pack; give the dataset it is packed from")
        is_saved = (folder / STATE).exists() or (folder / SPLITS).exists()
    if is_saved:
        return find_saved(folder, split)
    files = files_in(str(folder), [folder])
    splits = splits_of(_relative(file, folder) for file in files)
    if splits:
        files = [folder / name for name in files_of_split(str(folder), len(files), splits, split)]
    elif split is not None:
        raise no_splits(f"{folder} consists of files", split)
    return _name_files(str(folder), folder, files)


def _name_files(name: str, root: AnyPath, files: Sequence[AnyPath]) -> Found:
    """Name the files of a source relative to its root. Raises a PackerError if there are none or one is special."""
    if not files:
        raise PackerError(f"{name}: no file to read; supported formats are {known_formats()}")
    named = [(pinned(file), _relative(file, root)) for file in files]
    for file in named:
        require_regular(*file)
    return Found(name, [SourceFile.of(*file) for file in named])


def files_in(name: str, folders: Iterable[AnyPath]) -> list[AnyPath]:
    """Return the files with a known ending in folders and their subfolders, except hidden ones, in bytewise order.

    A PackerError is raised if a folder cannot be read, or datasets of `save_to_disk` are among the subfolders.
    """
    roots = list(folders)
    found, saved = [], []
    for folder in _tree(roots):
        with reading(str(folder)):
            if folder not in roots and ((folder / STATE).exists() or (folder / SPLITS).exists()):
                saved.append(str(folder))
            found += [
                child
                for child in _children(folder)
                if ending_of(child.name) and child.name not in _SIDE_FILES and not child.is_dir()
            ]
    if saved:
        raise PackerError(
            f"{name} contains {len(saved)} saved dataset(s): {', '.join(sorted(saved)[:5])}; "
            "give one of them as the source"
        )
    names = set(map(str, found))
    return sorted(_main_files([file for file in found if not _is_part(file, names)]), key=_name_bytes)


def _is_part(file: AnyPath, names: Collection[str]) -> bool:
    """Whether a file in a folder is read with another: tokens with their `.idx`, or a mask with its tokens."""
    tokens = file.parent / file.name.replace(OLMO_MASKS, OLMO_TOKENS, 1)
    return (file.suffix == BIN and str(_index_of(file)) in names) or (file != tokens and str(tokens) in names)


def _main_files(files: list[AnyPath]) -> list[AnyPath]:
    """Leave out files that may be mere checkpoints, such as text, if there are files of other formats; see `alone`."""
    kinds = [format_by_name(file.name) for file in files]
    chosen = [kind for kind in FORMATS.values() if kind in kinds and not kind.alone]
    chosen = chosen or [kind for kind in FORMATS.values() if kind in kinds][:1]
    main = [file for file, kind in zip(files, kinds, strict=True) if kind in chosen]
    if len(main) < len(files):
        log.info(
            "%d of %d files are left out, because %s are read only where there is nothing else",
            len(files) - len(main),
            len(files),
            " and ".join(kind.title for kind in FORMATS.values() if kind in kinds and kind not in chosen),
        )
    return main


def _tree(folders: Iterable[AnyPath]) -> Iterator[AnyPath]:
    """Yield folders and their subfolders, each once although links may lead to it. Real folders come first."""
    real, links = deque(folders), deque[AnyPath]()
    seen: set[str] = set()
    repeated = []
    while real or links:
        folder = real.popleft() if real else links.popleft()
        key = os.path.realpath(folder) if isinstance(folder, Path) else str(folder)
        if key in seen:
            repeated.append(str(folder))
            continue
        seen.add(key)
        yield folder
        with reading(str(folder)):
            for child in _children(folder):
                if child.is_dir():
                    (links if child.is_symlink() else real).append(child)
    if repeated:
        log.info(
            "%d link(s) lead to folders that are read already, and are left out: %s",
            len(repeated),
            ", ".join(repeated[:3]),
        )


def _children(folder: AnyPath) -> list[AnyPath]:
    return sorted((child for child in folder.iterdir() if not child.name.startswith(".")), key=_name_bytes)


def _name_bytes(path: AnyPath) -> bytes:
    return os.fsencode(str(path))


def join_files(name: str, found: Sequence[Found]) -> Found:
    """Join the files that were found at several paths, in this order. Raises a PackerError if a file is at two paths.

    Files are named relative to their deepest common folder, so names do not change when the files are moved together.
    """
    origins: dict[str, str] = {}
    for each in found:
        real = [os.path.realpath(file.path) if isinstance(file.path, Path) else str(file.path) for file in each.files]
        for file in real:
            if file in origins:
                where = f"at {origins[file]} and at {each.name}" if origins[file] != each.name else f"at {each.name}"
                raise PackerError(f"{file} is given twice, {where}: leave one of them out")
        origins |= dict.fromkeys(real, each.name)
    files = [file for each in found for file in each.files]
    places = [_place(file.stored) for file in files]
    root = os.path.commonpath([os.path.dirname(place) for place in places])  # noqa: PTH120
    pad_ids = (each.pad_id for each in found)
    names = [Path(place).relative_to(root).as_posix() for place in places]
    return Found(
        name,
        [replace(file, name=name) for file, name in zip(files, names, strict=True)],
        pad_id=next((pad_id for pad_id in pad_ids if pad_id is not None), None),
    )


def _place(path: AnyPath) -> str:
    """Return an absolute path. The path of an object begins with its store."""
    return os.path.abspath(path) if isinstance(path, Path) else f"/{path}"  # noqa: PTH100 (resolve would follow links)


def splits_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort files, named relative to the source with "/" between folders, into splits by their names.

    The first of three rules that matches any file is applied to all of them; files that it does not match are in no
    split:

    1. shards such as `data/train-00000-of-00002.parquet`, in which any word is a split;
    2. folders named after a split, such as `train/a.jsonl` or `en-dev.v2/x/a.jsonl`;
    3. files named after a split, such as `test.jsonl`, `web_train_3.parquet` or `sub/valid-0.arrow`.

    The splits train, validation and test come first, the others are sorted; their files keep the order of `names`. A
    file that is named after two splits is in both. Without a match, there are no splits.
    """
    names = list(names)
    shards = {name: match[1] for name in names if (match := _SHARD.fullmatch(name))}
    if shards:
        found = set(shards.values())
        ordered = [split for split in _KEYWORDS if split in found] + sorted(found - {*_KEYWORDS})
        return {split: [name for name in shards if shards[name] == split] for split in ordered}
    for after in (rf"(?:{_SEPARATOR}[^/]*)?/", rf"{_SEPARATOR}[^/]*$"):  # the words in a folder's, then a file's name
        begin = rf"(?:^|/)(?:[^/]*{_SEPARATOR})?"
        patterns = {split: re.compile(f"{begin}(?:{'|'.join(words)}){after}") for split, words in _KEYWORDS.items()}
        splits = {split: [name for name in names if pattern.search(name)] for split, pattern in patterns.items()}
        if any(splits.values()):
            return {split: files for split, files in splits.items() if files}
    return {}


def files_of_split(folder: str, files: int, splits: Mapping[str, Sequence[str]], split: str | None) -> Sequence[str]:
    """Return the files of the requested split, or of the only one. `files` is the number of all files.

    Raises an OtherSourceError if the split does not exist, or must be chosen.
    """
    outside = files - len({name for names in splits.values() for name in names})
    if split is None and len(splits) > 1:
        raise OtherSourceError(
            f"{folder}: its files form {len(splits)} splits ({', '.join(splits)})",
            f"choose one, as in --split {next(iter(splits))}, or name the files",
        )
    if split is None and outside:
        ((only, names),) = splits.items()
        raise OtherSourceError(
            f"{folder}: by their names, {len(names)} of {files} files are in the split {only}, such as {names[0]}, and "
            f"{outside} in no split",
            f"choose that split with --split {only}, or name the files, as in {folder}/*",
        )
    chosen = choose_split(folder, list(splits), split)
    if outside:
        log.info("%d of %d files in %s are in no split by their names, and are left out", outside, files, folder)
    return splits[chosen]


def _relative(file: AnyPath, root: AnyPath) -> str:
    return PurePosixPath(str(file)).relative_to(PurePosixPath(str(root))).as_posix()


def is_packed_folder(folder: AnyPath) -> bool:
    """Whether a folder holds a packed dataset, rather than one with a manifest.json of another kind."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return (folder / STATE).exists()  # damaged: `read_manifest` explains how
    return isinstance(manifest, dict) and "format_version" in manifest


def for_each_file(task: Callable[[type[Reader], SourceFile], Result], found: Found) -> list[Result]:
    """Call a function with the reader class of each file and the file, in threads if files are in object storage."""

    def call(file: SourceFile) -> Result:
        return task(_reader_of(found, file), file)

    if any(isinstance(file.path, RemotePath) for file in found.files):
        return opened_in_parallel(call, found.files)
    return [call(file) for file in found.files]


def readers_of(found: Found) -> list[Reader]:
    """Return a reader of the records of each file, or one of a table in memory."""
    if found.table is not None:
        return [table_reader(found)]
    return for_each_file(lambda kind, file: kind.open(file), found)


def first_fields(found: Found) -> Fields:
    """Return the schema of the first file with columns, or its first record."""
    if found.table is not None:
        return found.table.table.schema
    fields = (_reader_of(found, file).first_fields(file) for file in found.files)
    return next(filter(None, fields), {})


def _reader_of(found: Found, file: SourceFile) -> type[Reader]:
    return (FORMATS["arrow"] if found.saved else format_of(file.stored, file.name)).reader_class
