"""The kinds of output, and which files of a folder belong to one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORK = ".packer"
"""Folder inside an output while it is unfinished or not yet swapped in."""

LOCK = "lock"
"""File in WORK that is locked by the process at work there."""

_WRITTEN_HERE = re.compile(r"(data-\d+-of-\d+|\d{5}-\d{5})(\.\w+)+|state\.json|dataset_info\.json|lock")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of output: a packed dataset, a tokenized dataset or an export."""

    name: str
    """What messages call it, with its article: "a packed dataset"."""

    record: str
    """JSON file that is written last; a folder without it is not complete."""

    building: str
    """Role of the hidden folder in which a replacement is built: "new" for .OUT.packer-new."""

    listed: Callable[[Any], Iterable[str]]
    """Takes the content of the record; returns the names of the other files of the output."""

    in_place: bool = False
    """Whether an output that replaces nothing is built in its own folder, where an unfinished one stays visible."""

    def is_complete(self, folder: Path) -> bool:
        """Whether the record is there."""
        return (folder / self.record).is_file()

    def own_files(self, folder: Path) -> set[str]:
        """Names of the files that packer wrote: those in the record, or by pattern if the record cannot be read."""
        try:
            named = set(self.listed(json.loads((folder / self.record).read_bytes())))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            named = {name for name in os.listdir(folder) if _WRITTEN_HERE.fullmatch(name)}  # noqa: PTH208 (names)
        return named | {self.record, WORK}
