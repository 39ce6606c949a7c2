"""Find the files of a source: a file, folder, saved dataset, object in storage, or Hub id.

Every folder is searched once, even if several links lead to it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Union

from packer.errors import PackerError
from packer.shards.files import MANIFEST, WORK
from packer.sources.documents import Found, SourceFile, reading
from packer.sources.format_reader import BIN, OLMO_MASKS, OLMO_TOKENS
from packer.sources.formats import FORMATS, ending_of, format_by_name, is_data, known_formats, require_regular
from packer.sources.hugging_face import (
    PACKED_ALREADY,
    README,
    SPLITS,
    STATE,
    Configuration,
    choose_configuration,
    configurations_in,
    files_of_configuration,
    files_of_split,
    find_on_hub,
    find_saved,
    find_table,
    is_dataset,
    no_splits,
    splits_of,
)
from packer.stores import AnyPath, RemotePath, any_path, is_remote, pinned
from packer.stores.hub import HUB_ID
from packer.stores.paths import PathList, located, split_configuration
from packer.stores.remote_path import listed

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_DEPTH = 5  # number of parent folders that are checked; a table may have a data folder and three levels of partitions

log = logging.getLogger(__name__)

SourceLike = Union[str, Path, PathList, "Dataset", "DatasetDict"]
"""A path, several paths, a Hub id, or a `datasets` object."""


def one_source(source: SourceLike | Sequence[str | Path]) -> SourceLike:
    """Combine several paths into one source, and replace a result of packer by its folder. Returns others unchanged.

    Raises a PackerError, with the remedy, for other lists.
    """
    source = located(source)
    if isinstance(source, str) and _is_text(source):
        raise PackerError(
            f"{source[:40]!r}...: no such file or folder; if it is a text, give "
            "datasets.Dataset.from_dict({'text': [it]})"
        )
    if not isinstance(source, (list, tuple)):
        return source
    if not source:
        raise PackerError("the list of paths is empty: give at least one file or folder")
    first = source[0]
    if isinstance(first, dict):
        raise PackerError("a list of records is not supported; give datasets.Dataset.from_list(...)")
    if isinstance(first, list) or (isinstance(first, str) and _is_text(first)):
        column = (
            "text" if isinstance(first, str) else "messages" if first and isinstance(first[0], dict) else "input_ids"
        )
        what = {"text": "texts", "messages": "chats", "input_ids": "lists of tokens"}[column]
        raise PackerError(f"a list of {what} is not supported; give datasets.Dataset.from_dict({{'{column}': [...]}})")
    paths = [each for each in source if isinstance(each, (str, Path))]
    if not paths or len(paths) < len(source):
        raise PackerError(
            "a list of sources holds paths, which are one source, as in ['a.jsonl', 'b.jsonl']; to mix datasets, pack "
            "each of them, and load them together, as in packer.load({'web-packed-4096': 0.7, 'code-packed-4096': 0.3})"
        )
    return paths[0] if len(paths) == 1 else PathList(tuple(paths))


def _is_text(name: str) -> bool:
    """Whether a string is text rather than a path: no file has, or could have, this name."""
    looks_like_text = "\n" in name or (" " in name and not ending_of(name))
    return looks_like_text and not is_remote(name) and not os.path.lexists(name)


def source_name(source: SourceLike) -> str:
    """Return the name of a source: the last part of its path, or its Hub id."""
    if isinstance(source, PathList):
        return str(PathList(tuple(map(source_name, source.paths))))
    if not isinstance(source, (str, Path)):
        return "dataset"
    path = Path(source)
    if str(source).count("/") == 1 and not Path(split_configuration(source)[0]).exists():
        return str(source)
    return path.name if path.name not in ("", "..") else path.resolve().name


def find_source(source: SourceLike, split: str | None) -> Found:
    """Find the files or the table of a source.

    The split may be None if there is only one. Raises a PackerError if the path or split does not exist, or if the
    source is packed. Raises a SourceError if a folder written by `save_to_disk` is damaged.
    """
    if isinstance(source, PathList):
        return _find_several(source, split)
    if not isinstance(source, (str, Path)):
        if not is_dataset(source):
            kind = type(source).__name__
            remedy = _MADE_OF.get(kind, "a path, a Dataset or a DatasetDict")
            raise PackerError(f"a source of type {kind} is not supported; give {remedy}")
        return find_table(source, split)
    _refuse_foreign_above([source])
    found = _find_files(source, split)
    return found if found is not None else find_on_hub(str(source), split)


def _find_several(source: PathList, split: str | None) -> Found:
    """Find the files of several paths. The split is selected in every folder; it does not apply to single files."""
    named = set(map(str, source.paths))  # expanding a wildcard gives both files of an index
    paths = [path for path in source.paths if not (str(path).endswith(BIN) and str(_index_of(path)) in named)]
    folders = [_is_folder(path) for path in paths]
    if split is not None and not any(folders):
        raise no_splits(f"{source} are files", split)
    _refuse_foreign_above(paths)
    every = []
    for path, is_folder in zip(paths, folders, strict=True):
        found = _find_files(path, split if is_folder else None)
        if found is None:
            raise PackerError(
                f"{path}: no such file or folder (a Hub id cannot be one of several paths); check the path"
            )
        every.append(found)
    return _joined(str(source), every)


_MADE_OF = {
    "dict": "datasets.Dataset.from_dict(...)",
    "DataFrame": "datasets.Dataset.from_pandas(...)",
    "Table": "datasets.Dataset(table), or write it to a Parquet file",
    "IterableDataset": "datasets.Dataset.from_generator(dataset.__iter__), or write it to Parquet files",
    "generator": "datasets.Dataset.from_generator(function)",
}
"""Objects that users may pass as a source by mistake: name of the type -> remedy."""


def _index_of(path: AnyPath | str) -> AnyPath:
    """Return the path of the `.idx` next to a `.bin`. In Megatron, a path without ending means both files."""
    path = any_path(path)
    return path.parent / f"{path.name.removesuffix(BIN)}.idx"


def _is_folder(path: str | Path) -> bool:
    if is_remote(path):
        return not any_path(path).is_file()
    return os.path.isdir(split_configuration(path)[0])  # noqa: PTH112 (a name may be too long)


def _exists(path: AnyPath) -> bool:
    """Whether a path exists. Raises an OSError if the system cannot tell; since Python 3.14, `Path.exists` says no."""
    if isinstance(path, RemotePath):
        return path.exists()
    try:
        path.stat()
    except ValueError:  # a null byte in the name
        return False
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return False
    return True


def _refuse_foreign_above(paths: Iterable[str | Path]) -> None:
    """Raise a PackerError if a path is inside a table of another tool. Skips folders that the user cannot read."""
    seen = set[AnyPath]()
    for path in map(any_path, paths):
        folder = path.absolute()
        for _ in range(_DEPTH):
            folder = folder.parent
            if folder in seen:
                break
            seen.add(folder)
            try:
                names = {child.name for child in folder.iterdir()}
            except OSError:
                break
            _refuse_foreign(folder, names)


def _find_files(source: str | Path, split: str | None) -> Found | None:
    """Find the files of a path. Returns None if the path does not exist and may be a Hub id."""
    path = any_path(source)
    with reading(str(source)):
        if isinstance(path, RemotePath):
            path = path.pinned() if path.is_file() else listed(path)
        is_folder, exists = path.is_dir(), _exists(path)
        if not is_folder and (path.suffix == BIN or not exists) and _index_of(path).is_file():
            path, exists = _index_of(path), True
    if is_folder:
        return _find_in_folder(path, split)
    place, config = split_configuration(source)
    if config and not exists:
        inside = any_path(place)
        inside = listed(inside) if isinstance(inside, RemotePath) else inside
        if inside.is_dir():
            return _find_in_folder(inside, split, config)
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
    elif HUB_ID.fullmatch(place) and not ending_of(place):
        return None
    elif str(source).startswith(("https:/", "http:/")):
        raise PackerError(f"{source}: packer does not download files: download it, and name the local file")
    else:
        raise PackerError(f"{source}: no such file or folder, and not a Hub id like org/name; check the path")
    if split is not None:
        raise no_splits(f"{source} consists of files", split)
    return _name_files(str(source), root, files)


def _find_in_folder(folder: AnyPath, split: str | None, config: str | None = None) -> Found:
    with reading(str(folder)):
        if _is_packed(folder):
            raise PackerError(f"{folder} {PACKED_ALREADY}")
        if (folder / WORK).is_dir():
            raise PackerError(f"{folder} is an unfinished pack; give the dataset it is packed from")
        is_saved = (folder / STATE).exists() or (folder / SPLITS).exists()
    if is_saved and config is None:
        return find_saved(folder, split)
    described = {} if is_saved else configurations_in(folder)
    if described or config is not None:
        return _find_configuration(folder, choose_configuration(str(folder), described, config), split)
    files = files_in(folder)
    splits = splits_of(_relative(file, folder) for file in files)
    if splits:
        files = [folder / name for name in files_of_split(str(folder), len(files), splits, split)]
    elif split is not None:
        raise no_splits(f"{folder} consists of files", split)
    return _name_files(str(folder), folder, files)


def _find_configuration(folder: AnyPath, chosen: Configuration, split: str | None) -> Found:
    """Find the files of a configuration in a README.md."""
    name = f"{folder}:{chosen.name}"
    every = [child for _, children in _tree(folder) for child in children if not child.is_dir()]
    names = {_relative(file, folder): None for file in sorted(every, key=_name_bytes)}
    files = [folder / file for file in files_of_configuration(name, chosen, names, split)]
    given = set(map(str, files))
    files = _main_files([file for file in files if not _is_part(file, given)])
    found = sum(is_data(file.name) for file in every)
    if len(files) < found:
        log.info("%s: %d of %d files are read, as README.md says", name, len(files), found)
    return _name_files(name, folder, files)


def _name_files(name: str, root: AnyPath, files: Sequence[AnyPath]) -> Found:
    """Name files relative to the root of the source. Raises a PackerError for no files, pipes and devices."""
    if not files:
        raise PackerError(f"{name}: no file to read; supported formats are {known_formats()}")
    named = [(pinned(file), _relative(file, root)) for file in files]
    for file in named:
        require_regular(*file)
    return Found(name, [SourceFile.of(*file) for file in named])


def files_in(root: AnyPath) -> list[AnyPath]:
    """Return the files with a known ending in a folder and its subfolders, except hidden ones, in bytewise order.

    Raises a PackerError if a folder cannot be read, or if a subfolder was written by `save_to_disk`.
    """
    found, saved, described, others = list[AnyPath](), list[str](), list[str](), list[AnyPath]()
    for folder, children in _tree(root):
        with reading(str(folder)):
            names = {child.name for child in children}
            if folder != root and not names.isdisjoint((STATE, SPLITS)):
                saved.append(str(folder))
            if folder != root and README in names and configurations_in(folder):
                described.append(str(folder))
            files = [child for child in children if not child.is_dir()]
            found += [file for file in files if is_data(file.name)]
            others += [file for file in files if not ending_of(file.name) and file.name != README]
    for what, folders_inside in (("saved dataset(s)", saved), ("folder(s) with configs in README.md", described)):
        if folders_inside:
            raise PackerError(
                f"{root} contains {len(folders_inside)} {what}: {', '.join(sorted(folders_inside)[:5])}; "
                "give one of them as the source"
            )
    if len(others) > len(found) > 0:
        endings = sorted({file.suffix or file.name for file in others})
        log.info(
            "%d of %d files in %s are left out, because no format that is read has their endings: %s",
            len(others),
            len(others) + len(found),
            root,
            ", ".join(endings[:5]) + (", ..." if len(endings) > 5 else ""),
        )
    given = set(map(str, found))
    return sorted(_main_files([file for file in found if not _is_part(file, given)]), key=_name_bytes)


def _is_part(file: AnyPath, names: Collection[str]) -> bool:
    """Whether a file is read together with another one: tokens with their `.idx`, or a mask with its tokens."""
    tokens = file.parent / file.name.replace(OLMO_MASKS, OLMO_TOKENS, 1)
    return (file.suffix == BIN and str(_index_of(file)) in names) or (file != tokens and str(tokens) in names)


def _main_files(files: list[AnyPath]) -> list[AnyPath]:
    """Leave out text files, which may be mere notes, if there are files of other formats; see `InputFormat.alone`."""
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


def _tree(root: AnyPath) -> Iterator[tuple[AnyPath, list[AnyPath]]]:
    """Yield a folder and its subfolders, each once despite links, with all their entries that are not hidden.

    Real folders come before links. Raises a PackerError for a folder of another tool.
    """
    real, links = deque([root]), deque[AnyPath]()
    seen: set[str] = set()
    repeated = []
    while real or links:
        folder = real.popleft() if real else links.popleft()
        key = os.path.realpath(folder) if isinstance(folder, Path) else str(folder)
        if key in seen:
            repeated.append(str(folder))
            continue
        seen.add(key)
        with reading(str(folder)):
            inside = sorted(folder.iterdir(), key=_name_bytes)
            _refuse_foreign(folder, {child.name for child in inside})
            children = [child for child in inside if not child.name.startswith(".")]
            for child in children:
                if child.is_dir():
                    (links if child.is_symlink() else real).append(child)
        yield folder, children
    if repeated:
        log.info(
            "%d link(s) lead to folders that are read already, and are left out: %s",
            len(repeated),
            ", ".join(repeated[:3]),
        )


def _name_bytes(path: AnyPath) -> bytes:
    return os.fsencode(str(path))


def _joined(name: str, found: Sequence[Found]) -> Found:
    """Join the files found at several paths, in this order. Raises a PackerError if a file occurs twice.

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
    """Return an absolute path. For an object, it begins with its store."""
    return os.path.abspath(path) if isinstance(path, Path) else f"/{path}"  # noqa: PTH100 (resolve would follow links)


