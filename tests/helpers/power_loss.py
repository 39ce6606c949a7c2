"""Power failures: what a disk may hold after one, at any operation of a command, and what the same command makes of it.

A kill loses nothing that was written; a power failure loses what was not synced. `Recorder` logs every operation of a
command on the disk: files made, synced, renamed, linked and removed, and folders made, synced and removed, with what
files held. `Disk` rebuilds the trees that a file system may have afterwards, under the weakest promises of POSIX (as in
Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014):

- a file that was not synced has what it had when it was, or nothing, or its beginning, or zeros, or all of it, whatever
  its name: a rename may come before the data;
- a name that was given or taken since its folder was synced is old or new, each by itself.

One thing more than POSIX is assumed, because every journal does so: a rename is on the disk as a whole or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = 0
"""Number of the folder that everything happens in; other files and folders have their inodes."""


class Recorder:
    """Logs what this process does to the disk below a folder, from `install` on.

    Several processes may log to the same file: each operation and its line are made under a lock.
    """

    def __init__(self, root: Path, log: Path) -> None:
        self._root, self._log = root.resolve(), log
        self._blobs = log.with_name(log.name + ".blobs")
        self._blobs.mkdir(exist_ok=True)
        self._lock = threading.RLock()
        self._opened: set[Path] = set()  # for writing, perhaps made
        self._known = {inode for inode, _ in _walk(self._root)}

    def install(self, *, exchanges: bool) -> None:
        """Log from now on; `exchanges` says whether the file system can exchange two folders."""
        from packer.output import replace_folder

        for name in ("rename", "replace"):
            setattr(os, name, self._wrap(getattr(os, name), self._renamed))
        for name in ("unlink", "remove", "rmdir"):
            setattr(os, name, self._wrap(getattr(os, name), self._removed))
        os.link = self._wrap(os.link, self._linked)
        os.mkdir = self._wrap(os.mkdir, self._made)
        os.fsync = self._wrap(os.fsync, self._synced)
        replace_folder.exchange = (
            self._wrap(replace_folder.exchange, self._exchanged) if exchanges else lambda one, other: False
        )
        sys.addaudithook(self._on_open)

    def _on_open(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = Path(os.path.abspath(os.fsdecode(arguments[0])))  # noqa: PTH100 (links must stay)
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self._root in path.parents:
                with self._alone():
                    if path.is_file():
                        self._content(path)  # before it may be cut
                    self._opened.add(path)

    def _wrap(self, call: Callable[..., Any], tell: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            with self._alone():
                self._see_opened()
                return tell(call, *arguments, **options)

        return wrapped

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock, self._log.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, **operation: Any) -> None:
        with self._log.open("ab") as file:
            file.write((json.dumps(operation) + "\n").encode())

    def _see_opened(self) -> None:
        """Log files that were made since the last operation."""
        for path in sorted(self._opened):
            if path.is_file():
                self._see(path)
        self._opened = set()

    def _see(self, path: Path) -> int:
        """Return the inode of a path; log that it was made if it was not known."""
        inode = path.lstat().st_ino
        if inode not in self._known:
            self._known.add(inode)
            self._write(kind="name", folder=self._folder(path), name=path.name, inode=inode)
        return inode

    def _folder(self, path: Path) -> int:
        return ROOT if path.parent == self._root else path.parent.lstat().st_ino

    def _content(self, path: Path, *, synced: bool = False) -> None:
        content = path.read_bytes()
        name = hashlib.sha256(content).hexdigest()
        (self._blobs / name).write_bytes(content)
        self._write(kind="content", inode=path.lstat().st_ino, blob=name, synced=synced)

    def _path(self, path: Any, folder: int | None) -> Path:
        if folder is not None and folder >= 0:
            path = Path(f"/proc/self/fd/{folder}").readlink() / os.fsdecode(path)
        return Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 (links must stay)

    def _is_ours(self, *paths: Path) -> bool:
        return all(self._root in path.parents for path in paths)

    def _renamed(self, call: Callable[..., Any], source: Any, target: Any, **options: Any) -> Any:
        one, other = self._path(source, options.get("src_dir_fd")), self._path(target, options.get("dst_dir_fd"))
        if not self._is_ours(one, other):
            return call(source, target, **options)
        inode = self._see(one) if os.path.lexists(one) else None
        result = call(source, target, **options)
        if other.is_file():
            self._content(other)
        self._write(
            kind="rename", folder=self._folder(one), name=one.name, to=self._folder(other), new=other.name, inode=inode
        )
        return result

    def _removed(self, call: Callable[..., Any], path: Any, **options: Any) -> Any:
        found = self._path(path, options.get("dir_fd"))
        if not self._is_ours(found) or not os.path.lexists(found):
            return call(path, **options)
        inode = self._see(found)
        if found.is_file():
            self._content(found)
        result = call(path, **options)
        self._write(kind="unname", folder=self._folder(found), name=found.name, inode=inode)
        return result

    def _linked(self, call: Callable[..., Any], source: Any, target: Any, **options: Any) -> Any:
        result = call(source, target, **options)
        other = self._path(target, None)
        if self._is_ours(other):
            self._content(other)
            self._write(kind="name", folder=self._folder(other), name=other.name, inode=other.lstat().st_ino)
        return result

    def _made(self, call: Callable[..., Any], path: Any, *arguments: Any, **options: Any) -> Any:
        result = call(path, *arguments, **options)
        found = self._path(path, options.get("dir_fd"))
        if self._is_ours(found):
            self._known.add(found.lstat().st_ino)
            self._write(
                kind="name", folder=self._folder(found), name=found.name, inode=found.lstat().st_ino, is_folder=True
            )
        return result

    def _synced(self, call: Callable[..., Any], descriptor: int) -> Any:
        result = call(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path == self._root:
            self._write(kind="sync", inode=ROOT)
        elif self._is_ours(path):
            if path.is_dir():
                self._write(kind="sync", inode=path.lstat().st_ino)
            elif path.exists():
                self._see(path)
                self._content(path, synced=True)
        return result

    def _exchanged(self, call: Callable[..., Any], one: Path, other: Path) -> Any:
        inodes = self._see(one), self._see(other)
        result = call(one, other)
        if result:
            paths = self._path(one, None), self._path(other, None)
            self._write(
                kind="exchange", folder=self._folder(paths[0]), name=paths[0].name, to=self._folder(paths[1]),
                new=paths[1].name, inode=inodes[0], other=inodes[1],
            )  # fmt: skip
        return result


def _walk(root: Path) -> Iterator[tuple[int, Path]]:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            yield path.lstat().st_ino, path


@dataclass
class Disk:
    """A disk before a command, and the operations of the command."""

    names: dict[tuple[int, str], int] = field(default_factory=dict)
    """Inode of each (folder, name) before the command."""

    folders: set[int] = field(default_factory=lambda: {ROOT})
    contents: dict[int, bytes] = field(default_factory=dict)
    """Content of each file before the command, by inode."""

    operations: list[dict[str, Any]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def before(cls, root: Path) -> Disk:
        """Return what is in a folder now."""
        disk = cls()
        for inode, path in _walk(root):
            folder = ROOT if path.parent == root else path.parent.lstat().st_ino
            disk.names[folder, path.name] = inode
            if path.is_dir():
                disk.folders.add(inode)
            else:
                disk.contents[inode] = path.read_bytes()
        return disk

    def read(self, log: Path) -> None:
        """Read the operations that a `Recorder` logged."""
        self.operations = [json.loads(line) for line in log.read_bytes().splitlines()]
        self.blobs = {path.name: path.read_bytes() for path in log.with_name(log.name + ".blobs").iterdir()}
        self.folders |= {operation["inode"] for operation in self.operations if operation.get("is_folder")}

    def after_failure(self, end: int, draw: random.Random) -> dict[str, bytes | None]:
        """Return a tree that may be there after a failure before operation `end`: contents, None for folders, by path.

        One state in three has its names in the order in which they were given, as with most journals.
        """
        done = self.operations[:end]
        open_names = self._open_names(done)
        likely = draw.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        lasting = {
            number
            for number in open_names
            if draw.random() < (0.9 if done[number].get("is_folder") else likely)  # or little is there
        }
        if draw.random() < 1 / 3:
            last = draw.randrange(len(open_names) + 1)
            lasting = set(open_names[:last])
        names = dict(self.names)
        for number, operation in enumerate(done):
            if operation["kind"] in ("name", "unname", "rename", "exchange") and (
                number not in open_names or number in lasting
            ):
                _apply(operation, names)
        return self._tree(names, end, draw)

    def _open_names(self, done: list[dict[str, Any]]) -> list[int]:
        """Return the numbers of operations on names none of whose folders was synced since."""
        synced: dict[int, int] = {}
        for number, operation in enumerate(done):
            if operation["kind"] == "sync":
                synced[operation["inode"]] = number
        return [
            number
            for number, operation in enumerate(done)
            if operation["kind"] in ("name", "unname", "rename", "exchange")
            and not any(synced.get(operation.get(each, -1), -1) > number for each in ("folder", "to"))
        ]

    def _tree(self, names: Mapping[tuple[int, str], int], end: int, draw: random.Random) -> dict[str, bytes | None]:
        tree: dict[str, bytes | None] = {}
        chosen: dict[int, bytes] = {}

        def fill(folder: int, prefix: str) -> None:
            for (parent, name), inode in sorted(names.items()):
                if parent == folder:
                    if inode in self.folders:
                        tree[prefix + name] = None
                        fill(inode, f"{prefix}{name}/")
                    else:
                        if inode not in chosen:
                            chosen[inode] = draw.choice(self._possible(inode, end))
                        tree[prefix + name] = chosen[inode]

        fill(ROOT, "")
        return tree

    def _possible(self, inode: int, end: int) -> list[bytes]:
        """Return the contents that a file may have after a failure before operation `end`."""
        safe = self.contents.get(inode)
        newest = None  # the first that is seen after the last sync, or what it is to have
        for number, operation in enumerate(self.operations):
            if operation["kind"] == "content" and operation["inode"] == inode:
                content = self.blobs[operation["blob"]]
                if number < end and operation["synced"]:
                    safe, newest = content, None
                elif newest is None or number < end:
                    newest = content
        if newest is None or newest == safe:
            return [safe or b""]
        size = len(newest)
        return [safe or b"", newest, newest[: size // 2], newest[: size // 2] + bytes(size - size // 2), bytes(size)]


def _apply(operation: Mapping[str, Any], names: dict[tuple[int, str], int]) -> None:
    key, inode = (operation["folder"], operation["name"]), operation["inode"]
    if operation["kind"] == "name":
        names[key] = inode
    elif operation["kind"] == "unname":
        if names.get(key) == inode:
            del names[key]
    else:
        new = (operation["to"], operation["new"])
        if names.get(key) == inode:
            del names[key]
        if operation["kind"] == "exchange":
            names[key] = operation["other"]
        names[new] = inode


def write_tree(tree: Mapping[str, bytes | None], root: Path) -> None:
    """Write a tree of `Disk.after_failure` to a folder."""
    for name, content in sorted(tree.items()):
        if content is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)


def digest(tree: Mapping[str, bytes | None]) -> str:
    """Return a hash of a tree, to try each only once; names of temporary files are drawn, so two runs differ."""
    hashed = hashlib.sha256()
    for name, content in sorted(tree.items()):
        hashed.update(json.dumps([name, None if content is None else hashlib.sha256(content).hexdigest()]).encode())
    return hashed.hexdigest()
