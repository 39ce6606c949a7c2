"""Cut documents into the segments to be packed, and count what becomes of each document."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.bounds import lower_bound
from packer.errors import SourceError
from packer.facts import Account
from packer.options import PackOptions
from packer.pipeline.apply_options import cut_lengths_of
from packer.pipeline.segments.turns import split_at_turns
from packer.pipeline.segments.untrained import without_untrained
from packer.plan.cutting import items_of
from packer.plan.groups import apart_bound, together_bound
from packer.plan.segments import Segments
from packer.sources.documents import TokenTable


def cut_by_policy(
    lengths: NDArray[np.int32],
    options: PackOptions,
    *,
    table: TokenTable | None = None,
    describe: Callable[[int], str] = "document {:,}".format,
) -> Segments:
    """Apply the long-document policy to documents, and leave out untrained segments if the options say so.

    Args:
        lengths: (documents,) tokens of each document.
        options: options of the pack.
        table: documents with their labels; None if only lengths are known, so that no segment is untrained.
        describe: function that names a document in messages.

    Raises:
        SourceError: the options do not allow a document to be packed, or there is nothing to pack.
    """
    policy = cut_lengths_of(options, lengths)
    if table is not None:
        policy = split_at_turns(policy, table, options, describe)
    segments = policy if table is None else without_untrained(policy, table, options, describe)
    require_segments(account_of(segments, options), int(segments.histogram.sum()), options)
    return segments


def account_of(segments: Segments, options: PackOptions) -> Account:
    """Count documents and tokens by what became of them; options add reasons, such as "untrained"."""
    is_dropped, is_truncated = segments.long == "drop", segments.long == "truncate"
    documents_dropped = {
        "empty": segments.empty_documents,
        "too_long": segments.long_documents if is_dropped else 0,
    }
    tokens_dropped = {"too_long": segments.long_tokens if is_dropped else 0}
    if options.pairs:
        documents_dropped["unpaired"] = segments.unpaired_documents
        tokens_dropped["unpaired"] = segments.unpaired_tokens
    if options.untrained == "drop":
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


def items_and_groups(
    segments: Segments, groups: NDArray[np.int32] | None, options: PackOptions
) -> tuple[Segments, NDArray[np.int32] | None]:
    """Return the items that rows are planned with, segments or preference pairs, and the group of each.

    Args:
        segments: segments of all documents.
        groups: (documents,) group of each document; None without groups.
        options: options of the pack.
    """
    return items_of(segments, pairs=options.pairs), groups[::2] if options.pairs and groups is not None else groups


def least_rows(items: Segments, groups: NDArray[np.int32] | None, options: PackOptions) -> int:
    """Return a lower bound on the rows of any packing of whole items, without solving.

    Args:
        items: segments or pairs, as `items_and_groups` returns them.
        groups: groups of the items; None without groups.
        options: options of the pack.
    """
    if groups is not None and options.group_mode == "together":
        return together_bound(items, groups, options.max_items)
    bound = lower_bound(items.histogram, options.max_items)
    return bound if groups is None else max(bound, apart_bound(items, groups))


def require_segments(account: Account | None, segments: int, options: PackOptions) -> Account:
    """Return the account of a source if it has segments to pack.

    Args:
        account: account of the documents; None if there are none.
        segments: number of segments.
        options: options of the pack, for the error message.

    Raises:
        SourceError: there is no segment; the message gives the reason.
    """
    if account is None:
        raise SourceError("nothing to pack: there are no documents")
    if not segments:
        raise _nothing_to_pack(account, options)
    return account


def _nothing_to_pack(account: Account, options: PackOptions) -> SourceError:
    """Return an error that says why no segment is left."""
    dropped = account.documents_dropped
    if dropped.get("untrained"):
        return SourceError(
            f"nothing to pack: none of {account.documents:,} documents has a trained token; check the labels"
        )
    return SourceError(
        f"nothing to pack: of {account.documents:,} documents, {dropped['empty']:,} are empty and "
        f"{dropped['too_long']:,} longer than max_len {options.max_len:,} (--long {options.long}); "
        "check the source, --max-len and --long"
    )
