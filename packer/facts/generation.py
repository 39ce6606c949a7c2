"""Generations of a packed dataset, the documents of the first pack and those of every append, and their shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from packer.facts.json_record import Count, JsonRecord, Positive
from packer.facts.source_identity import SourceIdentity
from packer.facts.totals import GroupTotals, Totals


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation(JsonRecord):
    """A generation, which was packed separately."""

    source: SourceIdentity
    """Identity of its source."""

    totals: Totals
    """Totals of its documents and rows."""

    shards: Positive
    """Number of its shards, which follow those of the generations before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry(JsonRecord):
    """Entry of a shard in the manifest."""

    file: str
    """File name, in the folder of the manifest."""

    rows: Positive
    """Number of rows."""

    tokens: Count
    """Number of tokens, without padding."""

    trained: Count
    """Labels that are not -100; 0 if no labels are written."""

    untrained_segments: Count
    """Segments without a trained token; 0 if no labels are written."""

    bytes: Count
    """Size of the file."""

    xxh3_128: str
    """Hash of the file, hexadecimal."""


def joined_source(generations: Sequence[Generation]) -> SourceIdentity:
    """Return the identity of all sources together, as if they were one; hashes of several are hashes of theirs."""
    import xxhash

    if len(generations) == 1:
        return generations[0].source
    sources = [generation.source for generation in generations]
    orders = [source.indices_xxh3_128 for source in sources]
    lengths = "".join(source.lengths_xxh3_128 for source in sources)
    return SourceIdentity(
        files=tuple(file for source in sources for file in source.files),
        documents=sum(source.documents for source in sources),
        tokens=sum(source.tokens for source in sources),
        labels=any(source.labels for source in sources),
        lengths_xxh3_128=xxhash.xxh3_128_hexdigest(lengths.encode()),
        columns=sources[0].columns,
        text=sources[0].text,
        indices_xxh3_128=xxhash.xxh3_128_hexdigest(str(orders).encode()) if any(orders) else None,
    )


def summed_totals(generations: Sequence[Generation], max_len: int) -> Totals:
    """Return the totals of all generations: sums, and the efficiency of all rows.

    The lower bound is that of packing each generation separately, which may be above that of all documents together.

    Args:
        generations: the generations.
        max_len: length of a row.
    """
    if len(generations) == 1:
        return generations[0].totals
    parts = [generation.totals for generation in generations]
    values = {field.name: _sum([getattr(part, field.name) for part in parts]) for field in fields(Totals)}
    return Totals(**{**values, "efficiency": values["tokens_packed"] / (values["rows"] * max_len)})


def _sum(values: Sequence[Any]) -> Any:
    """Add numbers, numbers by name, or groups; None only if all are None."""
    there = [value for value in values if value is not None]
    if not there or isinstance(there[0], (int, float)):
        return sum(there) if there else None
    if isinstance(there[0], GroupTotals):
        return GroupTotals(**_sum([one.values() for one in there]))
    names: dict[str, None] = {name: None for one in there if isinstance(one, Mapping) for name in one}
    return {name: sum(one.get(name, 0) for one in there) for name in names}
