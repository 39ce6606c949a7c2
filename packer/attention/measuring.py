"""What a model makes of a packed batch, and of the same documents alone: logits, loss, gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from packer.attention.hugging_face import accepted
from packer.attention.rope import computed_by_document
from packer.errors import PackerError
from packer.loader import NO_LOSS, collate

ROWS = ((11, 1, 17, 9), (13, 20, 6))
"""Tokens of the documents in each row of the probed batch."""

LENGTHS = tuple(length for row in ROWS for length in row)
CHANGED = 2
"""The document that is changed: others come before and after it, in its row and in the next."""

PLACE = slice(sum(LENGTHS[:CHANGED]), sum(LENGTHS[: CHANGED + 1]))
"""Where its tokens are in the flattened batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a model makes of the documents of a batch."""

    logits: torch.Tensor
    """`[tokens, vocabulary]`."""

    loss: float
    """Mean over the trained tokens, as the model computes it."""

    gradients: dict[str, torch.Tensor]
    """By parameter; those that take no part are left out."""

    moved: float
    """How far logits of other documents move when one changes, relative to the largest logit."""


def make_batches(model: PreTrainedModel, position_offset: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A packed batch of random tokens, and the same with other tokens in one document; on the model's device."""
    config = model.config.get_text_config()
    special = {value for name, value in vars(config).items() if name.endswith("_token_id") and isinstance(value, int)}
    words = [token for token in range(config.vocab_size) if token not in special]
    random = np.random.default_rng([0, len(words)])
    documents = [random.choice(words, length) for length in LENGTHS]
    changed = [*documents[:CHANGED], random.choice(words, LENGTHS[CHANGED]), *documents[CHANGED + 1 :]]
    return _batch(model, documents, position_offset), _batch(model, changed, position_offset)


