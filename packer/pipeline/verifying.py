"""Check a packed dataset against its source: every document, every token, every label, by content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.arrow import as_arrow, as_numpy
from packer.errors import PackerError
from packer.gather import NO_LOSS, TokenColumn, gather, mask_context
from packer.options import PackOptions
from packer.pipeline.mixing import Given, open_sources
from packer.pipeline.turns import split_at_turns
from packer.pipeline.untrained import without_untrained
from packer.plan import Segments
from packer.progress import Progress, silent
from packer.shards.columns import PADDING
from packer.shards.kept import KeptValues, same_values, tokens_at
from packer.shards.manifest import Manifest
from packer.shards.reader import open_shard, read_manifest
from packer.shards.verify import verify_packed
from packer.sources import Source, TokenTable
from packer.sources.mixture import Mixture
from packer.sources.taken import TakenInOrder
from packer.text import LIBRARIES

_COMPARED_TOGETHER = 4 << 20  # tokens


def verify(
    packed: str | Path,
    source: Given | Sequence[Given] | None = None,
    *,
    tokenizer: str | None = None,
    progress: Progress = silent,
) -> Iterator[str]:
    """Yield what is wrong with a packed dataset, a sentence each; nothing when it is right.

    Without `source`: hashes and structure. With it, every token of the source, too: it stands at the place that
    doc_ids and doc_starts say, once, with its label; or the long-document policy leaves it out. Text is tokenized
    again, as the manifest says; `tokenizer` is where its tokenizer is, if the name in the manifest does not tell. Of a
    mixture, give all sources in their order: every token stands there once for each copy, and nothing else does.

    Raises:
        PackerError: there is no packed dataset or no source to read.
    """
    folder = Path(packed)
    faults = 0
    for fault in verify_packed(folder, progress):
        faults += 1
        yield fault
    if source is None or faults:
        return
    manifest = read_manifest(folder)
    names = [part["name"] for part in manifest.source.get("mixture", [])]
    given = source if isinstance(source, (list, tuple)) else [source]
    if len(given) != max(len(names), 1):
        of = f"a mixture of {', '.join(names)}" if names else "packed from one source"
        raise PackerError(f"{folder} is {of}, and {len(given)} source(s) are given: give each one, in this order")
    opened = open_sources(list(given) if names else given[0], _options(folder, manifest, tokenizer))
    if isinstance(opened, Mixture):
        drawn = opened.draw()
        others = [f for pair in zip(drawn.identities, manifest.source["mixture"], strict=True) if (f := _other(*pair))]
        yield from others or _verify_source(folder, manifest, TakenInOrder(drawn), progress)
        return
    if opened.tokenized is not None:
        difference = _other_text(manifest.source.get("text") or {}, opened.tokenized.identity)
        if difference:
            yield difference
            return
    yield from _verify_source(folder, manifest, opened, progress)


def _other(found: Mapping[str, Any], told: Mapping[str, Any]) -> str | None:
    """Say in what a source of a mixture is not the one that was packed."""
    for name in told:
        if found.get(name) != told[name]:
            was = f"{name} is {found.get(name)}, the manifest says {told[name]}"
            return f"the source {told['name']} is not as it was packed: {was}"
    return None


def _options(folder: Path, manifest: Manifest, tokenizer: str | None) -> PackOptions:
    """The options of the pack, with the tokenizer at its place.

    Raises:
        PackerError: it is not known, or there was none.
    """
    options = PackOptions.from_dict(manifest.options)
    if tokenizer is None:
        name = options.tokenizer
        if name is not None and "/" not in name and not Path(name).exists():
            raise PackerError(f"{folder} was packed with the tokenizer {name}: say where it is by --tokenizer")
        return options
    if options.tokenizer is None:
        raise PackerError(f"{folder} was packed from tokens: leave --tokenizer {tokenizer} out")
    return replace(options, tokenizer=tokenizer)


def _other_text(packed: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """Say in what the text is tokenized otherwise than it was; versions of libraries are no matter here."""
    for name in dict.fromkeys([*packed, *found]):
        if name not in LIBRARIES and packed.get(name) != found.get(name):
            return f"it was packed with another {name}: {packed.get(name)}, here {found.get(name)}"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _PackedSegments:
    """Every segment of a packed dataset, ordered by document and start."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    places: NDArray[np.int64]
    """Where each begins: row * max_len + offset in the row."""

    columns: dict[str, TokenColumn]
    """The token columns: row r is list r."""

    kept: dict[str, pa.Array]
    """The kept columns, a value for each segment."""

    kept_tokens: dict[str, tuple[TokenColumn, pa.DataType]]
    """The kept columns of a value per token, and its type: row r is list r."""


