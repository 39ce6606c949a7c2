"""The column of a source that groups documents, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.options import PackOptions
from packer.plan import NO_GROUP
from packer.shards.sharing import Chunks, group_codes, group_values


def document_groups(
    extra: Mapping[str, Chunks], rows: NDArray[Any] | None, options: PackOptions
) -> NDArray[np.int32] | None:
    """The group of each document as the options say: equal values of the column are a group, null is none.

    Args:
        extra: the columns of the source, a value per list.
        rows: (documents,) the list that each document is; None: list i is document i.
        options: `group_by` names the column.

    Returns:
        int32, shape (documents,), 0..groups - 1 or NO_GROUP; None where nothing groups them.

    Raises:
        SourceError: the column holds what cannot be compared, or is null in every document.
    """
    if options.group_by is None:
        return None
    codes = group_codes(group_values(extra[options.group_by], options.group_by))
    if rows is not None:
        codes = codes[rows]
    if codes.max(initial=NO_GROUP) == NO_GROUP:
        raise SourceError(f"column '{options.group_by}' is null in every document; name another with --group-by")
    return codes
