"""Batches of tensors from rows or raw examples: `collate`, `flatten` and `batches`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS, input_ids_in
from packer.errors import PackerError
from packer.loader.batch_formats import make_batch
from packer.loader.batch_sampler import BatchSampler
from packer.loader.dataset import PackedDataset
from packer.loader.row_segments import LossWeights, Rows, StaticShape
from packer.loader.token_masking import MaskedLM

Tensors = Literal["torch", "numpy"]


def collate(
    rows: Sequence[Mapping[str, NDArray[Any]]],
    *,
    format: str = "hf",
    static: StaticShape | None = None,
    loss_weights: LossWeights | None = None,
    mlm: MaskedLM | None = None,
    epoch: int | None = None,
    keep: Sequence[str] | None = None,
    keep_tokens: Sequence[str] = (),
    position_offset: int = 0,
    additive_mask: bool = False,
    padding_mask: bool = False,
    mtp: int = 0,
    tensors: Tensors = "torch",
) -> Any:
    """Combine rows into one batch in the format of a trainer; a `collate_fn` for DataLoader.

    Args:
        rows: rows of a PackedDataset, at least one; or the same columns as mappings of lists or CPU tensors.
        format: `hf` or `hf_rows` for Hugging Face models, `encoder` for BERT and similar models, `trl`, `torchtitan`,
            `torchtune`, `megatron`, `segment_ids` for MaxText and JAX, or `tree` for rows packed with
            `--pairs` or `--share-prefixes`. The functions of `packer.loader.batch_formats` document the keys.
        static: shape of all batches, from `static_shape`, so that torch.compile compiles once; for `hf`, `megatron`.
        loss_weights: add `loss_weights`, float64 and aligned with the labels, for a mean loss per "sequence" or
            "document", see `causal_lm_loss`; for `hf`, `hf_rows`, `encoder`, `megatron`. Do not pass it to the model.
        mlm: mask tokens; the labels are the original tokens. For `hf` and `encoder`.
        epoch: epoch of the masks; by default that of the BatchSampler that selected the rows, or else 0.
        keep: segment columns to add to `segments`; for `hf` and `encoder`. Strings, lists, dates and times stay arrays,
            and so do whole numbers and booleans where one is missing: masked arrays. Missing floats are NaN.
        keep_tokens: token columns to add, with an axis for several values; for `hf` and `encoder`, there also "labels".
        position_offset: position of each segment's first token, for `hf` and `encoder`; 2 for RoBERTa (padding id + 1).
        additive_mask: make the mask of `encoder` float32. **Eager attention requires it**, or documents see each other.
        padding_mask: add `padding_mask`, bool, True for padding, for routers of experts; for `torchtitan`, `megatron`.
        mtp: number of extra heads to add `mtp_labels` for, none over a boundary; for `hf`, `hf_rows`, `megatron`.
        tensors: "torch", or "numpy" for arrays.

    Warns:
        UserWarning: no token for a Hugging Face model is trained: its loss is NaN without `num_items_in_batch`.

    Raises:
        PackerError: no batch can be made of these rows with these arguments.
    """
    batch = make_batch(
        _rows_as_arrays(rows),
        format=format,
        epoch=(getattr(rows, "epoch", None) or 0) if epoch is None else epoch,
        static=static,
        loss_weights=loss_weights,
        mlm=mlm,
        keep=keep,
        keep_tokens=keep_tokens or None,
        position_offset=position_offset or None,
        additive_mask=additive_mask or None,
        padding_mask=padding_mask or None,
        mtp=mtp or None,
    )
    if format in ("hf", "hf_rows", "tree"):
        _warn_if_nothing_is_trained(batch["labels"])
    return batch if format == "trl" else _as_tensors(tensors, batch)


def flatten(examples: Sequence[Mapping[str, Any]], *, tensors: Tensors = "torch") -> dict[str, Any]:
    """Concatenate raw tokenized examples into one sequence, as DataCollatorWithFlattening does; a `collate_fn`.

    This packs each mini-batch separately: an optimizer step sees the same documents as with padding, so nothing
    else about a training run changes (Kundu et al., arXiv 2407.09105). Keys, values and types equal those of
    `DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)`, plus `use_cache=False`: the
    format `hf` of `collate`.

    Args:
        examples: mappings with `input_ids`, and with `labels` in all or none of them; lists, arrays or CPU tensors of
            one dimension. Other keys, such as attention_mask, are ignored.
        tensors: "torch", or "numpy" for arrays.

    Warns:
        UserWarning: no token is trained, as in `collate`.

    Raises:
        PackerError: there are no examples; only some have labels; or one has no tokens, another number of labels than
            of tokens, or values that are not integers in one dimension.
    """
    found = make_batch(_examples_as_rows(examples), format="hf")
    _warn_if_nothing_is_trained(found["labels"])
    batch: dict[str, Any] = _as_tensors(tensors, found)
    return batch


def batches(
    dataset: PackedDataset,
    *,
    rows: int,
    seed: int | None = 0,
    epoch: int = 0,
    drop_last: bool = False,
    **options: Any,
) -> Iterator[Any]:
    """Yield the batches of one epoch in a single process, each as `collate` returns it.

    `BatchSampler` yields rows in the same order, and supports several ranks, DataLoader workers and resuming.

    Args:
        dataset: dataset from `load`.
        rows: rows per batch, at least 1; a row has up to max_len real tokens.
        seed: seed of the order of rows, 0..2^64-1; None for the order on disk.
        epoch: number of the epoch, 0..2^64-1; each epoch has its own order and masks.
        drop_last: whether to leave out a last batch of fewer rows.
        options: keyword arguments of `collate`, other than the epoch.

    Raises:
        PackerError: rows is below 1, or an argument is not valid for `collate`.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch needs at least 1")
    sampler = BatchSampler(dataset, global_batch=rows, seed=seed, epoch=epoch, drop_last=drop_last)
    for row_numbers in sampler:
        yield collate(dataset.__getitems__(row_numbers), epoch=epoch, **options)


