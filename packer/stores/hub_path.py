"""Files of the Hugging Face Hub, read by ranges: hf://datasets/ORG/NAME/file, also with a revision as in NAME@main."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn

from packer.errors import PackerError, first_line
from packer.stores.remote_path import ObjectState, RemotePath, Result
from packer.stores.requests import CutShortError, StoreError, count, requested

_MOST_ERRORS = (OSError, ValueError, PackerError, CutShortError)  # those that say what is wrong


@dataclass(frozen=True, slots=True, order=True)
class HubPath(RemotePath):
    """A path on the Hub, read through `huggingface_hub`. The version of a file is the commit of its repository."""

    def stat(self) -> ObjectState:
        """Return the size of the file and the commit; raises as `requested`."""
        if self.state is not None:
            return self.state
        count(reads=1)
        files, commit = _files(), self._commit()
        return _state(self._asked(lambda: files.info(self._path, revision=commit)), commit)

    def is_file(self) -> bool:
        """Whether there is such a file."""
        return self.state is not None or self._kind() == "file"

    def is_dir(self) -> bool:
        """Whether there is such a folder, or repository."""
        return self._kind() == "directory"

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the files and folders directly inside, sorted by name."""
        inside = {path.key[len(self.key) :].strip("/").partition("/")[0] for path in self.files()}
        for name in sorted(inside, key=os.fsencode):
            yield self / name

    def files(self) -> list[RemotePath]:
        """Return all files inside, at any depth, pinned to the present commit and sorted by name."""
        files, commit = _files(), self._commit()
        count(lists=1)
        found = self._asked(lambda: files.find(self._path, detail=True, revision=commit))
        prefix = len(self._asked(lambda: files.resolve_path(self._path, revision=commit)).unresolve())
        paths = [
            replace(self, key=f"{self.key}/{name[prefix:].strip('/')}", state=_state(info, commit))
            for name, info in found.items()
        ]
        return sorted(paths, key=lambda path: os.fsencode(path.key))

    def read_bytes(self) -> bytes:
        """Return the content of the file; raises as `requested`."""
        pinned = self.pinned()
        return bytes(pinned.read_range(0, pinned.stat().st_size))

    def read_range(self, start: int, length: int) -> memoryview:
        """Return bytes `start` to `start + length` of the file; raises as `requested`."""
        files, commit = _files(), self.stat().etag

        def read() -> bytes:
            with files.open(self._path, "rb", revision=commit, cache_type="none") as file:
                file.seek(start)
                content: bytes = file.read(length)
            if len(content) != length:
                raise CutShortError(f"{len(content):,} of {length:,} bytes came from byte {start:,} on")
            return content

        content = self._asked(read) if length else b""
        count(reads=1, bytes_read=length)
        return memoryview(content)

    def write_bytes(self, content: bytes, *, if_absent: bool = False) -> NoReturn:
        """Refuse: the Hub is read only."""
        raise PackerError(f"{self}: packer does not write to the Hub; write to a folder, and upload it with hf upload")

    @property
    def _path(self) -> str:
        return f"{self.bucket}/{self.key}"

    def _kind(self) -> str:
        files = _files()
        try:
            kind: str = self._asked(lambda: files.info(self._path))["type"]
        except FileNotFoundError:
            return ""
        return kind

    def _commit(self) -> str:
        """Return the commit that the path's revision is now, by the root of its repository."""
        from huggingface_hub import HfApi

        files = _files()
        found = self._asked(lambda: files.resolve_path(self._path))
        count(reads=1)
        info = self._asked(lambda: HfApi().repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision))
        return str(info.sha)

    def _asked(self, request: Callable[[], Result]) -> Result:
        def ask() -> Result:
            try:
                return request()
            except _MOST_ERRORS:
                raise
            except Exception as error:  # of the HTTP library, which differs by version
                raise StoreError(first_line(error)) from error

        return requested(str(self), ask)


def _state(info: Any, commit: str) -> ObjectState:
    return ObjectState(int(info["size"]), commit, 0)


@lru_cache(maxsize=1)
def _files() -> Any:
    from huggingface_hub import HfFileSystem

    return HfFileSystem()
