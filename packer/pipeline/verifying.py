"""Check a packed dataset, alone or against its source. With the source, rows are made again and totals recomputed.

The segments of the rows serve as the plan. Sums of hashes show whether these are the segments that the options cut from
the source. Sums need little memory, and do not depend on the order of segments. A segment that is missing, repeated or
cut elsewhere changes the sum of its documents.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.bounds import cut_bound
from packer.algorithms.permute import hashes_of
from packer.arrow import as_numpy, format_value, has_dtype
from packer.engines.engine import Engine, available_workers
from packer.errors import SourceError, system_errors
from packer.json_records import REMEDY, SourceIdentity
from packer.options import values_of
from packer.output.job import Job
from packer.pipeline.source_warnings import with_counts
from packer.pipeline.write_shards import RowMaker
from packer.plan.rows import located_segments
from packer.plan.segments import SegmentChunk, SegmentReader, each_chunk, trained_cut_off
from packer.plan.whole_plan import document_values, group_totals, together_bound
from packer.progress import Progress, TaskSums, python_call
from packer.shards.check_shards import count_faults, differences, verify_packed
from packer.shards.files import holdout_of
from packer.shards.located_rows import SEGMENT, LocatedRows, is_segment
from packer.shards.manifest import Manifest, is_packed
from packer.shards.reader import checked_batches, read_manifest
from packer.shards.row_checks import group_fault, group_values
from packer.shards.row_format import RowFormat
from packer.shards.writer import CopiedRows, Counts
from packer.signals import CURRENT_TASK
from packer.sources.column_types import cast, join
from packer.sources.find_source import SourceLike
from packer.sources.open_source import open_packed_source
from packer.sources.source import Documents, Source, read_documents
from packer.sources.spill import spill_source
from packer.stores import AnyPath
from packer.stores.local_files import temporary_directory
from packer.stores.paths import expanded, located, packed_path
from packer.text.text_source import open_source
from packer.token_memory.token_column import lengths_of

_SHOWN = 20  # maximum number of faults in the `repr` of a result


class Verification(list[str]):
    """List of the faults of a packed dataset, one sentence each. Unlike other lists, it is true if it is empty."""

    def __init__(self, folder: AnyPath, faults: Iterable[str]) -> None:
        super().__init__(faults)
        self._folder = folder

    def __bool__(self) -> bool:
        return not len(self)

    def __repr__(self) -> str:
        """Return "FOLDER is verified", or the list of its faults: "dataset-packed-4096 has 1 fault: ..."."""
        if self:
            return f"{self._folder} is verified"
        faults = f"{len(self):,} fault{'s' if len(self) > 1 else ''}"
        return "\n  ".join([f"{self._folder} has {faults}:", *self[:_SHOWN], *(["..."] if len(self) > _SHOWN else [])])


def verify(
    packed: str | AnyPath,
    source: SourceLike | Sequence[SourceLike] | None = None,
    *,
    tokenizer: str | None = None,
    workers: int | None = None,
    engine: str = "threads",
    progress: Progress | bool = True,
) -> Verification:
    """Check a packed dataset. Returns a list of its faults, which is true if it is empty.

    `if packer.verify(packed): train()` trains only on a dataset without faults.

    Without `source`, this checks hashes, structure, the totals of the manifest, and groups if their column is kept.
    With `source`, every expected token, its label and its position are also compared with the source, and the totals
    are recomputed from it. Two totals are not recomputed, because only the planner knows them: `rows_ungrouped`, and
    `lower_bound` if the algorithm may improve on the bounds of `packer.algorithms.bounds`.

    Args:
        packed: folder of the packed dataset.
        source: source that was packed, or a list of all its paths in order. Text is tokenized again.
        tokenizer: path or Hub id of the tokenizer, if it cannot be found by its name in the manifest.
        workers: number of shards that are checked at the same time; by default the number of available cores.
        engine: "threads", or as in `pack` a Ray cluster with the same storage, which then checks the shards.
        progress: as in `pack`; the stages are "verify", in bytes of the shards, and "compare", in tokens.

    Raises:
        PackerError: the packed dataset or the source cannot be read.
    """
    with python_call(progress) as shown:
        job = Job(**values_of(Job, {"workers": workers, "engine": engine, "progress": shown}))
        folder = packed_path(packed)
        return Verification(folder, _faults(folder, expanded(located(source)), tokenizer, job))


def _faults(
    folder: AnyPath, source: SourceLike | Sequence[SourceLike] | None, tokenizer: str | None, job: Job
) -> Iterator[str]:
    """Yield the faults that `verify` returns."""
    with system_errors(folder, resumes=False), job.alone() as engine:
        faults = [*verify_packed(folder, job.progress, engine)]
    yield from faults
    if faults:
        return
    manifest = read_manifest(folder)
    yield from _holdout_faults(folder, manifest)
    if source is None:
        return
    opened = open_packed_source(folder, manifest, source, tokenizer, opener=open_source)
    try:
        workers = job.workers or available_workers()
        yield from compare_opened(folder, manifest, opened, workers=workers, progress=job.progress)
    except SourceError as error:  # drop the remedy, which is meant for packing
        raise SourceError(str(error).removesuffix(f"; {REMEDY}")) from error


def _holdout_faults(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence if a dataset and its holdout, the folder next to it, may share documents."""
    ours, other = manifest.options, holdout_of(folder, is_holdout=manifest.options.is_holdout)
    if ours.holdout is None or other == folder or not is_packed(other):
        return
    theirs = read_manifest(other).options
    if (ours.seed, ours.holdout, not ours.is_holdout) != (theirs.seed, theirs.holdout, theirs.is_holdout):
        yield (
            f"{other} may share documents with it, because other documents were held out there: holdout is "
            f"{theirs.holdout} with seed {theirs.seed}, here {ours.holdout} with seed {ours.seed}"
        )


