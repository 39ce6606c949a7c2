"""Files of datatrove and nanotron: `.ds` holds tokens, and `.ds.index` the number of tokens up to each document's end.

Tokens are integers of 2 or 4 bytes without a sign, ends of 8 bytes. `.ds.loss` may hold a byte for each token, which is
0 if it is not trained. The layout is that of `TokenizedFile` in datatrove.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.errors import SourceError
from packer.inputs.documents import Columns, reading
from packer.inputs.mapped_arrays import Bounds, MappedColumn, map_index
from packer.inputs.mapped_files import FileState
from packer.inputs.token_file import TokenFile
from packer.inputs.token_tables import MappedLists
from packer.stores import AnyPath

_TYPES: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
_TOGETHER = 1 << 20  # documents that are checked together


class DatatroveReader(TokenFile):
    """A `.ds` file with its `.ds.index`."""

    @classmethod
    def mask_of(cls, path: AnyPath) -> AnyPath | None:
        """Return where the mask lies."""
        mask = path.parent / f"{path.name}.loss"
        return mask if mask.is_file() else None

    @classmethod
    def open_lists(cls, path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> MappedLists:
        """Map the files, and check that documents follow one another and fill the file of tokens."""
        ends_path, ends_name = path.parent / f"{path.name}.index", f"{name}.index"
        with reading(ends_name):
            if not ends_path.is_file():
                raise SourceError(f"{name}: there is no {ends_name}, which says where documents end; put it beside it")
            owner = map_index(ends_path)
        if owner.size % 8:
            raise SourceError(f"{ends_name}: {owner.size:,} bytes, and an end takes 8; it was cut short: copy it again")
        ends = np.frombuffer(owner, "<i8", owner.size // 8)
        before = 0
        for first in range(0, len(ends), _TOGETHER):
            some = ends[first : first + _TOGETHER]
            wrong = np.diff(some, prepend=before) < 0
            if wrong.any():
                at = first + int(wrong.argmax())
                raise SourceError(
                    f"{ends_name}: document {at:,} ends at token {ends[at]:,}, before its beginning: copy it again"
                )
            before = int(some[-1])
        size = path.stat().st_size
        dtype = _TYPES.get(size // before if before else 2)
        if dtype is None or size != before * dtype.itemsize:
            raise SourceError(
                f"{name} has {size:,} bytes, and by {ends_name} {before:,} tokens, of 2 or 4 bytes each; one of the "
                "two was cut short, or belongs to another file: copy both again"
            )
        with reading(name):
            tokens = MappedColumn.of(path, name, dtype)
        index = FileState(ends_path.absolute(), ends_name, owner.size), owner
        bounds = Bounds(len(ends), ends[:-1], 0, before)
        return cls.mapped(path, name, columns, tokens=tokens, bounds=bounds, index=index, beside=[ends_path])
