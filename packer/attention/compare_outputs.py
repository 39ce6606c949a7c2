"""Outputs of a model for a packed batch and for the same documents alone, and what rounding does to them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from packer.attention.rope import document_frequencies
from packer.attention.transformers_hook import accepted_arguments
from packer.column_names import NO_LOSS
from packer.errors import PackerError
from packer.loader.training_loop import collate

ROWS = ((11, 1, 17, 9), (13, 20, 6))
"""Lengths in tokens of the documents in each row of the probed batch."""

LENGTHS = tuple(length for row in ROWS for length in row)
"""Lengths of all documents of the batch."""

CHANGED = 2
"""Index of the document that is changed. Others precede and follow it in its row, and follow in the next row."""

CHANGED_TOKENS = slice(sum(LENGTHS[:CHANGED]), sum(LENGTHS[: CHANGED + 1]))
"""Tokens of the changed document in the flattened batch."""

NODES = (7, -1, 0, 7, 0, 0, 5, 0, 1, 5, 2, 1, 8, 2, 2)
"""Tree of three documents, as in the column of rows: length, parent and document of each node. All begin with the same
8 tokens, and two of them share 5 more; every branch begins with the last token that it shares."""

PATHS = ((*range(14),), (*range(7), *range(14, 24)), (*range(7), *range(14, 19), *range(24, 32)), (*range(32, 38),))
"""Places in the row of the tokens of each document; the last is an ordinary document after the tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Outputs of a model in training for the documents of a batch."""

    logits: torch.Tensor
    """`[tokens, vocabulary]`."""

    loss: float
    """Mean over the trained tokens, as the model computes it."""

    gradients: dict[str, torch.Tensor]
    """Gradients by parameter name; parameters without a gradient are left out."""


class Reference(NamedTuple):
    """A packed batch of random tokens on the model's device, and what the outputs for it are compared with."""

    batch: dict[str, Any]
    changed: dict[str, Any]
    """The same batch with one document changed."""

    alone: Outputs
    """Outputs for each document alone."""

    moved_by_leak: float
    """`others_moved` for the batch without segment boundaries, the effect of a change if documents attend to others."""