def _read_segments(folder: Path, manifest: Manifest, source: Source | TakenInOrder) -> _PackedSegments:
    tables = [open_shard(folder, entry, manifest) for entry in manifest.shards]
    batches: list[pa.RecordBatch] = [batch for table in tables for batch in table.to_batches()]
    names = [name for name in ("input_ids", "labels") if name in batches[0].schema.names]
    columns = {name: TokenColumn.from_arrow([batch[name] for batch in batches]) for name in names}

    options = PackOptions.from_dict(manifest.options)
    kept_tokens = {
        name: (TokenColumn.from_arrow([batch[name] for batch in batches]), batches[0][name].type.value_type)
        for name in options.keep_tokens
    }
    kept: dict[str, list[pa.Array]] = {name: [] for name in options.kept}
    count = sum(int(np.count_nonzero(as_numpy(batch["doc_ids"].values) != PADDING)) for batch in batches)
    documents, places = np.empty(count, np.int64), np.empty(count, np.int64)
    starts, lengths = np.empty(count, np.int32), np.empty(count, np.int32)
    row = end = 0
    for batch in batches:
        extents = as_numpy(batch["seq_lengths"].values)
        tokens = as_numpy(batch["seq_tokens"].values) if "seq_tokens" in batch.schema.names else extents
        ids = as_numpy(batch["doc_ids"].values)
        real = ids != PADDING
        part = slice(end, end := end + int(np.count_nonzero(real)))
        documents[part], lengths[part] = ids[real], tokens[real]
        if isinstance(source, TakenInOrder):
            sources, copies = (as_numpy(batch[name].values)[real] for name in ("source_ids", "copy"))
            documents[part] = source.numbers(sources, ids[real], copies)
        for name, parts in kept.items():
            parts.append(batch[name].values.filter(pa.array(real)))
        starts[part] = as_numpy(batch["doc_starts"].values)[real]
        places[part] = (row * manifest.max_len + np.cumsum(extents, dtype=np.int64) - extents)[real]
        row += batch.num_rows
    order = np.lexsort((starts, documents))
    documents, starts = documents[order], starts[order]  # one after the other: each frees what it replaces
    lengths, places = lengths[order], places[order]
    return _PackedSegments(
        documents=documents,
        starts=starts,
        lengths=lengths,
        places=places,
        columns=columns,
        kept={name: pa.concat_arrays(parts).take(as_arrow(order)) for name, parts in kept.items()},
        kept_tokens=kept_tokens,
    )


def _verify_source(
    folder: Path, manifest: Manifest, source: Source | TakenInOrder, progress: Progress
) -> Iterator[str]:
    packed = _read_segments(folder, manifest, source)
    options = PackOptions.from_dict(manifest.options)
    algorithm = get_algorithm(options.algorithm)
    keeps_whole = not isinstance(algorithm, OrderAlgorithm) or algorithm.keeps_whole
    seen = documents = tokens = 0
    for table in source.tables():
        segments = split_at_turns(options.cut(table.lengths), table, options)
        segments = without_untrained(segments, table, options)
        if not keeps_whole:
            segments = segments.cut_at(*_cuts(packed, seen, table.first_document, segments))
        local, starts, lengths = segments.locate(segments.numbers())
        order = np.lexsort((starts, local))
        local, starts, lengths = local[order], starts[order], lengths[order]
        here = slice(seen, seen + len(local))
        expected: tuple[NDArray[Any], ...] = (local + table.first_document, starts, lengths)
        found: tuple[NDArray[Any], ...] = (packed.documents[here], packed.starts[here], packed.lengths[here])
        for one, other in zip(expected, found, strict=True):
            short = min(len(one), len(other))
            differ = np.flatnonzero(one[:short] != other[:short])
            if len(differ) or len(one) != len(other):
                at = int(differ[0]) if len(differ) else short
                which = source.describe(int(expected[0][min(at, len(local) - 1)]))
                yield f"{which} is not in the rows as the source has it: missing, doubled or cut elsewhere"
                return
        cut = local, starts, lengths, segments.context_of(starts)
        yield from _compare_values(packed, manifest.max_len, here, table, cut, source)
        seen += len(local)
        documents += len(table.lengths)
        tokens += int(table.lengths.sum(dtype=np.int64))
        progress("compare", tokens, manifest.totals["tokens"])
    if seen != len(packed.documents):
        yield f"{len(packed.documents) - seen:,} segments in the rows are not in the source"
    for what, there in (("documents", documents), ("tokens", tokens)):
        if there != manifest.totals[what]:
            yield f"the source has {there:,} {what}, the manifest says {manifest.totals[what]:,}"


