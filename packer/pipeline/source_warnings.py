"""Warnings about sources for which a default, silently applied, would ruin a training run."""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np

from packer.arrow import as_numpy
from packer.facts import PlanTotals, SourceIdentity
from packer.options import PackOptions
from packer.sources import OpenDocuments, Source

_LOOKED_AT = 1000  # documents of each source
_FEWEST = 20  # documents that look padded, below which they say nothing
_REPEATED = 3  # equal tokens at an end, from which it looks padded
_MOST = 0.5  # share of documents that look padded, above which the source is

log = logging.getLogger(__name__)


def warn_of_padding(mapped: OpenDocuments) -> None:
    """Log a warning for each source of tokens in which most documents end, or begin, with the same repeated id.

    Padding with a mask is stripped before; without one, it is packed and trained like any other token.

    Args:
        mapped: the source, all of it mapped and checked.
    """
    for name, source in mapped.sources.items():
        found = _padding_of(source) if source.tokenized is None else None
        if found is not None:
            of_source = f" of {name}" if name else ""
            log.warning(
                "most documents%s begin or end with several tokens of id %d, which looks like padding: give an "
                "attention_mask, or remove it; it is packed like all other tokens",
                of_source,
                found,
            )


def warn_of_split_chats(identity: SourceIdentity, totals: PlanTotals, options: PackOptions) -> None:
    """Log a warning if chats were split inside messages."""
    texts = [identity.text, *(part.text for part in identity.mixture)]
    has_chats = any(text is not None and text.chat_template is not None for text in texts)
    if has_chats and totals.documents_split and options.split_at == "tokens":
        log.warning(
            "%s longer than a row are split inside a message: choose --split-at turns, or --long drop",
            "1 document" if totals.documents_split == 1 else f"{totals.documents_split:,} documents",
        )


def _padding_of(source: Source) -> int | None:
    """Return the id with which most of the first documents seem to be padded; None if they are not."""
    input_ids = source.table(np.zeros(0, np.int32)).input_ids
    order = source.order if source.order is not None else np.arange(min(len(input_ids), _LOOKED_AT))
    repeated: Counter[int] = Counter()
    for number in order[:_LOOKED_AT].tolist():
        ends = (as_numpy(input_ids.list_at(number, part)) for part in (slice(_REPEATED), slice(-_REPEATED, None)))
        ids = [int(end[0]) for end in ends if len(end) == _REPEATED and (end == end[0]).all()]
        if len(set(ids)) == len(ids):  # otherwise the whole document may be one id
            repeated.update(ids)
    token, count = repeated.most_common(1)[0] if repeated else (0, 0)
    return token if count > max(_MOST * min(len(order), _LOOKED_AT), _FEWEST) else None
