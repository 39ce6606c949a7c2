"""Count documents and tokens by what happens to them."""

from __future__ import annotations

import numpy as np

from packer.facts import Account
from packer.plan.segments import Segments


def count_documents(segments: Segments, *, pairs: bool, drops_untrained: bool) -> Account:
    """Count documents and tokens by outcome.

    Args:
        segments: segments that are placed in rows.
        pairs: whether documents are preference pairs, which adds the reason "unpaired".
        drops_untrained: whether segments without trained tokens were removed, which adds the reason "untrained".
    """
    is_dropped, is_truncated = segments.long == "drop", segments.long == "truncate"
    documents_dropped = {
        "empty": segments.empty_documents,
        "too_long": segments.long_documents if is_dropped else 0,
    }
    tokens_dropped = {"too_long": segments.long_tokens if is_dropped else 0}
    if pairs:
        documents_dropped["unpaired"] = segments.unpaired_documents
        tokens_dropped["unpaired"] = segments.unpaired_tokens
    if drops_untrained:
        documents_dropped["untrained"] = segments.untrained_documents
        tokens_dropped["untrained"] = segments.untrained_tokens
    with_heads, heads = np.unique(segments.head_documents, return_counts=True)
    return Account(
        documents=segments.documents,
        documents_split=int(np.count_nonzero(heads + (segments.tails[with_heads] > 0) > 1)),
        documents_truncated=segments.long_documents if is_truncated else 0,
        documents_dropped=documents_dropped,
        tokens=int(segments.lengths.sum(dtype=np.int64)),
        tokens_packed=segments.tokens,
        tokens_repeated=segments.repeated,
        tokens_truncated=segments.truncated_tokens,
        tokens_dropped=tokens_dropped,
    )