def compare_opened(
    folder: AnyPath, manifest: Manifest, opened: Source, *, workers: int, progress: Progress
) -> Iterator[str]:
    """Yield a sentence for each difference between the rows and an open source.

    Files that cannot be mapped are decoded to temporary files.
    """
    packed = manifest.source
    fault = _text_fault(packed, opened)
    if fault is not None:
        yield fault
        return
    with ExitStack() as stack:
        decoded = stack.enter_context(temporary_directory())
        opened = spill_source(opened, decoded, progress, engine=Engine(workers=workers))
        documents = read_documents(opened, progress)
        if (ours := manifest.options.weights_per) != (theirs := documents.source.weights_per):
            yield f"weights_per is {theirs} in the source, {ours} in the rows"
            return
        faults = [*SourceComparison(folder=folder, manifest=manifest, documents=documents).faults(workers, progress)]
    yield from faults
    if not faults:
        yield from identity_faults(packed, documents.identity)
        yield from differences(manifest.totals, with_counts(manifest.totals, documents).to_dict(), "the source")


def _text_fault(recorded: SourceIdentity, opened: Source) -> str | None:
    """Return the first difference in how text is tokenized, except library versions; None if there is none."""
    packed = recorded.text.without_versions() if recorded.text is not None else {}
    found = opened.text.without_versions() if opened.text is not None else {}
    if bool(packed) != bool(found):
        kinds = ("text" if text else "tokens" for text in (packed, found))
        return "it was packed from {}, here it holds {}".format(*kinds)
    if packed and packed["columns"] != found["columns"]:
        is_other_kind = packed["columns"][0] != found["columns"][0]
        ours, theirs = (text["columns"][0] if is_other_kind else text["columns"] for text in (packed, found))
        return f"it was packed from {ours!r}, and this source has {theirs!r}: give the source that was packed"
    for name in dict.fromkeys([*packed, *found]):
        if packed.get(name) != found.get(name):
            return f"it was packed with another {name}: {packed.get(name)}, here {found.get(name)}"
    return None


