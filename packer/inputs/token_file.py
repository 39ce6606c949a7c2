"""Files of token ids and nothing else, which are mapped: what their readers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from packer.errors import PackerError, SourceError
from packer.inputs.column_types import find_columns
from packer.inputs.documents import COLUMNS, Columns, SourceFile, reading
from packer.inputs.format_reader import Reader
from packer.inputs.mapped_arrays import Bounds, MappedArrays, MappedColumn
from packer.inputs.mapped_files import FileState
from packer.inputs.token_tables import MappedLists
from packer.stores import AnyPath

_MASK_COLUMN = "loss_mask"


class TokenFile(Reader, Protocol):
    """A file of tokens. A file beside it may hold a byte for each, 1 or 0, that says whether it is trained."""

    @classmethod
    def open(cls, path: AnyPath, name: str) -> Reader:
        """Refuse to read token ids as records of text or numbers."""
        raise PackerError(
            f"{name} holds token ids alone: pack it without --tokenizer, --lengths, --pairs and --share-prefixes"
        )

    @classmethod
    def mask_of(cls, path: AnyPath) -> AnyPath | None:
        """Return where the mask of a file lies; None if the format has no masks, or it does not exist."""
        return None

    @classmethod
    def column_names(cls, path: AnyPath, name: str, usable: str | None = None) -> list[str]:
        """Return the names that the tokens and the mask have for packer."""
        return [COLUMNS.input_ids] if cls.mask_of(path) is None else [COLUMNS.input_ids, _MASK_COLUMN]

    @classmethod
    def mapped(
        cls,
        path: AnyPath,
        name: str,
        columns: Columns,
        *,
        tokens: MappedColumn,
        bounds: Bounds,
        index: tuple[FileState, pa.Buffer] | None = None,
        beside: Sequence[AnyPath] = (),
    ) -> MappedLists:
        """Return the lists of a file; see `MappedArrays.of`. `beside` has other files that are read, but no mask."""
        found = {COLUMNS.input_ids: tokens}
        if (mask := cls.mask_of(path)) is not None:
            beside = [*beside, mask]
            with reading(mask.name):
                found[_MASK_COLUMN] = MappedColumn.of(mask, mask.name, np.dtype(np.uint8))
            if (count := found[_MASK_COLUMN].owner.size) != bounds.end:
                raise SourceError(
                    f"{mask.name}: {count:,} values, and {name} has {bounds.end:,} tokens: copy both again"
                )
        store = MappedArrays.of(found, bounds, index)
        find_columns(store.schema, name, columns)
        size = sum(each.stat().st_size for each in (path, *beside))
        return MappedLists(
            file=SourceFile(name=name, bytes=size, beside=tuple(beside)),
            path=path,
            stores=(store,),
            input_ids=columns.input_ids,
            labels=None,
            extra=columns.extra,
        )
