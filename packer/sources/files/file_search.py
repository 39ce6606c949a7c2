"""Find the files of a source in a folder or by a glob; every folder is searched once, whatever links lead to it."""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from packer.errors import PackerError
from packer.sources.documents import reading
from packer.sources.files.hugging_face import SPLITS, STATE
from packer.sources.formats import FORMATS, ending_of, format_by_name
from packer.stores import AnyPath, RemotePath, any_path
from packer.stores.listing import listed

_SIDE_FILES = {"dataset_info.json", "dataset_infos.json", "config.json", "manifest.json", STATE, SPLITS}
log = logging.getLogger(__name__)


def files_in(name: str, folders: Iterable[AnyPath]) -> list[AnyPath]:
    """Return the files with a known ending in folders and their subfolders, except hidden ones, in bytewise order.

    Args:
        name: name of the source in messages.
        folders: folders to search.

    Raises:
        PackerError: a folder cannot be read, or datasets of `save_to_disk` are among the subfolders.
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
    return sorted(_main_files(found), key=_name_bytes)


def _main_files(files: list[AnyPath]) -> list[AnyPath]:
    """Leave out files that may be mere notes, such as text, if there are files of other formats; see `alone`."""
    kinds = [format_by_name(file.name) for file in files]
    chosen = [kind for kind in FORMATS.values() if kind in kinds and not kind.alone]
    chosen = chosen or [kind for kind in FORMATS.values() if kind in kinds][:1]
    main = [file for file, kind in zip(files, kinds, strict=True) if kind in chosen]
    if len(main) < len(files):
        log.info(
            "%d of %d files are CSV or text among data in other formats, and are left out",
            len(files) - len(main),
            len(files),
        )
    return main


def matches_of(pattern: AnyPath) -> tuple[AnyPath, list[AnyPath]]:
    """Return the folder before the first wildcard of a glob, and the files that match, in bytewise order.

    A matching folder stands for the files in it, and `**` for any subfolders.

    Raises:
        PackerError: a folder cannot be read, or datasets of `save_to_disk` are among the subfolders.
    """
    before = list(_before_wildcards(pattern))
    fixed: AnyPath = Path(*before)
    if isinstance(pattern, RemotePath):
        with reading(str(pattern)):
            fixed = listed(any_path("/".join(before)))  # type: ignore[arg-type]
    *inner, last = pattern.parts[len(fixed.parts) :]
    folders = [fixed]
    with reading(str(pattern)):
        for part in inner:
            found = _tree(folders) if part == "**" else (path for path in _matching(folders, part) if path.is_dir())
            folders = list(found)
        matches = folders if last == "**" else list(_matching(folders, last))
        is_folder = {path: path.is_dir() for path in matches}
    inside = files_in(str(pattern), [path for path in matches if is_folder[path]])
    files = {*inside, *(path for path in matches if not is_folder[path])}
    return fixed, sorted(files, key=_name_bytes)


def _tree(folders: Iterable[AnyPath]) -> Iterator[AnyPath]:
    """Yield folders and their subfolders, each once whatever links lead to it; real folders before linked ones."""
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


def _matching(folders: Iterable[AnyPath], part: str) -> Iterator[AnyPath]:
    """Yield what one part of a glob matches in these folders; hidden names only if the part begins with a dot."""
    for folder in folders:
        if not glob.has_magic(part):
            if (folder / part).exists():
                yield folder / part
            continue
        with reading(str(folder)):
            names = fnmatch.filter((child.name for child in folder.iterdir()), part)
        for name in names:
            if part.startswith(".") or not name.startswith("."):
                yield folder / name


def _before_wildcards(pattern: AnyPath) -> Iterator[str]:
    """Yield the parts of a glob before its first wildcard; file names are relative to them."""
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            return
        yield part


def _name_bytes(path: AnyPath) -> bytes:
    return os.fsencode(str(path))
