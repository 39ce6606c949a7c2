"""The column of a source that groups documents, as numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.options import PackOptions
from packer.plan import NO_GROUP
from packer.shards.sharing import group_codes, group_values
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
    codes = group_codes(group_values(table.extra[options.group_by], options.group_by))
    if table.rows is not None:
        codes = codes[table.rows]
    if codes.max(initial=NO_GROUP) == NO_GROUP:
        raise SourceError(f"column '{options.group_by}' is null in every document; name another with --group-by")
    return codes
