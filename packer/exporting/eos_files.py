"""Rows for trainers that find documents by EOS alone, and the files of bare token ids that these read."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.arrow import as_numpy
from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.row_segments import RowTokens
from packer.shards.row_format import PADDING

if TYPE_CHECKING:
    from packer.loader.dataset import PackedDataset
    from packer.loader.open_shards import Row
    from packer.shards.files import HashingFile

Ends = Literal["each", "inner", "aligned"]
"""Which documents must end in their only EOS: each; all but the last of a row; or each, unless the user names EOS."""

_LARGEST_VOCABULARY_OF_UINT16 = 65_500  # in Megatron-LM
_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}  # of the types of tokens in .idx


class Eos(NamedTuple):
    """The token that pads rows of a target, and the documents that must end in it."""

    id: int
    ends: Ends
    to: str
    is_given: bool = False


def find_eos(dataset: PackedDataset) -> int:
    """Return the last token of a document that another follows in its row, or of the last row's document."""
    for row in dataset:
        _, ends = spans_of(row)
        if len(ends) > 1:
            break
    return int(row["input_ids"][ends[0] - 1])


def spans_of(row: Row) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the documents of a row begin and end, without padding, shape (documents,) each."""
    extents = row["seq_lengths"].astype(np.int64)
    starts = np.cumsum(extents) - extents
    is_real = row["doc_ids"] != PADDING
    return starts[is_real], (starts + row.get("seq_tokens", extents))[is_real]


def with_eos(row: Row, eos: Eos) -> Row:
    """Return a row padded with EOS, after documents and at its end; other ends of documents are a PackerError.

    Aligned documents of Megatron-Bridge get one EOS more, because it leaves out the last token of each.
    """
    starts, ends = spans_of(row)
    tokens = row["input_ids"]
    is_token = np.zeros(len(tokens), bool)
    for start, end in zip(starts, ends, strict=True):
        is_token[start:end] = True
    if eos.ends != "aligned" or not eos.is_given:
        found, last = np.flatnonzero(is_token & (tokens == eos.id)), ends - 1
        if eos.ends == "inner":
            found, last = found[found != last[-1:]], last[:-1]
        if not np.array_equal(found, last):
            place = int(np.setxor1d(found, last)[0])
            other = (
                "give another --eos-id" if eos.is_given else "name EOS with --eos-id, if it does not end the first one"
            )
            wrong = f"has EOS ({eos.id}) inside"
            if tokens[place] != eos.id:
                wrong = f"ends in the token {tokens[place]}, not in EOS ({eos.id})"
            raise PackerError(
                f"document {_document_at(row, place)} {wrong}: {eos.to} finds documents by EOS, so each must end in "
                f"EOS and have no other; {other}, pack with --long drop if documents are split or truncated, or "
                "choose another --to"
            )
    padded = {**row, "input_ids": np.where(is_token, tokens, tokens.dtype.type(eos.id))}
    if eos.ends == "aligned":
        is_real = row["doc_ids"] != PADDING
        after = np.cumsum(row["seq_lengths"])[is_real]
        padded["seq_lengths"] = row["seq_lengths"] + is_real
        padded["input_ids"] = np.insert(padded["input_ids"], after, eos.id)
        padded["labels"] = np.insert(row["labels"], after, NO_LOSS)
    return padded


def _document_at(row: Row, place: int) -> int:
    return int(row["doc_ids"][np.searchsorted(spans_of(row)[1], place, side="right")])


def trained_tokens(row: Row, to: str) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the tokens of a row and whether each is trained, for a trainer that takes labels from the tokens."""
    whole = RowTokens.whole([row])
    tokens = whole.column("input_ids", np.int32)
    labels = whole.labels(tokens)
    trained = labels != NO_LOSS
    for place in np.flatnonzero(trained & (labels != tokens))[:1]:
        raise PackerError(
            f"document {_document_at(row, place)} has the label {labels[place]} at the token {tokens[place]}: {to} "
            "takes labels from the tokens, so a label must be its token or -100; choose another --to"
        )
    return tokens, trained


def check_all_trained(row: Row, trained: NDArray[np.bool_]) -> None:
    """Refuse a row with a token, except the first of a document, that is not trained: .bin and .idx have no labels."""
    for start, end in zip(*spans_of(row), strict=True):
        for place in np.flatnonzero(~trained[start + 1 : end])[:1]:
            raise PackerError(
                f"document {_document_at(row, start)} has the label -100 at token {place + 1}: megatron-indexed has no "
                "labels, and Megatron-LM would train it; choose another --to"
            )


class IndexedWriter:
    """Writer of `.bin`, rows of ids end to end, and `.idx`, in which each row is a sequence and a document."""

    def __init__(self, tokens: HashingFile, index: HashingFile, shard: pa.Table) -> None:
        self._tokens, self._index, self._rows = tokens, index, len(shard)
        self._length: int = shard["input_ids"].type.list_size
        largest = pc.max(pc.list_flatten(shard["input_ids"])).as_py()
        self._type = np.dtype(np.uint16 if largest < _LARGEST_VOCABULARY_OF_UINT16 else np.int32)

    def __enter__(self) -> IndexedWriter:
        return self

    def write_table(self, table: pa.Table) -> None:
        """Write the next rows."""
        for rows in table["tokens"].chunks:
            self._tokens.write(as_numpy(rows.flatten()).astype(self._type).data)

    def __exit__(self, *_: object) -> None:
        self._index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, _CODES[self._type], self._rows, self._rows + 1))
        self._index.write(np.full(self._rows, self._length, np.int32).data)
        self._index.write((np.arange(self._rows, dtype=np.int64) * (self._length * self._type.itemsize)).data)
        self._index.write(np.arange(self._rows + 1, dtype=np.int64).data)


class OlmoWriter:
    """Writer of ids as uint32 and whether they are trained as bool, without headers, and of lines "start,end"."""

    def __init__(self, tokens: HashingFile, mask: HashingFile, documents: HashingFile, shard: pa.Table) -> None:
        self._tokens, self._mask, self._length = tokens, mask, shard["input_ids"].type.list_size
        self._lines = gzip.GzipFile("", "wb", fileobj=documents, mtime=0)  # without a time: the same bytes every time
        self._place = 0  # of the next row in the file, in tokens

    def __enter__(self) -> OlmoWriter:
        return self

    def write_table(self, table: pa.Table) -> None:
        """Write the next rows."""
        for rows in table.to_batches():
            self._tokens.write(as_numpy(rows["token_ids"].flatten()).data)
            self._mask.write(as_numpy(rows["labels_mask"].flatten()).data)
            starts = self._place + self._length * np.arange(len(rows)).repeat(rows["documents"].value_lengths())
            for start, end in as_numpy(rows["documents"].flatten()).reshape(-1, 2) + starts[::2, None]:
                self._lines.write(f"{start},{end}\n".encode())
            self._place += len(rows) * self._length

    def __exit__(self, *_: object) -> None:
        self._lines.close()


WRITERS: Mapping[str, Callable[..., Any]] = {".bin": IndexedWriter, ".npy": OlmoWriter}
"""Writers of a shard's files, by the ending of the first one."""
