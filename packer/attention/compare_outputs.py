"""Outputs of a model for a packed batch and for the same documents alone: logits, loss and gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from packer.attention.rope import document_frequencies
from packer.attention.transformers_hook import accepted_arguments
from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.collating import collate

ROWS = ((11, 1, 17, 9), (13, 20, 6))
"""Lengths in tokens of the documents in each row of the probed batch."""

LENGTHS = tuple(length for row in ROWS for length in row)
"""Lengths of all documents of the batch."""

CHANGED = 2
"""Index of the document that is changed. Others precede and follow it in its row, and follow in the next row."""

CHANGED_TOKENS = slice(sum(LENGTHS[:CHANGED]), sum(LENGTHS[: CHANGED + 1]))
"""Tokens of the changed document in the flattened batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Outputs of a model in training for the documents of a batch."""

    logits: torch.Tensor
    """`[tokens, vocabulary]`."""

    loss: float
    """Mean over the trained tokens, as the model computes it."""

    gradients: dict[str, torch.Tensor]
    """Gradients by parameter name; parameters without a gradient are left out."""

    moved: float
    """Largest change of a logit of another document when one document changes, relative to the largest logit."""


def make_batches(model: PreTrainedModel, position_offset: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a packed batch of random tokens and the same batch with one document changed, on the model's device.

    `position_offset` is the position of the first token of every document.
    """
    config = model.config.get_text_config()
    fields = vars(model.config) | vars(config)
    names = [name for name in fields if name.endswith(("_token_id", "_token_index"))]
    special = {fields[name] for name in names if isinstance(fields[name], int)}
    ordinary = [token for token in range(config.vocab_size) if token not in special]
    if len(ordinary) < 2:
        raise PackerError(
            f"only {len(ordinary)} of {config.vocab_size:,} tokens of {type(model).__name__} are not special, and the "
            "probe needs 2: correct vocab_size or the fields that end in _token_id in its config"
        )
    random = np.random.default_rng([0, len(ordinary)])
    documents = [random.choice(ordinary, length) for length in LENGTHS]
    changed = [*documents[:CHANGED], random.choice(ordinary, LENGTHS[CHANGED]), *documents[CHANGED + 1 :]]
    return _collate(model, documents, position_offset), _collate(model, changed, position_offset)


def _collate(model: PreTrainedModel, documents: Sequence[Any], position_offset: int) -> dict[str, Any]:
    rows, numbers = [], iter(range(len(documents)))
    for lengths in ROWS:
        ids = np.array([next(numbers) for _ in lengths])
        tokens = np.concatenate([documents[number] for number in ids])
        rows.append({"input_ids": tokens, "seq_lengths": np.array(lengths), "doc_ids": ids})
    device = next(model.parameters()).device
    batch = accepted_arguments(model, collate(rows, position_offset=position_offset))
    return {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}


def packed_outputs(model: PreTrainedModel, batch: Mapping[str, Any], changed: Mapping[str, Any]) -> Outputs:
    """Return the outputs for a packed batch; `changed` is the same batch with one document changed."""
    model.zero_grad()
    torch.manual_seed(0)
    output = model(**batch)
    output.loss.backward()
    with torch.no_grad():
        torch.manual_seed(0)  # so that randomness in training mode is the same in both runs
        after = model(**changed).logits[0]
    before = output.logits[0].detach()
    return Outputs(
        logits=before, loss=float(output.loss.detach()), gradients=_gradients(model), moved=_others_moved(before, after)
    )