def _cuts(
    packed: _PackedSegments, seen: int, first_document: int, segments: Segments
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where the documents of a table, whose segments begin at number `seen`, are cut in the rows: (documents, starts).

    Only what can be a cut is returned: whatever else the rows hold will not be found as the source has it.
    """
    end = np.searchsorted(packed.documents, first_document + segments.documents)
    documents, starts = packed.documents[seen:end] - first_document, packed.starts[seen:end]
    is_cut = (documents >= 0) & (starts > 0) & (starts < segments.kept_lengths(0, segments.documents)[documents])
    is_cut[1:] &= (documents[1:] != documents[:-1]) | (starts[1:] != starts[:-1])
    return documents[is_cut], starts[is_cut]


def _compare_values(
    packed: _PackedSegments,
    max_len: int,
    here: slice,
    table: TokenTable,
    cut: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    source: Source | TakenInOrder,
) -> Iterator[str]:
    """Compare the values of a table's segments with those in the rows, a few million at a time."""
    local, starts, lengths, context = cut
    lists = local if table.rows is None else table.rows[local].astype(np.int64)
    ends = np.cumsum(lengths)
    first = 0
    while first < len(local):
        before = ends[first] - lengths[first]
        last = max(first + 1, int(np.searchsorted(ends, before + _COMPARED_TOGETHER, side="right")))
        part = slice(first, last)
        places = ends[part] - lengths[part] - before
        size = int(ends[last - 1] - before)
        from_source = (lists[part], starts[part], lengths[part], places)
        rows = slice(here.start + first, here.start + last)
        from_rows = (*np.divmod(packed.places[rows], max_len), lengths[part], places)
        yield from _compare_kept(packed, table, from_source, from_rows, rows, source)
        for name, column in packed.columns.items():
            origin = table.labels if name == "labels" and table.labels is not None else table.input_ids
            expected, found = np.empty(size, np.int32), np.empty(size, np.int32)
            allowed = NO_LOSS if name == "labels" else 0
            bad = gather(origin.addresses, *from_source, allowed, expected)
            if bad >= 0:
                which = source.describe(table.first_document + int(local[first + bad]))
                yield f"{which}: {name} of the source is out of range"
                return
            gather(column.addresses, *from_rows, NO_LOSS, found)
            if name == "labels":
                mask_context(places, context[part], NO_LOSS, expected)
            differ = np.flatnonzero(expected != found)
            if len(differ):
                segment = int(np.searchsorted(places, differ[0], side="right")) - 1
                position = int(starts[first + segment] + differ[0] - places[segment])
                which = source.describe(table.first_document + int(local[first + segment]))
                yield (
                    f"{which}: {name} at position {position} is {expected[differ[0]]} in the source, "
                    f"{found[differ[0]]} in row {packed.places[here.start + first + segment] // max_len}"
                )
                return
        first = last


def _compare_kept(
    packed: _PackedSegments,
    table: TokenTable,
    from_source: tuple[NDArray[np.int64], ...],
    from_rows: tuple[NDArray[np.int64], ...],
    segments: slice,
    source: Source | TakenInOrder,
) -> Iterator[str]:
    """Compare the kept columns of some segments; `from_source` and `from_rows` are (lists, starts, lengths, places)."""
    lists, _, lengths, places = from_source
    size = int(lengths.sum())
    pairs = {}
    for name, (column, value_type) in packed.kept_tokens.items():
        origin = TokenColumn.from_arrow(table.extra[name].chunks)
        pairs[name] = tokens_at(origin, value_type, size, *from_source), tokens_at(column, value_type, size, *from_rows)
    for name, values in packed.kept.items():
        expected = KeptValues.of({name: table.extra[name]}, lists).column(name, lists, np.zeros(len(lists), bool))
        pairs[name] = expected, values[segments.start : segments.stop]
    for name, (expected, found) in pairs.items():
        at = same_values(expected, found)
        if at is not None:
            segment = int(np.searchsorted(places, at, side="right")) - 1 if name in packed.kept_tokens else at
            which = source.describe(int(packed.documents[segments.start + segment]))
            yield f"{which}: {name} is {expected[at]} in the source, {found[at]} in the rows"
