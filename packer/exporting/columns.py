"""Contents of the files of each target: columns made from rows, rows padded with EOS, and small files beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import restart_positions
from packer.column_names import ANSWER, LOSS_WEIGHTS, NO_LOSS, PADDING, RECORD_IDS, TREE, TREE_INPUT_IDS
from packer.errors import PackerError
from packer.loader.batch_formats import SegmentIdsBatch, TorchtuneExamples
from packer.loader.dataset import PackedDataset
from packer.loader.open_shards import Row
from packer.loader.row_tokens import RowTokens, shift_left
from packer.plain_text import count_of
from packer.shards import manifest
from packer.shards.files import CARD, MANIFEST
from packer.stores.hub import called

ColumnArrays: TypeAlias = Mapping[str, Sequence[NDArray[Any]]]
"""One array per row, by column name."""

Ends = Literal["each", "aligned"]
"""Documents that must end in EOS and contain no other EOS. "each": all. "aligned": all, unless the user names EOS."""


class Eos(NamedTuple):
    """The token that pads rows of a target, and the documents that must end in it."""

    id: int
    ends: Ends
    to: str
    is_given: bool = False


def find_eos(dataset: PackedDataset) -> int:
    """Return the last token of a document that is followed by another in its row, or of the last row's document."""
    for row in dataset:
        _, ends = spans_of(row)
        if len(ends) > 1:
            break
    return int(row["input_ids"][ends[0] - 1])


def spans_of(row: Row) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begins and ends of the documents of a row, without padding, each of shape (documents,)."""
    extents = row["seq_lengths"].astype(np.int64)
    starts = np.cumsum(extents) - extents
    is_real = row["doc_ids"] != PADDING
    return starts[is_real], (starts + row.get("seq_tokens", extents))[is_real]


def with_eos(row: Row, eos: Eos) -> Row:
    """Return a row padded with EOS, after documents and at its end. Raises a PackerError if documents end otherwise.

    Aligned documents for Megatron-Bridge get one more EOS, because Megatron-Bridge drops the last token of each
    document.
    """
    starts, ends = spans_of(row)
    tokens = row["input_ids"]
    is_token = np.zeros(len(tokens), bool)
    for start, end in zip(starts, ends, strict=True):
        is_token[start:end] = True
    if eos.ends != "aligned" or not eos.is_given:
        found, last = np.flatnonzero(is_token & (tokens == eos.id)), ends - 1
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
    """Return the tokens of a row and whether each is trained, for a trainer that takes labels from the tokens.

    Raises a PackerError if a label is neither its token nor -100.
    """
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


def megatron_columns(rows: Sequence[Row]) -> ColumnArrays:
    """Make the columns of packed sequences in Megatron-Bridge and NeMo, without padding at the end of a row.

    These trainers take labels from the tokens, and drop the last token of every sequence, which has no next token.
    `loss_mask` is shifted one place to the left: it says whether the next token is trained. Raises a PackerError if a
    label differs from its token.
    """
    columns: dict[str, list[NDArray[Any]]] = {"input_ids": [], "loss_mask": [], "seq_start_id": []}
    for row in rows:
        lengths = row["seq_lengths"][row["doc_ids"] != PADDING]
        tokens, trained = trained_tokens(row, "Megatron-Bridge")
        columns["input_ids"].append(tokens[: lengths.sum()])
        columns["loss_mask"].append(shift_left(trained[: lengths.sum()], 0))
        columns["seq_start_id"].append(np.cumsum(lengths) - lengths)
    return columns


def megatron_metadata(dataset: PackedDataset, files: list[str]) -> Mapping[str, bytes]:
    """Make the metadata for `pad_cu_seqlens` of Megatron-Bridge: maximum number of sequences, and lengths of inputs."""
    left_out = 0 if "seq_tokens" in dataset.column_names else 1  # tokens of each sequence that are only labels
    most, longest, shortest = 0, 0, dataset.max_len
    for offsets, extents, doc_ids in dataset.segments():
        is_real = doc_ids != PADDING
        inputs = np.where(is_real, extents - left_out, 0)
        most = max(most, int(np.add.reduceat(is_real, offsets[:-1], dtype=np.int64).max()))
        longest = max(longest, int(inputs.max()))
        shortest = min(shortest, int(np.add.reduceat(inputs, offsets[:-1]).min()))
    found = {"max_samples_per_bin": most, "dataset_max_seqlen": longest, "min_packed_seqlen": shortest}
    return {"_packing_metadata": (json.dumps([found]) + "\n").encode()}


def indexed_columns(rows: Sequence[Row]) -> ColumnArrays:
    """Make the tokens for Megatron-LM's pretraining, which trains every token except the first of a document.

    Raises a PackerError if any other token is not trained, because .bin and .idx have no labels.
    """
    columns: dict[str, list[NDArray[Any]]] = {"tokens": []}
    for row in rows:
        tokens, trained = trained_tokens(row, "Megatron-LM")
        for start, end in zip(*spans_of(row), strict=True):
            for place in np.flatnonzero(~trained[start + 1 : end])[:1]:
                raise PackerError(
                    f"document {_document_at(row, start)} has the label -100 at token {place + 1}: megatron-indexed "
                    "has no labels, and Megatron-LM would train it; choose another --to"
                )
        columns["tokens"].append(tokens)
    return columns


def llama_factory_columns(rows: Sequence[Row]) -> ColumnArrays:
    """Make the columns of packed sequences in LLaMA-Factory; `attention_mask` numbers the documents of a row."""
    tokens = RowTokens.whole(rows)
    ids = tokens.column("input_ids", np.int32)
    columns = {
        "input_ids": ids,
        "labels": tokens.labels(ids),
        "position_ids": restart_positions(tokens.lengths),
        "attention_mask": tokens.segment_ids(),
    }
    return {name: list(values.reshape(len(rows), -1)) for name, values in columns.items()}


def torchtune_columns(rows: Sequence[Row]) -> ColumnArrays:
    """Make the columns that torchtune's examples have."""
    examples = TorchtuneExamples(tensors="numpy")(rows)
    return {name: [example[name] for example in examples] for name in examples[0]}