def reference_outputs(model: PreTrainedModel, batch: Mapping[str, Any], changed: Mapping[str, Any]) -> Outputs:
    """Return the outputs for each document alone; `moved` is measured on the batch without segment boundaries.

    `moved` is then the effect that a change has if documents attend to each other.
    """
    without_cache = accepted_arguments(model, {"use_cache": False})
    try:
        alone = outputs_alone(model, batch, boundaries=False)
        with torch.no_grad():
            before, after = (model(input_ids=each["input_ids"], **without_cache).logits[0] for each in (batch, changed))
    except Exception as error:  # models raise errors of any type
        raise PackerError(
            f"{type(model).__name__} fails on a single document, which packed ones are compared with: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error
    return replace(alone, moved=_others_moved(before, after))


def earlier_moved(model: PreTrainedModel, batch: Mapping[str, Any]) -> float:
    """Return the largest change of a logit when a later token of the document changes, relative to the largest logit.

    0 for models other than causal language models. One document of the batch is computed alone, with its boundaries.
    """
    if not model.can_generate() or type(model).__name__ in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values():
        return 0.0
    tokens, place = LENGTHS[CHANGED], CHANGED_TOKENS.start
    ids = batch["input_ids"][:, CHANGED_TOKENS]
    arguments = accepted_arguments(model, {"use_cache": False}) | _boundaries(batch, place, tokens, 1)
    changed = ids.clone()
    changed[0, -1] = ids[ids != ids[0, -1]][0]
    with torch.no_grad(), document_frequencies(model):
        before, after = (model(input_ids=each, **arguments).logits[0] for each in (ids, changed))
    return largest_difference(after[:-1], before[:-1])


def outputs_alone(
    model: PreTrainedModel, batch: Mapping[str, Any], *, boundaries: bool, copies: int = 1, padding: int = 0
) -> Outputs:
    """Return the outputs for each document of a batch alone; `moved` is 0.

    Some implementations do not run without positions and segment `boundaries`. More than one of `copies`, the rows that
    contain the document, changes only how sums are rounded; tokens of `padding` after it do not affect a causal model.
    """
    without_cache = accepted_arguments(model, {"use_cache": False})
    trained = int((batch["labels"] != NO_LOSS).sum())
    logits, total, place = [], 0.0, 0
    model.zero_grad()
    for length in LENGTHS:
        ids, labels = (batch[name][:, place : place + length] for name in ("input_ids", "labels"))
        single = {
            "input_ids": torch.cat([ids, ids[:, :1].expand(1, padding)], dim=1).repeat(copies, 1),
            "labels": torch.nn.functional.pad(labels, (0, padding), value=NO_LOSS).repeat(copies, 1),
        }
        if boundaries:
            single |= _boundaries(batch, place, length + padding, copies)
        with document_frequencies(model):
            output = model(**single, **without_cache)
        share = int((labels != NO_LOSS).sum()) / trained
        if share:  # a document of one token has no loss
            (output.loss * share).backward()
            total += float(output.loss.detach()) * share
        logits.append(output.logits[0, :length].detach())
        place += length
    return Outputs(logits=torch.cat(logits), loss=total, gradients=_gradients(model), moved=0.0)


def _boundaries(batch: Mapping[str, Any], place: int, tokens: int, rows: int) -> dict[str, Any]:
    """Return the batch's keys for positions and boundaries, for rows of the one document that begins at `place`."""
    device = batch["input_ids"].device
    cu_seqlens = torch.arange(rows + 1, dtype=torch.int32, device=device) * tokens
    keys = {"cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens, "max_length_q": tokens, "max_length_k": tokens}
    if "position_ids" in batch:
        keys["position_ids"] = (batch["position_ids"][:, place] + torch.arange(tokens, device=device)).repeat(rows, 1)
    return {name: value for name, value in keys.items() if name in batch}


def _gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def _others_moved(before: torch.Tensor, after: torch.Tensor) -> float:
    moved = (after - before).abs().amax(dim=-1)
    moved[CHANGED_TOKENS] = 0
    return float(moved.max() / before.abs().max())


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference between two tensors of logits, relative to the largest expected logit."""
    return float((found - expected).abs().max() / expected.abs().max())


def differences(found: Outputs, expected: Outputs) -> tuple[float, float, float]:
    """Return the relative differences of (logits, loss, gradients)."""
    return (
        relative_difference({"": found.logits}, {"": expected.logits}),
        abs(found.loss - expected.loss) / abs(expected.loss),
        relative_difference(found.gradients, expected.gradients),
    )


def relative_difference(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """Return the norm of the difference of all tensors over the norm of the expected ones.

    Tensors are compared by name; one that exists only once is compared with zeros.
    """
    squares = 0.0
    for name in found.keys() | expected.keys():
        either = [tensors[name] for tensors in (found, expected) if name in tensors]
        squares += _norm(either[0] - either[1] if len(either) == 2 else either[0]) ** 2
    return math.sqrt(squares / sum(_norm(tensor) ** 2 for tensor in expected.values()))


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model in training mode, without gradients, dropout and other random noise.

    Some kernels use segment boundaries in training mode only.
    """
    model = copy.deepcopy(model).train()
    model.zero_grad()
    for holder in (*model.modules(), model.config, model.config.get_text_config()):
        for name, rate in list(vars(holder).items()):
            is_random = "drop" in name or "jitter" in name or (name == "p" and isinstance(holder, torch.nn.Dropout))
            if isinstance(rate, float) and is_random:
                setattr(holder, name, 0.0)
    return model


@contextmanager
def seeded() -> Iterator[None]:
    """Seed torch's random numbers with 0 within the context, and restore their state afterwards."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
        torch.manual_seed(0)
        yield


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