def _relative(file: AnyPath, root: AnyPath) -> str:
    return PurePosixPath(str(file)).relative_to(PurePosixPath(str(root))).as_posix()


def _is_packed(folder: AnyPath) -> bool:
    """Whether a folder holds a packed dataset. A manifest.json of another kind does not count."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return (folder / STATE).exists()  # a damaged dataset; `read_manifest` explains the fault
    return isinstance(manifest, dict) and "format_version" in manifest


class Foreign(NamedTuple):
    """A kind of folder of another tool. In `code`, PATH is the folder's path and NAME its name."""

    what: str
    marks: tuple[str, ...]  # names in the folder or, after a slash, in a subfolder
    words: tuple[bytes, ...]  # words that a marking file must contain
    package: str  # package that the code needs; if empty, `code` is the remedy in words
    code: str


_PARQUET = 'import {}, pyarrow.dataset as d; d.write_dataset({}, "NAME-parquet", format="parquet")'.format
_SAVED = 'import {0}, datasets as d; d.Dataset.from_generator(lambda: {0}.{1}).save_to_disk("NAME-saved")'.format

# fmt: off
FOREIGN = tuple(Foreign(*each) for each in (
    ("a Delta table, whose log says which rows are deleted", ("_delta_log",), (), "deltalake", _PARQUET(
        "deltalake, pyarrow", 'pyarrow.RecordBatchReader.from_stream(deltalake.QueryBuilder().register("t", '
        'deltalake.DeltaTable("PATH")).execute("select * from t"))')),
    ("an Iceberg table, whose metadata says which rows are deleted", ("metadata/*.metadata.json",), (), "pyiceberg",
        _PARQUET("glob, pyiceberg.table", 'pyiceberg.table.StaticTable.from_metadata(max(glob.glob('
        '"PATH/metadata/*.metadata.json"), key=lambda name: (len(name), name))).scan().to_arrow_batch_reader()')),
    ("a Hudi table, whose timeline says which rows are replaced", (".hoodie",), (), "hudi",
        _PARQUET("hudi, os", 'hudi.HudiTable(os.path.abspath("PATH")).read()')),
    ("a Lance dataset, whose versions say which rows are deleted", ("_versions/*.manifest",), (), "pylance",
        _PARQUET("lance", 'lance.dataset("PATH").scanner().to_reader()')),
    ("a litdata dataset of tokens", ("index.json",), (b'"chunk_bytes"', b'"TokensLoader"'), "litdata",
        'import litdata, numpy; numpy.save("NAME.npy", numpy.fromiter(map(int, litdata.StreamingDataset("PATH", '
        'item_loader=litdata.TokensLoader(block_size=1))), "int32"))'),
    ("a litdata dataset", ("index.json",), (b'"chunk_bytes"',), "litdata",
        _SAVED("litdata", 'StreamingDataset("PATH")')),
    ("an MDS dataset", ("index.json",), (b'"shards"', b'"raw_data"'), "mosaicml-streaming",
        _SAVED("streaming", 'StreamingDataset(local="PATH", batch_size=1)')),
    ("a zarr store", (".zgroup", ".zarray", "zarr.json"), (), "zarr",
        'import zarr, numpy; a = zarr.open("PATH", mode="r"); numpy.save("NAME.npy", (a if "dtype" in dir(a) else '
        'a["input_ids"])[:])'),
    ("an unfinished output of Spark", ("_temporary",), (), "",
        "run its job again, or let it finish, which removes the folder _temporary and writes _SUCCESS"),
    ("an output of Spark's Structured Streaming, whose log says which files count", ("_spark_metadata",), (), "",
        'let Spark write what counts, by spark.read.parquet("PATH").write.parquet("NAME-parquet"), and pack that'),
))
# fmt: on
"""All kinds; the first match is named."""


def _refuse_foreign(folder: AnyPath, names: Collection[str]) -> None:
    """Raise a PackerError for a folder of another tool; `names` are all entries of the folder."""
    for kind in FOREIGN:
        for first, _, inside in (mark.partition("/") for mark in kind.marks):
            if first in names and _holds(folder / first, inside, kind.words):
                place, before = (folder.name, "copy it here, and ") if isinstance(folder, RemotePath) else (folder, "")
                remedy = f"convert it by python -c '{kind.code}' (package {kind.package}), and pack what that writes"
                remedy = (remedy if kind.package else kind.code).replace("PATH", str(place))
                raise PackerError(f"{folder} is {kind.what}: {before}{remedy.replace('NAME', folder.name or 'data')}")


def _holds(path: AnyPath, inside: str, words: Collection[bytes]) -> bool:
    with reading(str(path)):
        if inside:
            return path.is_dir() and any(fnmatchcase(child.name, inside) for child in path.iterdir())
        if not words:
            return True
        with path.open("rb") as file:
            content = file.read(64 << 20)  # marking files are shorter, but an index.json of data may be larger
    return all(word in content for word in words)
