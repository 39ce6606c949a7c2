"""Number the groups of documents by the values of a column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.options import PackOptions
from packer.plan.groups import NO_GROUP
from packer.shards.sharing import Chunks, group_codes, group_values


def document_groups(
    extra: Mapping[str, Chunks], lists: NDArray[Any] | None, options: PackOptions
) -> NDArray[np.int32] | None:
    """Return the group of each document: documents with equal values form a group, those with null are in none.

    Args:
        extra: columns of the source, a value per list.
        lists: (documents,) list of each document; None if document i is list i.
        options: options of the pack; `group_by` names the column.

    Returns:
        int32, shape (documents,), 0..groups - 1 or NO_GROUP; None if documents are not grouped.

    Raises:
        SourceError: values of the column cannot be compared, or all of them are null.
    """
    if options.group_by is None:
        return None
    codes = group_codes(group_values(extra[options.group_by], options.group_by))
    if lists is not None:
        codes = codes[lists]
    if codes.max(initial=NO_GROUP) == NO_GROUP:
        raise SourceError(f"column '{options.group_by}' is null in every document; name another with --group-by")
    return codes
