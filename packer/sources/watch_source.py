"""Detect source files that change while they are packed, so that rows never mix two versions of a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packer.errors import SourceError
from packer.inputs.format_reader import paths_of
from packer.inputs.token_tables import MappedLists
from packer.sources.source import Source

State = tuple[int, int, int]

_REST = 20
"""`Watch.check_again` waits this many times as long as the last check of all files took."""


@dataclass(kw_only=True, slots=True)
class Watch:
    """Source files and their state when the source was opened."""

    states: Mapping[Path, tuple[str, State]]
    """Name of each file in the source and its state (bytes, time of the last write in ns, inode), by path."""

    due: float = 0.0
    """Time of this machine's clock from which on `check_again` checks."""

    @classmethod
    def of(cls, opened: Source) -> Watch:
        """Watch all files of a source; a dataset in memory has none. Objects in a store are read by their version."""
        names = {path: path.name for input_ in opened.inputs for path in paths_of(input_)}
        names |= {input_.path: input_.file.name for input_ in opened.inputs if input_.path is not None}
        return cls(states={path: (name, _state(path, name)) for path, name in names.items() if isinstance(path, Path)})

    def of_mapped(self, spilled: Source) -> Watch:
        """Watch only files that are still read. Decoded files may change."""
        inputs = [input_ for input_ in spilled.inputs if not isinstance(input_, MappedLists) or input_.origin is None]
        read = {path for input_ in inputs for path in paths_of(input_)}
        return Watch(states={path: state for path, state in self.states.items() if path in read})

    def check(self) -> None:
        """Raise a SourceError if a file was written to, replaced or removed, by one `stat` call per file."""
        for path, (name, state) in self.states.items():
            now = _state(path, name)
            if now != state:
                what = f"from {state[0]:,} to {now[0]:,} bytes" if now[0] != state[0] else "or was replaced"
                raise SourceError(
                    f"{name}: the file changed {what} while it was read; repeat the command when nothing writes to it"
                )

    def check_again(self) -> None:
        """Check as `check` does, but not so often that it takes more than a twentieth of the time.

        It is called in every task: with 100,000 files and as many shards, `check` would make 10**10 `stat` calls.
        `check` must follow at the end.
        """
        begun = time.monotonic()
        if begun >= self.due:
            self.check()
            self.due = begun + _REST * (time.monotonic() - begun)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Watch, states=self.states), ()


def _state(path: Path, name: str) -> State:
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(
            f"{name}: the file disappeared while it was read ({error.strerror}); restore it and repeat the command"
        ) from error
    return found.st_size, found.st_mtime_ns, found.st_ino
