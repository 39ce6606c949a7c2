"""Kills and interrupts that strike when a file or object gets its name, so that no test knows what names it."""

import re
from pathlib import Path

import pytest

from packer.engines.ranks import Heartbeats
from packer.stores import RemotePath


class Killed(BaseException):
    """Simulates a kill: no code but cleanup handles it."""


def named(monkeypatch: pytest.MonkeyPatch, tell) -> None:
    """Call `tell(name, rename)` in place of every operation that gives a file or an object its name."""

    def telling(operation):
        usual = getattr(Path, operation)

        def told(path, target):
            return tell(str(path if operation == "hardlink_to" else target), lambda: usual(path, target))

        return told

    def storing(operation):
        usual = getattr(RemotePath, operation)

        def told(path, *arguments, **options):
            return tell(str(path), lambda: usual(path, *arguments, **options))

        return told

    for operation in ("rename", "replace", "hardlink_to"):
        monkeypatch.setattr(Path, operation, telling(operation))
    for operation in ("upload", "write_bytes"):
        monkeypatch.setattr(RemotePath, operation, storing(operation))


def kill(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool = False, error=Killed) -> None:
    """Raise an error before or after a file of a name, a regular expression, gets it, and whenever one does later.

    From then on no shard gets its name either: other threads must not go on where a killed process would not.
    """
    is_struck = False

    def tell(target, rename):
        nonlocal is_struck
        before = is_struck
        struck = re.search(name, target) or (is_struck and re.search(r"data-\d+-of-", target))
        is_struck = is_struck or bool(struck)
        result = rename() if not struck or (after and not before) else None
        if struck:
            raise error(target)
        return result

    named(monkeypatch, tell)
    without_last_word(monkeypatch)


def without_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """End processes without a last heartbeat, as a kill does."""
    write = Heartbeats._write
    monkeypatch.setattr(Heartbeats, "_write", lambda self, word: write(self, word) if word.isdecimal() else None)
