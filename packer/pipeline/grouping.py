"""The column of a source that groups documents, as numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.arrow import as_numpy
from packer.errors import SourceError
from packer.options import PackOptions
from packer.plan import NO_GROUP
from packer.sources import TokenTable


def document_groups(table: TokenTable, options: PackOptions) -> NDArray[np.int32] | None:
    """The group of each document as the options say: equal values of the column are a group, null is none.

    Returns:
        int32, shape (documents,), 0..groups - 1 or NO_GROUP; None where nothing groups them.

    Raises:
        SourceError: the column holds what cannot be compared, or is null in every document.
    """
    if options.group_by is None:
        return None
    column = table.extra[options.group_by]
    try:
        found = pc.dictionary_encode(column.cast(pa.large_string()) if _is_string(column.type) else column)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise SourceError(
            f"column '{options.group_by}' holds {column.type}, which does not group; save it as strings or integers"
        ) from error
    codes = np.empty(len(column), np.int32)
    first = 0
    for chunk in found.chunks:  # the dictionary is that of the whole column
        codes[first : first + len(chunk)] = as_numpy(chunk.indices.fill_null(NO_GROUP))
        first += len(chunk)
    if table.rows is not None:
        codes = codes[table.rows]
    if codes.max(initial=NO_GROUP) == NO_GROUP:
        raise SourceError(f"column '{options.group_by}' is null in every document; name another with --group-by")
    return codes


def _is_string(column_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(column_type) or pa.types.is_large_string(column_type))