def _batch(model: PreTrainedModel, documents: Sequence[Any], position_offset: int) -> dict[str, Any]:
    rows, numbers = [], iter(range(len(documents)))
    for lengths in ROWS:
        ids = np.array([next(numbers) for _ in lengths])
        tokens = np.concatenate([documents[number] for number in ids])
        rows.append({"input_ids": tokens, "seq_lengths": np.array(lengths), "doc_ids": ids})
    device = next(model.parameters()).device
    batch = collate(rows, position_offset=position_offset)
    return accepted(
        model, {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
    )


def measure_packed(model: PreTrainedModel, batch: Mapping[str, Any], changed: Mapping[str, Any]) -> Measured:
    """Train on a packed batch, and look at the same batch with one document changed."""
    model.zero_grad()
    torch.manual_seed(0)
    output = model(**batch)
    output.loss.backward()
    with torch.no_grad():
        torch.manual_seed(0)  # what is random in training is the same twice
        after = model(**changed).logits[0]
    before = output.logits[0].detach()
    return Measured(
        logits=before, loss=float(output.loss.detach()), gradients=_gradients(model), moved=_others_moved(before, after)
    )


def measure_alone(model: PreTrainedModel, batch: Mapping[str, Any], changed: Mapping[str, Any]) -> Measured:
    """Train on the documents of a batch one by one; `moved` is what one does to others with nothing between them.

    Raises:
        PackerError: the model does not run on them.
    """
    plain = accepted(model, {"use_cache": False})
    try:
        alone = train_alone(model, batch, boundaries=False)
        with torch.no_grad():
            together = [model(input_ids=each["input_ids"], **plain).logits[0] for each in (batch, changed)]
    except Exception as error:  # whatever a model raises
        raise PackerError(
            f"{type(model).__name__} does not run on a document alone, so that there is nothing to compare packed ones "
            f"with: {type(error).__name__}: {one_line(error)}"
        ) from error
    return replace(alone, moved=_others_moved(*together))


def train_alone(
    model: PreTrainedModel, batch: Mapping[str, Any], *, boundaries: bool, copies: int = 1, padding: int = 0
) -> Measured:
    """Train on the documents of a batch one by one; `moved` is 0.

    Args:
        model: in training mode.
        batch: of `make_batches`.
        boundaries: hand over positions and where documents begin, without which some implementations do not run.
        copies: rows in which each document stands, which changes how sums are rounded and nothing else.
        padding: tokens after each document, of which a causal model is independent.
    """
    plain = accepted(model, {"use_cache": False})
    trained = int((batch["labels"] != NO_LOSS).sum())
    logits, total, place = [], 0.0, 0
    model.zero_grad()
    for length in LENGTHS:
        ids, labels = (batch[name][:, place : place + length] for name in ("input_ids", "labels"))
        one = {
            "input_ids": torch.cat([ids, ids[:, :1].expand(1, padding)], dim=1).repeat(copies, 1),
            "labels": torch.nn.functional.pad(labels, (0, padding), value=NO_LOSS).repeat(copies, 1),
            **(_boundaries(batch, place, length + padding, copies) if boundaries else {}),
        }
        with computed_by_document(model):
            output = model(**one, **plain)
        share = int((labels != NO_LOSS).sum()) / trained
        if share:  # a document of one token has nothing to predict
            (output.loss * share).backward()
            total += float(output.loss.detach()) * share
        logits.append(output.logits[0, :length].detach())
        place += length
    return Measured(logits=torch.cat(logits), loss=total, gradients=_gradients(model), moved=0.0)


def _boundaries(batch: Mapping[str, Any], place: int, tokens: int, rows: int) -> dict[str, Any]:
    """What a batch says of its documents, for rows of a single one that begins at `place` of the batch."""
    device = batch["input_ids"].device
    starts = torch.arange(rows + 1, dtype=torch.int32, device=device) * tokens
    known = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": tokens, "max_length_k": tokens}
    if "position_ids" in batch:
        known["position_ids"] = (batch["position_ids"][:, place] + torch.arange(tokens, device=device)).repeat(rows, 1)
    return {name: value for name, value in known.items() if name in batch}


def _gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def _others_moved(before: torch.Tensor, after: torch.Tensor) -> float:
    moved = (after - before).abs().amax(dim=-1)
    moved[PLACE] = 0
    return float(moved.max() / before.abs().max())


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of two tensors of logits, relative to the largest logit."""
    return float((found - expected).abs().max() / expected.abs().max())


def apart(found: Measured, expected: Measured) -> tuple[float, float, float]:
    """(logits, loss, gradients): how far each is from what was expected, relative to its size."""
    return (
        difference({"": found.logits}, {"": expected.logits}),
        abs(found.loss - expected.loss) / abs(expected.loss),
        difference(found.gradients, expected.gradients),
    )


def difference(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """How far tensors are from others of the same names: the norm of the difference over the norm; missing is zero."""
    squares = 0.0
    for name in found.keys() | expected.keys():
        either = [tensors[name] for tensors in (found, expected) if name in tensors]
        squares += _norm(either[0] - either[1] if len(either) == 2 else either[0]) ** 2
    return math.sqrt(squares / sum(_norm(tensor) ** 2 for tensor in expected.values()))


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


@contextmanager
def as_trained(model: PreTrainedModel) -> Iterator[None]:
    """Training mode, in which some kernels heed boundaries that they ignore in evaluation, without dropout.

    The mode, the dropout, the gradients and the attention implementation come back, and torch's random state.
    """
    training, implementation = model.training, model.config._attn_implementation
    text = model.config.get_text_config()
    text_implementation = text._attn_implementation
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    holders = {id(holder): holder for holder in (*model.modules(), model.config, text)}
    rates = [
        (holder, name, rate)
        for holder in holders.values()
        for name, rate in vars(holder).items()
        if isinstance(rate, float) and (_is_random(name) or (name == "p" and isinstance(holder, torch.nn.Dropout)))
    ]
    try:
        with seeded():
            for holder, name, _ in rates:
                setattr(holder, name, 0.0)
            for parameter, _ in gradients:
                parameter.grad = None
            model.train()
            yield
    finally:
        for holder, name, rate in rates:
            setattr(holder, name, rate)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        model.train(training)
        if text._attn_implementation != text_implementation:
            model.set_attn_implementation(implementation)


@contextmanager
def seeded() -> Iterator[None]:
    """The same random numbers every time; torch's random state comes back."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
        torch.manual_seed(0)
        yield


def _is_random(name: str) -> bool:
    return "drop" in name or "jitter" in name


def one_line(error: BaseException) -> str:
    """An error's message in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