def maxtext_columns(rows: Sequence[Row]) -> ColumnArrays:
    """Make the columns that MaxText's batches have."""
    columns: ColumnArrays = SegmentIdsBatch(tensors="numpy")(rows)
    return columns


def datasets_files(dataset: PackedDataset, files: list[str]) -> Mapping[str, bytes]:
    """Make the files that `datasets` needs to open a folder of Arrow files."""
    return manifest.datasets_files(dataset.manifest.source, files)


_MEANINGS = {
    "input_ids": "token id; {pad_id} for padding",
    TREE_INPUT_IDS: 'token id in a row with trees, which only `format="tree"` reads; {pad_id} for padding',
    "labels": "token id, not shifted; -100 (no loss) for padding, the first token of a segment, and untrained tokens",
    "position_ids": "position, which restarts at 0 with each segment",
    "seq_lengths": "length, in the order of the row; the lengths add up to {max_len:,}",
    "seq_tokens": "length without the padding that follows the document; 0 for the padding at the end of the row",
    "doc_ids": "index of the document in the source; -1 for the padding at the end of the row",
    "doc_starts": "position in the document at which the segment begins: 0, unless the document was split",
    RECORD_IDS: "index of the record in the source; 0 for padding",
    ANSWER: "index of the document in its record; for a tree, of its first document",
    TREE: "of each node: number of tokens, index of its parent or -1, index of the document that trains it; or null",
    LOSS_WEIGHTS: "weight in the loss, which is sum(weight x loss) / sum(weight); 0 for padding",
}


def hub_files(dataset: PackedDataset, files: list[str]) -> Mapping[str, bytes]:
    """Return the contents, by name, of the dataset's files other than shards, and of its card."""
    from jinja2 import StrictUndefined, Template

    record, options = dataset.manifest, dataset.manifest.options
    template = (resources.files("packer.exporting") / "dataset_card.md.jinja").read_text(encoding="utf-8")
    card = Template(template, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True).render(
        name=called(Path(str(dataset.path)).resolve()).name,
        split="test" if options.is_holdout else "train",
        rows=count_of(record.rows, "row"),
        options=options,
        totals=record.totals,
        text=record.source.text,
        arguments=', format="tree"' * options.has_trees + ', loss_weights="weight"' * dataset.has_weights,
        columns=_columns_on_card(dataset),
    )
    return {CARD: card.encode()} | {name: (dataset.path / name).read_bytes() for name in (MANIFEST, *record.files)}


def _columns_on_card(dataset: PackedDataset) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each column, what has a value in it (token or segment), and its meaning."""
    for name in dataset.types:
        is_token = name in (*dataset.manifest.row_format.token_columns, *dataset.manifest.options.kept_tokens)
        per, of = ("token", "token") if is_token else ("segment", "document")
        meaning = _MEANINGS.get(name, f"value of the {of} in the source; 0 or null for padding")
        yield name.replace("|", "\\|"), per, meaning.format(pad_id=dataset.pad_id, max_len=dataset.max_len)
