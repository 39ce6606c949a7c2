"""Already packed rows: records with several documents, and columns that mark the document boundaries.

`seq_lengths` [3, 2], `cu_seqlens` [0, 3, 5], `seq_start_id` [0, 3], `position_ids` [0, 1, 2, 0, 1] and `segment_ids`
[1, 1, 1, 2, 2] mean the same. Columns that contradict each other are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.index_arrays import restart_positions
from packer.arrow import as_arrow, as_numpy
from packer.arrow import compute as pc
from packer.column_names import NO_LOSS, ROW_DOCUMENT
from packer.errors import PackerError, SourceError
from packer.shards.files import EXPORT_RECORD
from packer.sources.column_types import as_plain, is_list, is_string, plain_type, shown
from packer.sources.documents import COLUMNS, Batch, Columns, DocumentError, null_message
from packer.sources.format_reader import Lists, Reader
from packer.sources.inputs import Input, all_in_place, decoded_lists
from packer.sources.list_checks import (
    STRIPPED,
    BlockRecords,
    apply_masks,
    as_lists,
    check_lists,
    length_fault,
    mask_values,
    read_lists,
    values_of,
    values_of_column,
    weights_in,
)
from packer.sources.meanings import ATTENTION, INVERSE_MASKS, LISTS, PROMPT_LENGTHS, Field, Means, fields_in
from packer.stores import RemotePath
from packer.token_memory.token_column import list_lengths

_LIST_AS_TEXT = re.compile(r"[\[(]?\s*\d+(?:[,\s]+\d+)+[,\s]*[\])]?|[\[(]\s*\d+\s*[\])]")
"""Matches "3 2", "3,2", "[3, 2]" and "[5]", but no single number, which may be the name of a sequence."""

ROWS = "rows"
"""Key of `Batch.counts`: number of already packed rows."""


class RowColumns(NamedTuple):
    """Columns of already packed rows."""

    documents: Columns
    """Columns of the documents in the rows."""

    masks: tuple[str, ...]
    numbers: tuple[str, ...]
    """Columns of `documents` with one number per row."""

    bounds: Mapping[str, Means]
    """Columns that mark document boundaries, with the way each does so."""

    trained: str | None
    """Mask column for shifted labels (0: the next token is not trained); None if labels are not shifted."""

    @property
    def read(self) -> Columns:
        """All columns that are read."""
        per_token = [name for name in self.masks if name not in self.numbers]
        per_token += [name for name, how in self.bounds.items() if how not in LISTS]
        per_token += [self.trained] if self.trained else []
        documents = self.documents
        extra = dict.fromkeys((*documents.extra, *per_token, *self.numbers, *self.bounds))
        absent = tuple(name for name in documents.absent if name not in (*extra, documents.labels))
        per_token = [*dict.fromkeys((*documents.per_token, *per_token))]
        return documents._replace(extra=(*extra,), per_token=(*per_token,), masks=self.numbers, absent=absent)


def row_columns(readers: Sequence[Reader], names: Sequence[str], read: Columns, columns: Columns) -> RowColumns | None:
    """Return the columns if one marks document boundaries in rows; None if each record is a document.

    `columns` are the columns of documents, and `read` also has the masks. Token and label columns have the names that
    the tool with this boundary column gives them. Raises a PackerError if documents cannot be told apart.
    """
    for path in (reader.path for reader in readers if reader.file.name.endswith(".idx")):
        if (path.parent / EXPORT_RECORD).is_file():
            raise PackerError(
                f"{path} holds rows that `packer export` wrote, in which documents end with EOS alone: pack the source "
                "that they were packed from"
            )
    known = fields_in("tokens", names)
    bounds = _bounds_in(readers, known)
    if not bounds:
        return None
    tools, trained = {tool for name in bounds for tool in known[name].by.split(", ")}, None
    of_tool = {field.means: field.name for field in known.values() if field.by in tools}
    shifted = of_tool.get("shifted_labels")
    if COLUMNS.input_ids == columns.input_ids not in names:
        columns = columns._replace(input_ids=of_tool.get("token_ids", columns.input_ids))
    if shifted is not None and (columns.labels == shifted or COLUMNS.labels == columns.labels not in names):
        columns, trained = columns._replace(labels=shifted), of_tool.get("shifted_numbers")
    numbers = tuple(name for name in read.masks if name not in read.per_token)
    return RowColumns(columns, read.masks, numbers, bounds, trained)


def _bounds_in(readers: Sequence[Reader], known: Mapping[str, Field]) -> dict[str, Means]:
    """Return the known list columns that mark document boundaries in rows, with the way each does so.

    Columns of numbers or names, such as the name of a sequence, do not count; a list that is stored as text is refused.
    The first values of an attention mask show whether it numbers documents; in object storage, they are not read.
    """
    sought = told = [name for name, field in known.items() if field.means in _EXPECTED]
    reader = next((reader for reader in readers if reader.fields), None)
    if reader is None or (not sought and ATTENTION not in known):
        return {}
    fields: Any = reader.fields
    if isinstance(fields, pa.Schema):
        sought = [name for name in sought if is_list(plain_type(fields.types[fields.names.index(name)]))]
    else:
        sought = [name for name in sought if isinstance(fields.get(name), list)]
    _refuse_lists_as_text(reader, [name for name in told if name not in sought])
    if not sought and ATTENTION in known and not isinstance(reader.file.path, RemotePath):
        # errors are raised again when all documents are read
        with suppress(SourceError, DocumentError, pa.ArrowException, TypeError, ValueError):
            records = reader.for_records()
            for block, _ in islice(records.blocks((ATTENTION,)), 1):
                if _most(values_of_column(records.records(block, (ATTENTION,))[0], ATTENTION)) > 1:
                    return {ATTENTION: "numbers"}
    return {name: known[name].means for name in sought}


def _refuse_lists_as_text(reader: Reader, names: Sequence[str]) -> None:
    """Raise a SourceError if the first value of a boundary column is a list of numbers as text: "3 2" or "[3, 2]"."""
    fields: Any = reader.fields
    first = {} if isinstance(fields, pa.Schema) else {name: fields.get(name) for name in names}
    if isinstance(fields, pa.Schema):
        texts = [name for name in names if is_string(plain_type(fields.field(name).type))]
        for block, _ in islice(reader.for_records().blocks(texts), 1 if texts else 0):
            first = {name: block.column(name)[0].as_py() for name in texts if len(block)}
    for name, value in first.items():
        if isinstance(value, str) and _LIST_AS_TEXT.fullmatch(value[:200].strip()):
            raise SourceError(
                f"{reader.file.name}: '{name}' holds {value!r:.40}, a list as text, and says where documents begin: "
                "write a list of whole numbers, or remove the column"
            )


def _most(lists: pa.Array) -> int:
    """Return the largest value in lists, at least 0."""
    return int(pc.max(pc.list_flatten(lists)).as_py() or 0)


def are_documents(input_: Input, rows: RowColumns) -> bool:
    """Whether the positions of a mapped input show that each row is one document, so that decoding is unnecessary."""

    def restart(tokens: pa.Array, *columns: pa.Array) -> bool:
        found = map(values_of, columns)
        positions = restart_positions(list_lengths(tokens))
        return all(pa.types.is_integer(each.type) and np.array_equal(as_numpy(each), positions) for each in found)

    is_told = {*rows.bounds.values()} == {"positions"}
    return is_told and all_in_place(input_, (rows.documents.input_ids, *rows.bounds), restart)


def with_documents(lists: Lists, rows: RowColumns, *, skips: bool) -> Input:
    """Return rows as an input that divides them into documents while reading."""
    has_labels, makes_labels = bool(lists.has_labels), not {*rows.masks} <= {ATTENTION}
    decoded = decoded_lists(lists, rows.documents, makes_labels=makes_labels, skips=skips)
    return replace(
        decoded,
        needed=tuple(dict.fromkeys(rows.read.wanted(has_labels=has_labels))),
        decode=partial(documents_of, rows=rows, has_labels=has_labels, makes_labels=bool(decoded.has_labels)),
        numbers_documents=ROW_DOCUMENT,
    )


def documents_of(records: BlockRecords, *, rows: RowColumns, has_labels: bool, makes_labels: bool) -> Batch:
    """Return the checked documents of rows, with labels if the rows have labels or loss masks.

    Raises a DocumentError with the number of the first unusable row.
    """
    # Read the rows, and find their documents.
    read = read_lists(records, rows.read, has_labels=has_labels)
    if (fault := length_fault(read, rows.read)) is not None:
        raise fault
    numbered = ATTENTION in rows.masks and _most(read.extra[ATTENTION]) > 1
    masks = tuple(name for name in rows.masks if name != ATTENTION or not numbered)
    bounds: dict[str, Means] = {**rows.bounds}
    bounds |= {ATTENTION: "numbers" if numbered else "attention"} if ATTENTION in rows.masks else {}
    lists = {name: read.extra[name] if name in read.extra else values_of_column(records, name) for name in bounds}
    is_token, sizes, found = _documents_in(read, lists, bounds, rows)
    kept = as_arrow(is_token)
    several = np.flatnonzero(np.bincount(found, minlength=len(read.input_ids)) > 1)
    for name in (name for name in rows.numbers if name in PROMPT_LENGTHS and len(several)):
        message = f"'{name}' is one number, and the row holds several documents: give a mask, as in loss_mask, instead"
        raise DocumentError(int(several[0]), message, reason="invalid_labels")

    def cut(values: pa.Array) -> pa.Array:
        return as_lists(values, sizes, pa.large_list(values.type))

    def unshifted(values: NDArray[Any], first: int) -> pa.Array:
        """Undo the shift of values that belong to the next token: [5, 6, -100] of one document -> [first, 5, 6]."""
        moved = np.roll(values, 1)
        moved[(np.cumsum(sizes) - sizes)[sizes > 0]] = first
        return cut(as_arrow(moved))

    # Cut every list, undo the shift of labels and masks for the next token, and check and mask the documents.
    columns = rows.documents._replace(per_token=(*rows.documents.per_token, *masks), masks=masks)
    extra = {name: cut(values_of(read.extra[name]).filter(kept)) for name in columns.per_token}
    labels = None if read.labels is None else cut(values_of(read.labels).filter(kept))
    if labels is not None and rows.trained:
        is_trained = as_numpy(values_of(read.extra[rows.trained]))[is_token] != 0
        labels = unshifted(np.where(is_trained, as_numpy(values_of(labels).cast(pa.int64())), NO_LOSS), NO_LOSS)
    counts = {ROWS: len(read.input_ids), STRIPPED: int(np.count_nonzero(~is_token))}
    tokens = cut(values_of(read.input_ids).filter(kept))
    try:
        batch = check_lists(Batch(tokens, labels, 0, extra, counts, records=found), columns)
    except DocumentError as wrong:
        wrong.message = f"document {wrong.row - int(np.searchsorted(found, found[wrong.row]))} of it: {wrong.message}"
        raise wrong.at(int(found[wrong.row])) from None
    for name in (name for name in masks if name != ATTENTION and "starts" in bounds.values()):
        untrained, mask = int(name in INVERSE_MASKS), mask_values(batch.extra[name], name).view(np.int8)
        weights = weights_in(batch.extra[name]) if name in columns.weights else mask ^ untrained
        batch.extra[name] = unshifted(weights, untrained)
    return apply_masks(batch, columns, has_labels=makes_labels)


def _documents_in(
    batch: Batch, lists: Mapping[str, pa.Array], bounds: Mapping[str, Means], rows: RowColumns
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Return (whether each token of the rows is real, tokens in each document, row of each document)."""
    trained = None
    if not rows.trained and "starts" not in bounds.values():  # shifted rows mark all of their padding explicitly
        masks = [mask_values(batch.extra[name], name) for name in rows.masks if name != ATTENTION]
        masks += [] if batch.labels is None else [as_numpy(values_of(batch.labels)) != NO_LOSS]
        trained = np.logical_and.reduce(masks) if masks else None
    values = {name: (_whole(column, name), np.cumsum([0, *list_lengths(column)])) for name, column in lists.items()}
    tokens, ends = as_numpy(values_of(batch.input_ids)), np.cumsum([0, *list_lengths(batch.input_ids)])
    kept, sizes = [np.zeros(0, np.bool_)], [np.zeros(0, np.int64)]  # parts, starting with empty ones
    for row, (start, end) in enumerate(pairwise(ends.tolist())):
        of_row = {name: (bounds[name], flat[at[row] : at[row + 1]]) for name, (flat, at) in values.items()}
        try:
            found = _divided(tokens[start:end], None if trained is None else trained[start:end], of_row)
        except DocumentError as fault:
            raise fault.at(row) from None
        kept.append(found[0])
        sizes.append(found[1])
    owners = np.arange(len(sizes) - 1).repeat([*map(len, sizes[1:])])
    return np.concatenate(kept), np.concatenate(sizes), owners


