"""The kinds of output, and the files that belong to each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.shards.file_names import WORK
from packer.stores import AnyPath

LOCK = "lock"
"""File in WORK that is locked by the working process."""

_WRITTEN_HERE = re.compile(
    r"(data-\d+-of-\d+|\d{5}-\d{5})(\.\w+)+|manifest-shards(-\d+)?\.arrows|state\.json|dataset_info\.json|"
    r"rejected(-\d+)?\.jsonl|lock"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of output: a packed dataset, a tokenized dataset or an export."""

    name: str
    """Name in messages, with its article: "a packed dataset"."""

    record: str
    """Name of the JSON file that is written last; a folder without it is unfinished."""

    building: str
    """Suffix of the hidden folder in which a replacement is built: "new" for .OUT.packer-new."""

    listed: Callable[[Any], Iterable[str]]
    """Function from the content of the record to the names of the other files of the output."""

    in_place: bool = False
    """Whether an output that replaces nothing is built in its final folder, visible while unfinished."""

    def is_complete(self, folder: AnyPath) -> bool:
        """Whether a folder has the record."""
        return (folder / self.record).is_file()

    def own_files(self, folder: Path) -> set[str]:
        """Return the names of files written by packer: from the record, or by pattern if it cannot be read."""
        try:
            named = set(self.listed(json.loads((folder / self.record).read_bytes())))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            named = {name for name in os.listdir(folder) if _WRITTEN_HERE.fullmatch(name)}  # noqa: PTH208 (names)
        return named | {self.record, WORK}
