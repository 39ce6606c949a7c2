"""Paths in object storage. Once a folder is listed, searching it makes no further requests."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from packer.errors import PackerError, StoreError
from packer.stores.buckets import PART, SCHEMES, in_parallel, opened_bucket, requested, submitted

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStoreMethods

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ObjectState:
    """Size of an object in bytes, a tag that changes with its content, and the time of its last write in ns."""

    st_size: int
    etag: str
    st_mtime_ns: int

    @classmethod
    def of(cls, found: ObjectMeta) -> ObjectState:
        """Return the state from a bucket's answer."""
        modified = int(found["last_modified"].timestamp() * 1_000_000_000)
        return cls(found["size"], found["e_tag"] or "", modified)


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """Path of an object, or of a folder of objects, with the methods of `pathlib.Path` that packer uses.

    It cannot be used as a local path by mistake, because it has no `__fspath__`. It can be pickled.
    """

    scheme: str
    """Beginning of the address: "s3", "gs" or "az"."""

    bucket: str
    key: str
    """Name of the object or folder in the bucket, without a slash at either end."""

    state: ObjectState | None = field(default=None, compare=False)
    """Known size and version of the object. Reading another version is an error; None allows any version."""

    children: Mapping[str, Mapping[str, ObjectState | None]] | None = field(default=None, compare=False, repr=False)
    """For the key of each listed folder, the keys directly inside: objects with their states, folders with None.

    None if no folder was listed, so that the store is asked.
    """

    @staticmethod
    def of(address: str) -> RemotePath:
        """Return the path of an address such as "s3://bucket/folder". Raises a PackerError if it is malformed."""
        scheme, separator, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        if not separator or scheme not in SCHEMES or not bucket:
            raise PackerError(f"{address} is not an address in object storage like s3://bucket/folder")
        if "//" in f"/{key}":
            raise PackerError(f"{address}: its path has an empty part (//), another name in a bucket: remove it")
        return RemotePath(scheme, bucket, key.removesuffix("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}" if self.key else f"{self.scheme}://{self.bucket}"

    def __truediv__(self, name: str | PurePosixPath) -> RemotePath:
        return self._at(self.of(f"{self}/{name}").key)

    @property
    def name(self) -> str:
        """Last part of the path, or the bucket if there is no other part."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder above; a bucket is its own parent."""
        return self._at(self.key.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> RemotePath:
        return self.parent / PurePosixPath(self.name).with_suffix(suffix).name

    def absolute(self) -> RemotePath:
        return self

    @property
    def store(self) -> ObjectStoreMethods:
        """The bucket. Raises the same errors as `opened_bucket`."""
        return opened_bucket(self.scheme, self.bucket)

    def stat(self) -> ObjectState:
        """Return the size and version of the object; requests them if they are unknown. For errors see `requested`."""
        if self.state is not None:
            return self.state
        return ObjectState.of(self._requested(lambda: self.store.head(self.key)))

    def pinned(self) -> RemotePath:
        """Return the path of the present or listed version of the object. Reading another raises a `ChangedError`."""
        return replace(self, state=self.stat(), children=None)

    def is_file(self) -> bool:
        """Whether an object has this key."""
        if not self.key or self.children is not None:
            return self.state is not None
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there are objects inside. The empty object that marks a folder in consoles does not count."""
        if self.children is not None:
            return self.key in self.children
        first = self._requested(lambda: next(iter(self.store.list(self._inside(), chunk_size=2)), ()))
        return any(each["path"] != self.key for each in first)

    def exists(self) -> bool:
        """Whether an object has this key or is inside this folder."""
        return self.is_file() or self.is_dir()

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the objects (pinned) and folders directly inside, sorted by name."""
        if self.children is not None:
            yield from map(self._at, self.children.get(self.key, ()))
            return
        found = self._requested(lambda: self.store.list_with_delimiter(self._inside()))
        states = {each["path"]: ObjectState.of(each) for each in found["objects"]}
        for key in sorted({key.rstrip("/") for key in (*found["common_prefixes"], *states)}, key=os.fsencode):
            if key != self.key:
                yield RemotePath(self.scheme, self.bucket, key, states.get(key))

    def files(self) -> list[RemotePath]:
        """Return all objects inside, at any depth, pinned and sorted by name. Makes one request per 1,000 objects."""

        def listed() -> list[RemotePath]:
            return [
                RemotePath(self.scheme, self.bucket, each["path"], ObjectState.of(each))
                for chunk in self.store.list(self._inside(), chunk_size=1000)
                for each in chunk
            ]

        paths = [path for path in self._requested(listed) if path.key != self.key]
        return sorted(paths, key=lambda path: os.fsencode(path.key))

    def read_bytes(self) -> bytes:
        """Return the content of the object; for errors see `requested`."""

        def read() -> bytes:
            result = self.store.get(self.key, options=self._version())
            content = bytes(result.bytes())
            if len(content) != result.meta["size"]:
                raise OSError(f"{len(content):,} of {result.meta['size']:,} bytes came")
            return content

        return self._requested(read)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def read_range(self, start: int, length: int) -> memoryview:
        """Return bytes `start` to `start + length - 1` of the object; for errors see `requested`."""
        if not length:
            return memoryview(b"")

        def read() -> memoryview:
            options: GetOptions = {**self._version(), "range": (start, start + length)}
            content = memoryview(self.store.get(self.key, options=options).bytes())
            if len(content) != length:
                raise OSError(f"{len(content):,} of {length:,} bytes came from byte {start:,} on")
            return content

        return self._requested(read)

    def open(self, mode: Literal["rb"] = "rb", buffering: int = -1) -> io.BufferedReader:
        """Open the object for reading, with read-ahead."""
        return io.BufferedReader(RemoteFile(self.read_range, self.stat().st_size), _FIRST)

    def download(self, to: Path) -> None:
        """Copy the object into a local file, several parts at a time. Overwrites an existing file."""
        size = self.stat().st_size
        with to.open("wb") as file:
            descriptor = file.fileno()

            def copy(start: int) -> None:
                content = self.read_range(start, min(PART, size - start))
                while content:
                    written = os.pwrite(descriptor, content, start)
                    content, start = content[written:], start + written

            in_parallel(copy, range(0, size, PART))

    def write_bytes(self, content: bytes, *, if_absent: bool = False) -> None:
        """Write the object, completely or not at all.

        With `if_absent`, raises a FileExistsError if the object exists with other content. Equal content counts as
        written, because it may come from a try whose answer was lost.
        """
        try:
            self._requested(lambda: self.store.put(self.key, content, mode="create" if if_absent else "overwrite"))
        except (FileExistsError, StoreError):
            if not if_absent or not self._has(content):
                raise

    def _has(self, content: bytes) -> bool:
        try:
            return replace(self, state=None).read_bytes() == content
        except OSError:
            return False

    def upload(self, file: Path) -> None:
        """Copy a local file to the object, completely or not at all. Large files are sent in parts."""
        size = file.stat().st_size

        def write() -> None:
            self.store.put(self.key, file, chunk_size=max(PART, -(-size // 9_000)), max_concurrency=8)

        self._requested(write)

    def unlink(self) -> None:
        """Remove the object, if it exists."""
        with suppress(FileNotFoundError):  # stores differ: some report a missing object
            self._requested(lambda: self.store.delete(self.key))

    def remove_all(self, keep: Collection[RemotePath] = ()) -> None:
        """Remove all objects inside, except those in `keep`."""
        paths = [path.key for path in self.files() if path not in keep]
        for start in range(0, len(paths), 1000):
            some = paths[start : start + 1000]
            self._requested(lambda some=some: self.store.delete(some))  # type: ignore[misc]

    def _at(self, key: str) -> RemotePath:
        """Return another path in the bucket. If it was listed, its state is known."""
        of_folder = (self.children or {}).get(key.rpartition("/")[0], {})
        return replace(self, key=key, state=of_folder.get(key))

    def _version(self) -> GetOptions:
        return {"if_match": self.state.etag} if self.state is not None and self.state.etag else {}

    def _inside(self) -> str | None:
        return f"{self.key}/" if self.key else None

    def _requested(self, request: Callable[[], Result]) -> Result:
        return requested(str(self), request)


def listed(folder: RemotePath) -> RemotePath:
    """List a folder and everything inside. Searching it makes no more requests. For errors see `requested`."""
    children: dict[str, dict[str, ObjectState | None]] = {}  # sorted by name, each name once
    for file in folder.files():
        at, state, is_new = file.key, file.state, True
        while is_new and at != folder.key:
            above = at.rpartition("/")[0]
            is_new = above not in children
            children.setdefault(above, {}).setdefault(at, state)
            at, state = above, None
    return replace(folder, state=None, children=children)


AnyPath: TypeAlias = Path | RemotePath
"""A local path, or one in object storage."""


def is_remote(path: object) -> bool:
    """Whether this is an address in object storage."""
    return isinstance(path, RemotePath) or (isinstance(path, str) and path.partition("://")[0] in SCHEMES)


def any_path(path: str | AnyPath) -> AnyPath:
    """Return a path as an object. Raises a PackerError for a malformed address."""
    if isinstance(path, RemotePath):
        return path
    return RemotePath.of(str(path)) if is_remote(path) else Path(path)


def pinned(path: AnyPath) -> AnyPath:
    """Return the path of the version that was listed, or that exists now. Returns local paths unchanged."""
    return path.pinned() if isinstance(path, RemotePath) else path


_FIRST = 64 << 10  # bytes of the first request: enough to read the beginning of a file in one request


class RemoteFile(io.RawIOBase):
    """An object as a seekable file. Growing parts are read ahead while it is read sequentially.

    Args:
        read_range: function that returns a range of bytes, given its start and length.
        size: number of bytes of the object.
    """

    def __init__(self, read_range: Callable[[int, int], memoryview], size: int) -> None:
        self._read_range = read_range
        self._size = size
        self._at = 0
        self._start, self._part = 0, memoryview(b"")
        self._next: Future[memoryview] | None = None  # the part after the current one

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self._size:
            return 0
        if not self._start <= self._at < self._start + len(self._part):
            self._load(len(view))
        part = self._part[self._at - self._start :][: len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _load(self, wanted: int) -> None:
        """Make the part that begins at the position the current part."""
        goes_on = len(self._part) and self._at == self._start + len(self._part)
        if goes_on and self._next is not None:
            part = self._next.result()
        else:
            length = min(max(wanted, _FIRST), PART, self._size - self._at)
            part = self._read_range(self._at, length)
        self._start, self._part, self._next = self._at, part, None
        after = self._start + len(part)
        if goes_on and after < self._size:
            length = min(2 * len(part), PART, self._size - after)
            self._next = submitted(self._read_range, after, length)