def make_reference(model: PreTrainedModel, position_offset: int) -> Reference:
    """Make a batch, in which `position_offset` is the position of the first token of every document, and outputs."""
    ordinary = _ordinary_tokens(model)
    random = np.random.default_rng([0, len(ordinary)])
    documents = [random.choice(ordinary, length) for length in LENGTHS]
    others = [*documents[:CHANGED], random.choice(ordinary, LENGTHS[CHANGED]), *documents[CHANGED + 1 :]]
    batch, changed = (_collate(model, each, position_offset) for each in (documents, others))
    without_cache = accepted_arguments(model, {"use_cache": False})
    try:
        alone = outputs_alone(model, batch, boundaries=False)
        with torch.no_grad():
            before = model(input_ids=batch["input_ids"], **without_cache).logits[0]
        moved = others_moved(model, before, {"input_ids": changed["input_ids"], **without_cache})
    except Exception as error:  # models raise errors of any type
        raise PackerError(
            f"{type(model).__name__} fails on a single document, which packed ones are compared with: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error
    return Reference(batch, changed, alone, moved)


def _ordinary_tokens(model: PreTrainedModel) -> list[int]:
    """Return the tokens of a model that are not special. Raises PackerError if there are fewer than 2."""
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
    return ordinary


def _collate(model: PreTrainedModel, documents: Sequence[Any], position_offset: int) -> dict[str, Any]:
    rows, numbers = [], iter(range(len(documents)))
    for lengths in ROWS:
        ids = np.array([next(numbers) for _ in lengths])
        tokens = np.concatenate([documents[number] for number in ids])
        rows.append({"input_ids": tokens, "seq_lengths": np.array(lengths), "doc_ids": ids})
    return _on_device(model, accepted_arguments(model, collate(rows, position_offset=position_offset)))


def _on_device(model: PreTrainedModel, batch: Mapping[str, Any]) -> dict[str, Any]:
    device = next(model.parameters()).device
    return {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}


def make_tree_batch(model: PreTrainedModel) -> tuple[dict[str, Any], list[dict[str, torch.Tensor]]]:
    """Return a batch of the tree `NODES` and an ordinary document, with random tokens, and batches of each document.

    A target that several documents share has its loss in the first document, as in the tree.
    """
    ordinary = _ordinary_tokens(model)
    tokens = np.random.default_rng([1, len(ordinary)]).choice(ordinary, PATHS[-1][-1] + 1)
    tokens[14], tokens[24] = tokens[7], tokens[19]
    labels, trees = tokens.copy(), np.empty(2, object)
    labels[[0, 14, 24, 32]], trees[:] = NO_LOSS, [list(NODES), []]
    row = {
        "tree_input_ids": tokens,
        "labels": labels,
        "seq_lengths": np.array([32, 6]),
        "doc_ids": np.arange(2),
        "tree": trees,
    }
    batch = _on_device(model, collate([row], format="tree"))
    left, documents = batch["labels"].clone(), []
    for path in map(list, PATHS):
        documents.append({"input_ids": batch["input_ids"][:, path], "labels": left[:, path]})
        left[:, path] = NO_LOSS
    return batch, documents


def batch_outputs(model: PreTrainedModel, batch: Mapping[str, Any], places: Sequence[int] | None = None) -> Outputs:
    """Return the outputs for a batch of one row, with the logits of all tokens, or of the tokens at `places`."""
    model.zero_grad()
    torch.manual_seed(0)
    output = model(**batch)
    output.loss.backward()
    logits = output.logits[0].detach()
    return Outputs(
        logits=logits if places is None else logits[list(places)],
        loss=float(output.loss.detach()),
        gradients=_gradients(model),
    )


def others_moved(model: PreTrainedModel, before: torch.Tensor, changed: Mapping[str, Any]) -> float:
    """Return the largest change of a logit of another document, relative to the largest logit.

    `before` are the logits of a batch, and `changed` is the same batch with one document changed.
    """
    with torch.no_grad():
        torch.manual_seed(0)  # so that randomness in training mode is the same in both runs
        moved = (model(**changed).logits[0] - before).abs().amax(dim=-1)
    moved[CHANGED_TOKENS] = 0
    return float(moved.max() / before.abs().max())


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
    """Return the outputs for each document of a batch alone.

    Pass `boundaries` for implementations that need positions and segment boundaries. `copies` is the number of rows
    that contain the document; more than one changes only how sums are rounded. `padding` tokens after the document do
    not affect a causal model.
    """
    singles, place = [], 0
    for length in LENGTHS:
        ids, labels = (batch[name][:, place : place + length] for name in ("input_ids", "labels"))
        single = {
            "input_ids": torch.cat([ids, ids[:, :1].expand(1, padding)], dim=1).repeat(copies, 1),
            "labels": torch.nn.functional.pad(labels, (0, padding), value=NO_LOSS).repeat(copies, 1),
        }
        singles.append(single | (_boundaries(batch, place, length + padding, copies) if boundaries else {}))
        place += length
    return document_outputs(model, singles, padding=padding)


def document_outputs(model: PreTrainedModel, documents: Sequence[Mapping[str, Any]], *, padding: int = 0) -> Outputs:
    """Return the outputs for batches of one document each, or its copies, and `padding` after it."""
    without_cache = accepted_arguments(model, {"use_cache": False})
    counts = [int((document["labels"][0] != NO_LOSS).sum()) for document in documents]
    logits, total = [], 0.0
    model.zero_grad()
    for document, trained in zip(documents, counts, strict=True):
        with document_frequencies(model):
            output = model(**document, **without_cache)
        share = trained / sum(counts)
        if share:  # a document of one token has no loss
            (output.loss * share).backward()
            total += float(output.loss.detach()) * share
        logits.append(output.logits[0, : document["input_ids"].shape[1] - padding].detach())
    return Outputs(logits=torch.cat(logits), loss=total, gradients=_gradients(model))


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


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference between two tensors of logits, relative to the largest expected logit."""
    return float((found - expected).abs().max() / expected.abs().max())


def relative_difference(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> float:
    """Return the norm of the difference of all tensors over the norm of the expected ones.

    Tensors are compared by name; one that exists only once is compared with zeros.
    """
    exact = [{name: tensor.double() for name, tensor in each.items()} for each in (found, expected)]
    squares = sum(float((exact[0].get(n, 0) - exact[1].get(n, 0)).square().sum()) for n in {*found, *expected})
    return math.sqrt(squares / (sum(float(tensor.square().sum()) for tensor in exact[1].values()) or 1.0))


def differences(found: Outputs, expected: Outputs) -> tuple[float, float, float]:
    """Return the relative differences of (logits, loss, gradients)."""
    return (
        relative_difference({"": found.logits}, {"": expected.logits}),
        abs(found.loss - expected.loss) / abs(expected.loss),
        relative_difference(found.gradients, expected.gradients),
    )


FACTOR = 2.0
"""A difference up to this many times the measured effect of rounding may be rounding."""

LARGEST_SAFE = 0.05
"""A difference above this is not called safe even if rounding explains it, because it would hide a lost window."""

SHAPES = ({"copies": 3}, {"padding": 7}, {"copies": 2, "padding": 23})
"""Other shapes of the batch that contains a document alone, in which sums are rounded differently."""


class Tolerance(NamedTuple):
    """Differences up to which rounding need not be measured. Leaks cause 0.1 and more, other faults below 0.001."""

    moved: float
    """Largest change of other documents, relative to the largest logit."""

    difference: float
    """Largest relative difference between packed and single documents."""


TOLERANCES = {
    torch.float64: Tolerance(moved=1e-10, difference=1e-6),
    torch.float32: Tolerance(moved=1e-5, difference=1e-5),
    torch.float16: Tolerance(moved=0.02, difference=0.0),  # rounding is always measured
    torch.bfloat16: Tolerance(moved=0.02, difference=0.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """Effect of rounding on single documents, and the effect of packing; the largest of the relative differences."""

    seen: float
    """Difference between single documents and the same in batches of other shapes, similar to rounding by packing."""

    most: float
    """Difference to runs with random last bits in the output of every layer, larger than any rounding by packing."""

    most_moved: float
    """Largest change of a logit in these runs, relative to the largest logit."""

    packed: float
    """Difference between packed and single documents, both by the implementation that is probed."""

    alone: float
    """Difference between single documents by that implementation and by a plain one."""


def measure_rounding(model: PreTrainedModel, reference: Reference, packed: Outputs) -> Rounding:
    """Measure the effect of rounding on a model that uses the implementation to be probed, and made `packed`."""
    batch = reference.batch
    alone = outputs_alone(model, batch, boundaries=True)
    perturbed = _perturbed_outputs(model, lambda: outputs_alone(model, batch, boundaries=True))
    most = max(max(differences(each, alone)) for each in perturbed)
    by_shape = [max(differences(outputs_alone(model, batch, boundaries=True, **shape), alone)) for shape in SHAPES]
    return Rounding(
        # More than 2 * most is not rounding: the model is an encoder that attends to the padding.
        seen=max((each for each in by_shape if each <= 2 * most), default=0.0),
        most=most,
        most_moved=max(largest_difference(each.logits, alone.logits) for each in perturbed),
        packed=max(differences(packed, alone)),
        alone=max(differences(alone, reference.alone)),
    )


def is_rounding(model: PreTrainedModel, run: Callable[[], Outputs], found: Outputs, expected: Outputs) -> bool:
    """Return whether rounding explains the difference between two outputs; False for NaN.

    `run` computes one of the two, `found` or `expected`, with the model as it is.
    """
    difference, limit = max(differences(found, expected)), TOLERANCES[expected.logits.dtype].difference
    if not difference <= limit:
        perturbed = _perturbed_outputs(model, run)
        plain = run()
        limit = FACTOR * max(max(differences(each, plain)) for each in perturbed)
    return difference <= limit


def _perturbed_outputs(model: PreTrainedModel, run: Callable[[], Outputs]) -> list[Outputs]:
    """Return outputs of two runs in which each layer's output has other random last bits.

    It is multiplied by a random factor between 1 - eps and 1 + eps of its dtype.
    """

    def perturb(_module: torch.nn.Module, _inputs: object, output: object) -> object:
        if torch.is_tensor(output) and output.is_floating_point():
            return output * (1 + torch.finfo(output.dtype).eps * (2 * torch.rand_like(output) - 1))
        return output

    hooks = [module.register_forward_hook(perturb) for module in model.modules() if not list(module.children())]
    found = []
    try:
        for seed in range(2):
            torch.manual_seed(seed)
            found.append(run())
    finally:
        for hook in hooks:
            hook.remove()
    return found


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