_MULTIPLE = 16  # tokens of a static shape: matrices of such sizes are fast in 8 bits, too


def static_shape(dataset: PackedDataset, *, rows: int) -> StaticShape:
    """Return a shape that fits any batch of `rows` rows of a dataset, and little more.

    The number of segments is that of the rows with the most segments. There are as many tokens more than
    rows * max_len, rounded up to a multiple of 16, so that a batch of few segments is padded by segments of a token or
    more. Reads the segment boundaries of all rows once, and no tokens.

    Args:
        dataset: dataset from `load`.
        rows: rows per batch, at least 1.

    Raises:
        PackerError: rows is below 1.
    """
    if rows < 1:
        raise PackerError(f"rows is {rows}: a batch needs at least 1")
    counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(offsets) for offsets, _, _ in dataset.segments())])
    most = np.repeat(np.sort(counts)[-rows:], dataset.most_repeats)[-rows:]
    segments = int(most.sum()) + rows - len(most)
    # Real tokens of a row are at least as many as its segments, so `segments - rows` tokens more are enough for padding
    # of one token each. They take segments themselves if a batch has as many as the shape.
    segments += -(-(segments - rows + _MULTIPLE - 1) // max(dataset.max_len - 1, 1))
    tokens = rows * dataset.max_len + segments - rows
    return StaticShape(
        tokens=-(-tokens // _MULTIPLE) * _MULTIPLE,
        segments=segments,
        max_len=dataset.max_len,
        pad_id=dataset.pad_id,
    )


def _warn_if_nothing_is_trained(labels: NDArray[Any]) -> None:
    if not (labels != NO_LOSS).any():
        warnings.warn(
            "no token of a batch is trained, so the loss of a Hugging Face model, which is a mean, is NaN: pass "
            "num_items_in_batch, from packer.num_items_in_batch, to the model",
            stacklevel=3,
        )


def _as_tensors(tensors: Tensors, batch: object) -> Any:
    """Return a batch with its arrays as tensors that share their memory; with "numpy", return it unchanged."""
    if tensors == "numpy":
        return batch
    if tensors != "torch":
        raise PackerError(f"tensors is {tensors!r}: choose torch or numpy")
    try:
        import torch
    except ImportError as error:
        raise PackerError('torch is not installed: pip install "packer-llm[torch]", or use tensors="numpy"') from error

    def convert(value: object) -> object:
        if isinstance(value, tuple | list):
            return type(value)(map(convert, value))
        if isinstance(value, dict):
            return {name: convert(part) for name, part in value.items()}
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":  # torch has no strings or dates
            return value
        if isinstance(value, np.ma.MaskedArray):
            if np.ma.is_masked(value) and value.dtype.kind != "f":  # missing floats are NaN under the mask
                return value
            value = value.data
        return torch.from_numpy(value)

    return convert(batch)


REQUIRED = ("seq_lengths", "doc_ids")
"""Columns that every row must have, beside its tokens; like labels, they hold integers in one dimension."""


def _rows_as_arrays(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return the rows of a batch with arrays as columns; rows of a PackedDataset are returned as they are."""
    found = []
    for where, row in _items(rows, "row", "pass rows of packer.load"):
        required = (input_ids_in(row), *REQUIRED)
        if required[0] not in row and "doc_starts" in row:
            raise PackerError(
                f"{where} has no tokens, because the dataset is an index: name the dataset that was packed, as in "
                "packer.load(path, source=...)"
            )
        for name in required:
            if name not in row:
                raise PackerError(
                    f"{where} has no column {name}, only {', '.join(row)}: pass rows of packer.load; in the "
                    "Hugging Face Trainer, set remove_unused_columns=False"
                )
        names = [name for name in (*required, "labels") if name in row]
        if not all(isinstance(values, np.ndarray) for values in row.values()):
            row = {name: _array(values, f"{where} has {name}") for name, values in row.items()}
            row |= {name: _objects(row[name]) for name in row if row[name].ndim > 1 and name not in names}
        for name in names:
            _check_integers(row[name], f"{where} has {name}")
        found.append(row)
    return found


def _examples_as_rows(examples: Sequence[Mapping[str, Any]]) -> Rows:
    """Return raw examples as rows of one document; the labels are the tokens if there are none."""
    rows: list[Mapping[str, NDArray[Any]]] = []
    for where, example in _items(examples, "example", "pass mappings with input_ids"):
        if "input_ids" not in example:
            raise PackerError(
                f"{where} has no input_ids, only {', '.join(map(str, example))}: pass mappings with input_ids"
            )
        ids = _array(example["input_ids"], f"{where} has input_ids")
        if not ids.size:
            raise PackerError(f"{where} has 0 tokens: leave empty examples out")
        _check_integers(ids, f"{where} has input_ids")
        own = example.get("labels", ids)
        if own is None:
            raise PackerError(f"{where} has labels None: pass one per token, or leave the key out of all examples")
        own = _array(own, f"{where} has labels")
        if own.ndim == 1 and len(own) != len(ids):
            raise PackerError(f"{where} has {len(own)} labels for {len(ids)} tokens: pass one per token")
        _check_integers(own, f"{where} has labels")
        labels = own.astype(np.int64)
        labels[0] = NO_LOSS
        segments = {"seq_lengths": np.array([len(ids)]), "doc_ids": np.array([len(rows)])}
        rows.append({"input_ids": ids, "labels": labels, **segments})
    return rows


def _items(items: Sequence[Mapping[str, Any]], noun: str, remedy: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, item) of the rows or examples of a batch, of which all or none have labels."""
    if isinstance(items, Mapping):
        raise PackerError(
            f"the batch is one mapping with the keys {', '.join(map(str, items))}: pass a list of {noun}s"
        )
    if not len(items):
        raise PackerError(f"there are 0 {noun}s: a batch needs at least 1")
    for number, item in enumerate(items):
        where = f"{noun} {number} of the batch"
        if not isinstance(item, Mapping):
            raise PackerError(f"{where} is of type {type(item).__name__}: {remedy}")
        if ("labels" in item) != ("labels" in items[0]):
            this, first = ("labels", "has none") if "labels" in item else ("no labels", "has some")
            raise PackerError(f"{where} has {this}, {noun} 0 {first}: pass labels for all of them or none")
        yield where, item


def _array(values: Any, subject: str) -> NDArray[Any]:
    """Convert a list or a tensor; strings and lists of different lengths become an array of objects."""
    if isinstance(values, np.ndarray):
        return values
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return _objects(values)
    except (TypeError, RuntimeError) as error:  # a tensor on a GPU, or of a dtype that NumPy lacks
        raise PackerError(f"{subject} that NumPy cannot read ({error}): pass lists, arrays or CPU tensors") from error
    return array.astype(object) if array.dtype.kind in "US" else array


def _objects(values: Collection[object]) -> NDArray[Any]:
    """Return an array with one object per value, as the rows of a PackedDataset hold lists."""
    return np.fromiter(values, dtype=object, count=len(values))


def _check_integers(array: NDArray[Any], subject: str) -> None:
    if array.ndim != 1:
        remedy = "pass it in one dimension, as values[0]" if array.shape[:1] == (1,) else "pass a list of integers"
        raise PackerError(f"{subject} of shape {list(array.shape)}: {remedy}")
    if array.dtype.kind not in "iu":
        raise PackerError(f"{subject} of type {array.dtype}: pass a list of integers")
