"""Targets of exports: the columns that each trainer reads, in one registry. Importing it is cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer.loader.open_shards import Row

    Columns = Mapping[str, Sequence[NDArray[Any]]]  # one array per row, by column name


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Format of the files that a trainer reads."""

    summary: str
    """Columns, and the trainers that read them, for `--help`."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Arrow type of the values in each row of each column. If empty, the shards' columns are written as they are."""

    values: Callable[[Sequence[Row]], Columns] = lambda rows: {}
    """Function that makes the columns from rows."""

    ending: str = ".parquet"
    """Ending of the file names."""

    is_arrow: bool = False
    """Whether files are uncompressed Arrow streams, which `datasets.load_from_disk` opens, instead of Parquet."""


def megatron_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of packed sequences in Megatron-Bridge and NeMo, without padding.

    These trainers take labels from the tokens, and leave out the last token of every sequence, which has nothing to
    predict. `loss_mask` is shifted one place to the left: it says whether the next token is trained. With aligned
    extents, the last token of each is repeated, so that the remaining length is still a multiple of the alignment.
    A label that differs from its token is a PackerError.
    """
    import numpy as np

    from packer.column_names import NO_LOSS
    from packer.loader.row_segments import shift_left

    columns: dict[str, list[NDArray[Any]]] = {"input_ids": [], "loss_mask": [], "seq_start_id": []}
    for row in rows:
        batch = _batch([row], "hf")
        tokens, labels, starts = batch["input_ids"][0], batch["labels"][0], batch["cu_seq_lens_q"][:-1]
        trained = labels != NO_LOSS
        other = np.flatnonzero(trained & (labels != tokens))
        if len(other):
            place = int(other[0])
            document = int(row["doc_ids"][np.searchsorted(starts, place, side="right") - 1])
            raise PackerError(
                f"document {document} has the label {labels[place]} at the token {tokens[place]}: Megatron-Bridge "
                "takes labels from the tokens, so a label must be its token or -100; choose another --to"
            )
        mask = shift_left(trained, 0)
        if "seq_tokens" in row:
            ends = batch["cu_seq_lens_q"][1:]
            tokens, mask = np.insert(tokens, ends, tokens[ends - 1]), np.insert(mask, ends, False)
            starts = starts + np.arange(len(starts), dtype=starts.dtype)
        columns["input_ids"].append(tokens)
        columns["loss_mask"].append(mask)
        columns["seq_start_id"].append(starts)
    return columns


def llama_factory_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of packed sequences in LLaMA-Factory, whose `attention_mask` numbers the documents of a row."""
    import numpy as np

    from packer.loader.row_segments import RowTokens, restart_positions

    tokens = RowTokens.whole(rows)
    ids = tokens.column("input_ids", np.int32)
    columns = {
        "input_ids": ids,
        "labels": tokens.labels(ids),
        "position_ids": restart_positions(tokens.lengths),
        "attention_mask": tokens.segment_ids(),
    }
    return {name: list(values.reshape(len(rows), -1)) for name, values in columns.items()}


def automodel_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of packed sequences in NeMo Automodel: labels are shifted, and the last length has the tail."""
    import numpy as np

    from packer.shards.row_format import PADDING

    inputs, labels = _batch(rows, "torchtitan")
    lengths, padded = [], []
    for row in rows:
        extents = row["seq_lengths"].astype(np.int64)
        documents = np.count_nonzero(row["doc_ids"] != PADDING)
        lengths.append(row.get("seq_tokens", extents)[:documents])
        padded.append(np.append(extents[: documents - 1], extents[documents - 1 :].sum()))
    named = {"input_ids": inputs["input"], "labels": labels, "position_ids": inputs["positions"]}
    return {**named, "seq_lens": lengths, "seq_lens_padded": padded}


def _columns_of(format: str) -> Callable[[Sequence[Row]], Columns]:
    """Return the function that makes the columns of a batch format, row by row, from a batch or its examples."""

    def columns(rows: Sequence[Row]) -> Columns:
        batch = _batch(rows, format)
        if isinstance(batch, tuple):  # inputs and labels
            return {**batch[0], "labels": batch[1]}
        if isinstance(batch, list):
            return {name: [example[name] for example in batch] for name in batch[0]}
        return dict(batch)

    return columns


def _batch(rows: Sequence[Row], format: str) -> Any:
    from packer.loader.batch_formats import make_batch

    return make_batch(rows, format=format)


TARGETS: dict[str, Target] = {
    "megatron": Target(
        summary="input_ids, loss_mask, seq_start_id: packed sequences of Megatron-Bridge and NeMo",
        columns={"input_ids": "int32", "loss_mask": "int8", "seq_start_id": "int32"},
        values=megatron_columns,
        ending=".idx.parquet",  # Megatron-Bridge recognizes packed files by this ending
    ),
    "maxtext": Target(
        summary="inputs, targets, and the _position and _segmentation of both",
        columns={
            f"{side}{part}": "int32" for side in ("inputs", "targets") for part in ("", "_position", "_segmentation")
        },
        values=_columns_of("segment_ids"),
    ),
    "torchtitan": Target(
        summary="input, positions, labels (shifted)",
        columns=dict.fromkeys(("input", "positions", "labels"), "int32"),
        values=_columns_of("torchtitan"),
    ),
    "torchtune": Target(
        summary="tokens, labels, input_pos, seq_lens",
        columns=dict.fromkeys(("tokens", "labels", "input_pos", "seq_lens"), "int32"),
        values=_columns_of("torchtune"),
    ),
    "llama-factory": Target(
        summary="input_ids, labels, position_ids, attention_mask: tokenized_path of LLaMA-Factory with neat_packing",
        columns=dict.fromkeys(("input_ids", "labels", "position_ids", "attention_mask"), "int32"),
        values=llama_factory_columns,
        ending=".arrow",
        is_arrow=True,
    ),
    "automodel": Target(
        summary="input_ids, labels (shifted), position_ids, seq_lens, seq_lens_padded: NeMo Automodel, prepacked",
        columns=dict.fromkeys(("input_ids", "labels", "position_ids", "seq_lens", "seq_lens_padded"), "int32"),
        values=automodel_columns,
    ),
    "parquet": Target(summary="all columns as they are"),
}