def identity_faults(recorded: SourceIdentity, found: SourceIdentity) -> Iterator[str]:
    """Yield a sentence for each difference between a source and the identity in the manifest.

    `_text_fault` compares how text was tokenized. Names and sizes of files may differ: the same documents in other
    files, or compressed, are the same source. If all file names match, each file must also have the same number of
    documents and tokens.
    """
    one, other = ({**identity.to_dict(), "text": None} for identity in (recorded, found))
    files = [each.pop("files") for each in (one, other)]
    if [file["name"] for file in files[0]] == [file["name"] for file in files[1]]:
        for number, (file, its_like) in enumerate(zip(*files, strict=True)):
            for fault in _differing({**file, "bytes": None}, {**its_like, "bytes": None}):
                yield f"{fault} (files, number {number})"
    yield from _differing(one, other)


def _differing(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*recorded, *found]):
        one, other = recorded.get(name), found.get(name)
        if one != other:
            yield f"the source differs from the packed one: {name} is {other}, the manifest says {one}"


BUCKETS = 1 << 16
"""Maximum number of ranges of documents whose segments are compared at the same time, by one sum each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentSums:
    """Sums of hashes of segments, one for each of up to BUCKETS ranges of the documents first to last - 1.

    Equal sums mean equal segments: hashes have a random key, so different segments have the same sum with a probability
    of 2**-64.
    """

    first: int
    last: int
    end: int
    """Number of documents in the source; this number also stands for all higher ones."""

    key: np.uint64
    keeps_whole: bool
    """Whether positions of cuts must be equal. If not, the hash of a segment is the hash of its end minus the hash of
    its start, so the sum of a document's segments depends only on where the first one starts and the last one ends."""

    @property
    def width(self) -> int:
        """Number of documents in a range."""
        return -(-(self.last - self.first) // BUCKETS)

    def of(self, segments: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the sums of the given segments, an array of SEGMENT, as far as they belong to these documents."""
        numbers = np.minimum(segments["document"], self.end)
        is_here = (numbers >= self.first) & (numbers < self.last)
        segments, numbers = segments[is_here], numbers[is_here]
        starts, lengths = segments["start"].astype(np.int64), segments["length"].astype(np.int64)
        keys = hashes_of(self.key, segments["document"])
        if self.keeps_whole:
            hashes = hashes_of(keys, starts << 32 | lengths)
        else:
            hashes = hashes_of(keys, starts + lengths) - hashes_of(keys, starts)
        sums = np.zeros(-(-(self.last - self.first) // self.width), np.uint64)
        np.add.at(sums, (numbers - self.first) // self.width, hashes)
        return sums

    def within(self, bucket: int) -> SegmentSums:
        """Return `SegmentSums` for the documents of one range."""
        first = self.first + bucket * self.width
        return replace(self, first=first, last=min(first + self.width, self.last))


class ShardComparison(NamedTuple):
    """Result of comparing a shard."""

    sums: NDArray[np.uint64]
    """Sums of the shard's segments; see `SegmentSums`."""

    split: int
    """Number of segments that begin a document but do not hold all of it."""

    faults: tuple[str, ...]
    """Sentences for the first difference from the source, and for the first row with several groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceComparison:
    """A packed dataset and the mapped, checked documents of its source."""

    folder: AnyPath
    manifest: Manifest
    documents: Documents

    @property
    def reader(self) -> SegmentReader:
        """Reader of the segments that the options cut from the source."""
        count = self.documents.identity.documents
        return SegmentReader(options=self.manifest.options, documents=count, source=self.documents)

    def faults(self, workers: int, progress: Progress) -> Iterator[str]:
        """Yield a sentence for each difference. Progress is reported as "compare", in tokens of the rows."""
        options, shards = self.manifest.options, self.manifest.shards
        count, packed = self.documents.identity.documents, self.manifest.source.documents
        key = np.uint64(secrets.randbits(64))
        sums = SegmentSums(first=0, last=count + 1, end=count, key=key, keeps_whole=options.keeps_whole)

        # Compare every value of the rows.
        found, split, faults = sums.of(np.zeros(0, SEGMENT)), 0, dict[int, tuple[str, ...]]()
        report = TaskSums(lambda done: progress("compare", done, self.manifest.totals.tokens_packed))
        for shard, one in Engine(workers=workers).run(partial(self._compare, sums), range(len(shards)), report):
            found, split, faults[shard] = found + one.sums, split + one.split, one.faults
            report(shard, shards[shard].tokens)

        # Count the documents and their segments.
        if count != packed:
            yield f"the source has {count:,} documents, the manifest says {packed:,}"
        expected, account, histogram = np.zeros_like(found), None, np.zeros(options.max_len + 1, np.int64)
        for chunk in self._expected(sums, workers):
            expected += chunk.values
            account = chunk.account if account is None else account + chunk.account
            histogram += chunk.histogram
        differ = np.flatnonzero(expected != found)
        if len(differ):
            yield self._other_segments(sums.within(int(differ[0])))
        if len(differ) or count != packed:
            return
        in_values = [fault for _, of_shard in sorted(faults.items()) for fault in of_shard]
        if in_values:
            yield from in_values
            return
        assert account is not None
        counted = self._bounds(histogram) | ({} if options.keeps_whole else {"documents_split": split})
        if options.on_error == "skip":
            counted["documents_rejected"] = rejected = self.documents.source.rejections.counts
            account = account.with_rejected(sum(rejected.values()))
        counted["tokens_trained_truncated"] = trained_cut_off(self.documents, options, workers)
        yield from differences(self.manifest.totals, account.to_dict() | counted, "the source")

    def _expected(self, sums: SegmentSums, workers: int) -> Iterator[SegmentChunk]:
        """Cut the documents of the source by the options. `values` of a chunk are the sums of its segments."""
        last = min(sums.last, sums.end)
        return each_chunk(
            self.reader, lambda each: sums.of(located_segments(each, each.numbers())), workers, sums.first, last
        )

    def _bounds(self, histogram: NDArray[np.int64]) -> dict[str, object]:
        """Return the totals of groups, and the lower bound on rows if it follows from the source alone."""
        options, totals = self.manifest.options, self.manifest.totals
        if options.group_by is not None:
            groups = document_values(self.documents, self.documents.table.extra, options).groups
            assert groups is not None
            ungrouped = totals.groups.rows_ungrouped if totals.groups is not None else 0  # depends on the algorithm
            bound = together_bound(self.reader.all_segments(), groups, options.max_segments)
            return {"groups": group_totals(groups, ungrouped).to_dict(), "lower_bound": bound}
        return {} if options.keeps_whole else {"lower_bound": cut_bound(histogram, options.max_segments)}

    def _other_segments(self, sums: SegmentSums) -> str:
        """Return a sentence that names the first document, among those of `sums`, whose segments differ."""
        while sums.last - sums.first > 1:
            expected = sum(chunk.values for chunk in self._expected(sums, 1))
            found = sum(sums.of(self._rows(shard)[1].values) for shard in range(len(self.manifest.shards)))
            sums = sums.within(int(np.flatnonzero(expected != found)[0]))
        if sums.first == sums.end:
            return f"the rows hold documents from number {sums.end:,} on, which are not in the source"
        where = self.documents.describe(sums.first)
        return f"{where} is in the source, but missing from the rows, repeated or cut elsewhere there"

    def _rows(self, shard: int) -> tuple[pa.Table, LocatedRows]:
        """Return a shard as a table, and the segments of its rows."""
        batches = [*checked_batches(self.folder, self.manifest.shards[shard], self.manifest, compares_hash=False)]
        return pa.Table.from_batches(batches), LocatedRows.joined(map(LocatedRows.of_batch, batches))

    def _compare(self, sums: SegmentSums, shard: int) -> tuple[int, ShardComparison]:
        """Compare a shard; its segments may belong to any documents. Returns its number and the result."""
        table, rows = self._rows(shard)
        documents, starts, lengths = rows.documents, rows.starts, rows.lengths
        faults, split, kept = list[str](), 0, np.empty(len(documents), np.int32)
        if documents.max() < sums.end:
            lengths_of(self.documents.table.input_ids.addresses, documents, kept)
            if (starts + lengths <= kept).all():
                faults += self._value_faults(shard, table, rows)
            if self.manifest.options.long == "truncate":
                kept = np.minimum(kept, self.manifest.max_len)
            split = int(np.count_nonzero((starts == 0) & (lengths < kept)))
        return shard, ShardComparison(sums.of(rows.values), split, tuple(faults))

    def _value_faults(self, shard: int, table: pa.Table, rows: LocatedRows) -> Iterator[str]:
        """Yield sentences for the first value that differs from the source, and for the first row with two groups."""
        options, entry = self.manifest.options, self.manifest.shards[shard]
        extra = self.documents.table.extra
        maker = RowMaker(documents=self.documents, row_format=RowFormat.of(options, extra))
        first_row, first = int(self.manifest.shards.column("rows")[:shard].sum()), 0
        counted = Counts()
        try:
            for made, counts in map(CopiedRows.batch, maker.copied(rows)):
                CURRENT_TASK.report(entry.tokens * first // len(table))
                found = table.slice(first, made.num_rows)
                for name in made.schema.names:
                    column = found[name].combine_chunks()
                    at = _difference(made[name].flatten(), column.flatten())
                    if at is not None:
                        yield self._described(made, column, name, at, first_row + first)
                        return
                first += made.num_rows
                counted = counted.with_counts(counts)
        except SourceError as error:
            yield str(error).removesuffix(f"; {REMEDY}")
            return
        yield from count_faults(entry, counted)
        if options.group_by is not None:
            name, documents = options.group_by, rows.documents
            groups = group_values(extra[name].of_lists(documents), name)
            fault = group_fault(
                rows.row_numbers, groups, options, lambda at: self.documents.describe(int(documents[at]))
            )
            if fault is not None:
                yield f"{entry.file} row {fault[0]} {fault[1]}"

    def _described(self, made: pa.RecordBatch, found: pa.Array, name: str, at: int, first_row: int) -> str:
        """Describe value number `at` of a column, which differs from the value in rows made from the source."""
        segments, row, where, options = LocatedRows.of_batch(made), "the rows", "padding", self.manifest.options
        values = [format_value(each.flatten()[at]) for each in (made[name], found)]
        if pa.types.is_fixed_size_list(found.type):
            row = f"row {first_row + at // options.max_len}"
            places = segments.places(options.align, options.max_len)
            number = int(np.searchsorted(places, at, side="right")) - 1
            position = at - int(places[number])
            is_of_segment = position < segments.lengths[number]
            name = f"{name} at position {position + segments.starts[number]}" if is_of_segment else name
        else:
            are_segments = is_segment(made)
            number, is_of_segment = int(np.count_nonzero(are_segments[:at])), bool(are_segments[at])
        if is_of_segment:
            where = self.documents.describe(int(segments.documents[number]))
        return f"{where}: {name} is {values[0]} in the source, {values[1]} in {row}"


def _difference(expected: pa.Array, found: pa.Array) -> int | None:
    """Return the first position where the values of two arrays differ, or None. 1 equals 1.0, and NaN equals NaN.

    Types may differ: another file may store the same values in other types.
    """
    kind = join(expected.type, found.type)
    with suppress(pa.ArrowInvalid):  # if a value does not fit the joint type, compares one by one
        if kind is not None:
            expected, found = cast(expected, kind), cast(found, kind)
            if expected.equals(found):
                return None
    if expected.type == found.type and has_dtype(found.type) and not expected.null_count + found.null_count:
        one, other = (as_numpy(each).reshape(len(found), -1) for each in (expected, found))
        differ = np.flatnonzero(((one != other) & ((one == one) | (other == other))).any(axis=1))
        return int(differ[0]) if len(differ) else None
    pairs = enumerate(zip(expected, found, strict=True))
    return next((at for at, (one, other) in pairs if not _is_same(one, other)), None)


def _is_same(one: pa.Scalar, other: pa.Scalar) -> bool:
    """Whether two values are equal. NaN equals NaN, also inside a nested value."""
    if one.equals(other):
        return True
    try:
        values = one.as_py(), other.as_py()
    except (OverflowError, ValueError):  # a date outside Python's range
        return False
    return bool(values[0] == values[1]) or repr(values[0]) == repr(values[1])
