"""Targets of exports: the files and columns that each trainer reads, in one registry. Importing it is cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer.exporting.eos_files import Ends
    from packer.loader.dataset import PackedDataset
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

    files: tuple[str, ...] = ("{shard}.parquet",)
    """Names of the files of a shard, from its own name without an ending and from its number."""

    small_files: Callable[[PackedDataset, list[str]], Mapping[str, bytes]] = lambda dataset, files: {}
    """Function that makes the contents of other files, by name, from the dataset and the names of its files."""

    pads_with_eos: Ends | None = None
    """If padding must be EOS: which documents must end in it. For "aligned", only padding within rows."""

    @property
    def ending(self) -> str:
        """Ending of the first file, which tells the format."""
        return "." + self.files[0].rpartition(".")[2]


def megatron_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of packed sequences in Megatron-Bridge and NeMo, without padding at the end of a row.

    These trainers take labels from the tokens, and leave out the last token of every sequence, which has nothing to
    predict. `loss_mask` is shifted one place to the left: it says whether the next token is trained. A label that
    differs from its token is a PackerError.
    """
    import numpy as np

    from packer.exporting.eos_files import trained_tokens
    from packer.loader.row_segments import shift_left
    from packer.shards.row_format import PADDING

    columns: dict[str, list[NDArray[Any]]] = {"input_ids": [], "loss_mask": [], "seq_start_id": []}
    for row in rows:
        lengths = row["seq_lengths"][row["doc_ids"] != PADDING]
        tokens, trained = trained_tokens(row, "Megatron-Bridge")
        columns["input_ids"].append(tokens[: lengths.sum()])
        columns["loss_mask"].append(shift_left(trained[: lengths.sum()], 0))
        columns["seq_start_id"].append(np.cumsum(lengths) - lengths)
    return columns


def megatron_metadata(dataset: PackedDataset, files: list[str]) -> Mapping[str, bytes]:
    """Make the metadata for `pad_cu_seqlens` of Megatron-Bridge: the most sequences, and the lengths of inputs."""
    import json

    import numpy as np

    from packer.shards.row_format import PADDING

    left_out = 0 if "seq_tokens" in dataset.column_names else 1  # tokens of a sequence that are labels only
    most, longest, shortest = 0, 0, dataset.max_len
    for offsets, extents, doc_ids in dataset.segments():
        is_real = doc_ids != PADDING
        inputs = np.where(is_real, extents - left_out, 0)
        most = max(most, int(np.add.reduceat(is_real, offsets[:-1], dtype=np.int64).max()))
        longest, shortest = (
            max(longest, int(inputs.max())),
            min(shortest, int(np.add.reduceat(inputs, offsets[:-1]).min())),
        )
    found = {"max_samples_per_bin": most, "dataset_max_seqlen": longest, "min_packed_seqlen": shortest}
    return {"_packing_metadata": (json.dumps([found]) + "\n").encode()}


def indexed_columns(rows: Sequence[Row]) -> Columns:
    """Make the tokens of Megatron-LM's pretraining, which trains every token except the first of a document."""
    from packer.exporting.eos_files import check_all_trained, trained_tokens

    found = [trained_tokens(row, "Megatron-LM") for row in rows]
    for row, (_, trained) in zip(rows, found, strict=True):
        check_all_trained(row, trained)
    return {"tokens": [tokens for tokens, _ in found]}


def olmo_columns(rows: Sequence[Row]) -> Columns:
    """Make the columns of the three files of OLMo-core; `documents` has the start and end of each in its row."""
    import numpy as np

    from packer.exporting.eos_files import spans_of, trained_tokens

    tokens, masks = zip(*(trained_tokens(row, "OLMo-core") for row in rows), strict=True)
    documents = [np.column_stack(spans_of(row)).reshape(-1) for row in rows]
    return {"token_ids": tokens, "labels_mask": masks, "documents": documents}


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


def datasets_files(dataset: PackedDataset, files: list[str]) -> Mapping[str, bytes]:
    """Make the files with which `datasets` opens a folder of Arrow."""
    from packer.shards.manifest import datasets_files

    return datasets_files(dataset.manifest.source, files)


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
        files=("{shard}.idx.parquet",),  # Megatron-Bridge recognizes packed files by this ending
        small_files=megatron_metadata,
        pads_with_eos="aligned",
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
        files=("{shard}.arrow",),
        small_files=datasets_files,
    ),
    "automodel": Target(
        summary="input_ids, labels (shifted), position_ids, seq_lens, seq_lens_padded: NeMo Automodel, prepacked",
        columns=dict.fromkeys(("input_ids", "labels", "position_ids", "seq_lens", "seq_lens_padded"), "int32"),
        values=automodel_columns,
    ),
    "megatron-indexed": Target(
        summary=".bin and .idx: pretraining data of Megatron-LM, whose documents end in EOS",
        columns={"tokens": "int32"},
        values=indexed_columns,
        files=("{shard}.bin", "{shard}.idx"),
        pads_with_eos="each",
    ),
    "olmo-core": Target(
        summary=".npy of token_ids and labels_mask, and documents as .csv.gz: OLMo-core, whose documents end in EOS",
        columns={"token_ids": "uint32", "labels_mask": "uint8", "documents": "int64"},
        values=olmo_columns,
        files=(
            "token_ids_part_{number:04}.npy",
            "labels_mask_part_{number:04}.npy",
            "token_ids_part_{number:04}.csv.gz",
        ),
        pads_with_eos="inner",
    ),
    "parquet": Target(summary="all columns as they are"),
}
