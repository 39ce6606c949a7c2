"""Folders in object storage: listed once and searched without further requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from packer.stores.remote_path import AnyPath, RemotePath


@dataclass(frozen=True, slots=True)
class ListedPath(RemotePath):
    """A path in a listed folder, which knows what is there."""

    children: Mapping[str, Mapping[str, None]] = field(default_factory=dict, compare=False, repr=False)
    """Keys directly inside each folder, by the key of the folder."""

    objects: Mapping[str, RemotePath] = field(default_factory=dict, compare=False, repr=False)
    """Pinned path of each object by its key."""

    def __truediv__(self, name: str | PurePosixPath) -> ListedPath:
        return self._at(f"{self.key}/{name}".strip("/"))

    @property
    def parent(self) -> ListedPath:
        """The folder."""
        return self._at(self.key.rpartition("/")[0])

    def is_file(self) -> bool:
        """Whether there is such an object."""
        return self.key in self.objects

    def is_dir(self) -> bool:
        """Whether there are objects inside."""
        return self.key in self.children

    def iterdir(self) -> Iterator[ListedPath]:
        """Yield the objects and folders directly inside."""
        for key in self.children.get(self.key, ()):
            yield self._at(key)

    def pinned(self) -> RemotePath:
        """Return the path of the version that was listed."""
        found = self.objects.get(self.key)
        return found if found is not None else RemotePath(self.scheme, self.bucket, self.key).pinned()

    def _at(self, key: str) -> ListedPath:
        found = self.objects.get(key)
        return replace(self, key=key, state=None if found is None else found.state)


def listed(folder: RemotePath) -> ListedPath:
    """List a folder with everything inside; raises as `RemotePath.stat`."""
    files = {path.key: path for path in folder.files()}
    children: dict[str, dict[str, None]] = {}  # in the order of their names, each once
    for key in files:
        at, is_new = key, True
        while is_new and at != folder.key:
            above = at.rpartition("/")[0]
            is_new = above not in children
            children.setdefault(above, {})[at] = None
            at = above
    return ListedPath(folder.scheme, folder.bucket, folder.key, None, children, files)


def pinned(path: AnyPath) -> AnyPath:
    """Return the version of an object that was listed, or is there now; a local path as it is."""
    return path.pinned() if isinstance(path, RemotePath) else path
