"""Whether the files of a source stay as they were while they are packed: rows of two versions must not be mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packer.errors import SourceError
from packer.sources import Source
from packer.sources.mapped_lists import MappedLists
from packer.sources.mixture import Mixture

State = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """Files, and the state in which they were when the source was opened."""

    states: Mapping[Path, tuple[str, State]]
    """Path of each file: its name in the source, and (bytes, time of the last change, inode)."""

    @classmethod
    def of(cls, opened: Source | Mixture) -> Watch:
        """Watch all files of a source; a dataset in memory has none.

        Raises:
            SourceError: a file is gone.
        """
        named = [(given.path, given.file.name) for given in opened.inputs if given.path is not None]
        return cls(states={path: (name, _state(path, name)) for path, name in named})

    def of_mapped(self, spilled: Source | Mixture) -> Watch:
        """Watch those files only that are still read: not those of which a decoded copy is there."""
        read = {given.path for given in spilled.inputs if not isinstance(given, MappedLists) or given.origin is None}
        return Watch(states={path: state for path, state in self.states.items() if path in read})

    def check(self) -> None:
        """Raise unless every file is as it was; beyond the system's answers that takes no time.

        Raises:
            SourceError: one was written to, replaced or removed.
        """
        for path, (name, state) in self.states.items():
            now = _state(path, name)
            if now != state:
                what = f"from {state[0]:,} to {now[0]:,} bytes" if now[0] != state[0] else "or was replaced"
                raise SourceError(
                    f"{name}: the file changed {what} while it was read; repeat the command when nothing writes to it"
                )


def _state(path: Path, name: str) -> State:
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(
            f"{name}: the file is gone while it is read ({error.strerror}); repeat the command when it is there"
        ) from error
    return found.st_size, found.st_mtime_ns, found.st_ino