def _whole(lists: pa.Array, name: str) -> NDArray[np.int64]:
    """Return the values of a list column. Raises a DocumentError unless they are whole numbers."""
    lists = as_plain(lists)
    for row in np.flatnonzero(as_numpy(lists.is_null()))[:1].tolist():
        raise DocumentError(row, null_message(name), reason="invalid_value")
    values = values_of(lists) if is_list(lists.type) else lists
    if values.null_count or not (pa.types.is_integer(values.type) or name == ATTENTION or not len(values)):
        message = f"'{name}' holds {lists.type}, and says where documents begin: it needs lists of whole numbers"
        raise DocumentError(0, message, reason="invalid_value")
    return as_numpy(values.cast(pa.int64(), safe=False))


def _divided(
    tokens: NDArray[Any], trained: NDArray[np.bool_] | None, columns: Mapping[str, tuple[Means, NDArray[np.int64]]]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return (whether each token of a row is real, number of tokens in each of its documents).

    A row of padding is an empty document. Padding is marked by a column. In addition, last documents that are not
    `trained` and repeat a single token are padding. Raises a DocumentError if a column does not fit the row, or
    contradicts another.
    """
    numbers = {name: _numbers(name, how, values, len(tokens)) for name, (how, values) in columns.items()}
    by = {how: [found for name, found in numbers.items() if columns[name][0] == how] for how, _ in columns.values()}
    lists = [found for how in LISTS for found in by.get(how, ())]
    claimed = np.any([found > 0 for how in by if how not in (*LISTS, "positions") for found in by[how]], axis=0)
    is_padding = np.any([found == 0 for found in numbers.values()], axis=0)
    wrong = (is_padding & claimed) | np.any([found != lists[0] for found in lists], axis=0)
    inside = np.flatnonzero(~is_padding)
    begins = np.stack([np.diff(found[inside], prepend=0) != 0 for how in by if how != "attention" for found in by[how]])
    if trained is not None and len(inside):
        others = np.flatnonzero(trained[inside] | (tokens[inside] != tokens[inside[-1]]))
        places = np.flatnonzero(begins.any(axis=0))
        places = places[places > (others[-1] if len(others) else 0)]
        if len(places) and ("padded_lengths" in by or places[0] < len(inside) - 1):
            inside, begins = inside[: places[0]], begins[:, : places[0]]
    wrong[inside[begins.any(axis=0) & ~begins.all(axis=0)]] = True
    for at in np.flatnonzero(wrong)[:1].tolist():
        names = " and ".join(f"'{name}'" for name in columns)
        message = f"{names} contradict each other about the document of token {at}: remove what is wrong"
        raise DocumentError(0, message, reason="invalid_value")
    is_token = np.zeros(len(tokens), np.bool_)
    is_token[inside] = True
    starts = np.flatnonzero(begins.any(axis=0)) if len(inside) else np.zeros(1, np.int64)
    return is_token, np.diff(starts, append=len(inside))


_EXPECTED: dict[Means, str] = {
    **dict.fromkeys(("lengths", "padded_lengths"), "lengths of documents, which sum to at most that"),
    "offsets": "where documents begin and the last one ends, from 0 to at most that",
    "starts": "where documents begin, from 0",
    "numbers": "1 for the first document, 2 for the next, ..., and 0 for padding at the end",
    "numbers_from_0": "0 for the first document, 1 for the next, ..., and -1 for padding at the end",
    "positions": "0 for the first token of each document, and 1 more for each that follows",
}


def _numbers(name: str, how: Means, values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the document number of each of `count` tokens of a row (1, 2, ...; 0: padding) according to one column."""
    if how == "attention":  # padding at either end
        return np.minimum(np.maximum.accumulate(values), np.maximum.accumulate(values[::-1])[::-1])
    if how in LISTS:
        offsets = np.append(values, count) if how == "starts" else values
        sizes = np.diff(offsets) if how in ("starts", "offsets") else values
        rest = count - int(sizes.sum())
        if (sizes is values or offsets[:1].tolist() == [0]) and rest >= 0 and ((sizes >= 0) & (sizes <= count)).all():
            return np.append(np.arange(1, len(sizes) + 1), 0).repeat(np.append(sizes, rest))
    elif how == "positions":
        follows, restarts = np.diff(values) == 1, values == 0
        if follows.all() and (values >= 0).all():  # positions may start at any number, as in RoBERTa
            return np.ones(count, np.int64)
        if restarts[0] and (follows | restarts[1:]).all():
            return np.cumsum(restarts)
    else:
        numbers = values + (how == "numbers_from_0" and bool((values[:1] < 1).all()))  # adds 1, unless they start at 1
        inside = numbers[: np.count_nonzero(numbers > 0)]
        is_begun = inside[0] == 1 if len(inside) else name == ATTENTION or not count
        if is_begun and np.isin(np.diff(inside), (0, 1)).all() and not numbers[len(inside) :].any():
            return numbers
    message = f"'{name}' holds {shown(values.tolist())} for {count} tokens, where this is expected: {_EXPECTED[how]}"
    raise DocumentError(0, f"{message}; fix or remove the column", reason="invalid_value")
