"""A probe of any training step: compare every document of a batch with itself alone, and beside other documents."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.batch_formats import BatchFormat, batch_format
from packer.loader.probe_rows import Part, make_parts, make_rows, path_to
from packer.loader.row_tokens import Tensors

SMALLEST = 32
"""Smallest max_len and vocabulary: every document has tokens, and at least two token ids of its own."""

DIRECTIONS = 16
"""Random directions on which gradients are projected: the norm of a difference is estimated to about a sixth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLeaks:
    """Result of `probe`. Differences of losses are shares of the largest loss."""

    moved: Mapping[int, tuple[int, ...]]
    """Other documents whose losses moved, by the document that was changed; numbered through all rows of all ranks."""

    largest: float
    """Largest change of a loss of another document."""

    differs: tuple[int, ...]
    """Documents whose losses differ from their losses alone."""

    difference: float
    """Largest difference between a loss in the batch and alone."""

    gradients: float | None
    """Norm of the difference between gradients of the batch and of the documents alone, relative to the norm alone, as
    estimated from random projections. None if the losses have no gradients."""

    reaching: tuple[int, ...] | None
    """Documents whose embedded tokens have a gradient in the losses of others. It must be exactly 0, so it shows leaks
    that are too small for the losses, such as those of a state that decays fast, in bfloat16. None if no embedding is
    seen, as under `torch.compile` or without gradients."""

    tolerance: float
    """Largest difference that does not count."""

    longest: int
    """Tokens in the longest document that was probed."""

    @property
    def is_safe(self) -> bool:
        """Whether the batch trained as its documents alone."""
        return not (any(self.moved.values()) or self.reaching or self.differs or (self.gradients or 0) > self.tolerance)

    def __str__(self) -> str:
        """One line: the verdict, and which documents moved."""
        found = [
            f"{one} moves {', '.join(map(str, others)) if len(others) < 8 else f'{len(others)} others'}"
            for one, others in self.moved.items()
            if others
        ]
        if found:
            return f"leaks by up to {self.largest:.1e} of the largest loss: document {'; '.join(found)}"
        if self.differs:
            numbers = ", ".join(map(str, self.differs))
            return f"differs by up to {self.difference:.1e} of the largest loss from documents alone: {numbers}"
        if (self.gradients or 0) > self.tolerance:
            return f"leaks in the backward pass: gradients differ from those of documents alone by {self.gradients:.1e}"
        if self.reaching:
            numbers = ", ".join(map(str, self.reaching))
            return f"leaks by less than rounding: losses of others have gradients in the tokens of document {numbers}"
        backward = "without gradients" if self.gradients is None else f"gradients by {self.gradients:.1e}"
        if self.gradients is not None and self.reaching is None:
            backward += "; no embedding was seen, so leaks below the tolerance would not show"
        return (
            f"safe up to {self.longest:,} tokens: no document moves the losses of another (largest change "
            f"{self.largest:.1e}), and losses differ from those of documents alone by {self.difference:.1e}, {backward}"
        )


class _Run(NamedTuple):
    """What a step returned in all ranks."""

    losses: NDArray[np.float64]
    """Losses of one process after the other."""

    processes: NDArray[np.int64]
    """Number of the process that returned each loss."""

    gradients: NDArray[np.float64] | None
    """What `_backward` returned, summed over the processes; None without a backward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A step, and the documents that it is run on, in all processes at the same time."""

    step: Callable[[Any], Any]
    make: BatchFormat
    parts: Sequence[Part]
    max_len: int
    process: int
    """Number of this process."""

    batches: Sequence[int]
    """Numbers of the batches that the processes get; batches with different numbers have different tokens."""

    def run(
        self,
        tokens: NDArray[np.int64],
        *,
        trained: Sequence[int] | None = None,
        alone: int | None = None,
        weights: NDArray[np.float64] | float | None = None,
        probed: NDArray[np.int64] | None = None,
    ) -> _Run:
        """Run the step on rows from `make_rows`, and gather what it returns.

        With `weights` for the losses of this process, run a backward pass, too; `probed` are then token ids.
        """
        rows = make_rows(self.parts, tokens, self.max_len, trained=trained, alone=alone)

        def run() -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
            found, gradients = self.step(self.make(rows)), None
            if hasattr(found, "detach"):
                if weights is not None and found.grad_fn is not None:
                    gradients = _backward(found, np.ones(found.numel()) * weights, probed)
                found = found.detach().cpu().double()
            values = np.asarray(found, np.float64).ravel()
            if not np.isfinite(values).all():
                raise PackerError("the step returns a loss that is not a number: give tokens without a label loss 0")
            return values, gradients

        losses, gradients = zip(*_gathered(run), strict=True)
        processes = np.repeat(np.arange(len(losses)), [*map(len, losses)])
        seen = [each for each in gradients if each is not None]
        return _Run(np.concatenate(losses), processes, np.sum(seen, axis=0) if seen else None)


def probe(
    step: Callable[[Any], Any],
    *,
    format: str = "hf",
    max_len: int = 256,
    vocabulary: int = 128,
    tolerance: float = 1e-3,
    mtp: int = 0,
    tensors: Tensors = "torch",
    rank: int = 0,
    world_size: int = 1,
) -> StepLeaks:
    """Test whether documents train in packed batches as alone, in a training step of any trainer and kernel.

    The step runs inside your own job, with its attention, parallelism and precision. It is called with a batch of three
    rows; then with each document alone, and padding after it, which must give the same losses and gradients; and with
    the batch in which one document is changed at a time, which must not change the losses of others. Every document is
    changed in its last token, in all tokens, and to one token that repeats. The losses of the others must have no
    gradient in its tokens. In format "tree", a document is a tree, of which each node counts as a document.
    `packer.attention.probe` and `packer check` test Hugging Face models without a step.

        def step(batch):                                     # no dropout, no update of the weights
            logits = model(batch["input_ids"], batch["position_ids"])
            return cross_entropy(logits[0, :-1], batch["labels"][0, 1:], reduction="none")

        print(packer.probe(step, max_len=4096))

    In a job of several processes, call it in all of them; torch.distributed gathers the losses. All get the same batch,
    as in context and tensor parallelism, and a step that computes a part of the tokens returns the losses of that part.
    Where ranks get different batches, pass the `rank` and `world_size` that `BatchSampler` gets.

    Args:
        step: function that takes a batch as `collate(format=format)` returns it, and returns an array or a tensor of
            any shape: the losses of all tokens that have a label, and 0 for others. Gradients are compared if present.
        format: batch format of the trainer.
        max_len: tokens in a row, at least 32. Documents are of many lengths up to a whole row, so pass the length that
            you train with: longer ones may leak.
        vocabulary: largest token id plus one, at least 32.
        tolerance: smallest difference that counts; rounding in bfloat16 needs about 1e-2.
        mtp: number of extra heads that the batch has `mtp_labels` for, as in `collate`.
        tensors: "torch", or "numpy" for arrays.
        rank: number of the batch that this process gets, from 0.
        world_size: number of batches in the job. Documents are changed one at a time, so a few suffice.

    Raises:
        PackerError: max_len or vocabulary is too small, ranks do not fit, the step fails in another process, returns
            no loss for a document, or NaN, or gives other losses for the same batch.
    """
    if max_len < SMALLEST or vocabulary < SMALLEST:
        raise PackerError(f"max_len is {max_len} and vocabulary {vocabulary}: give at least {SMALLEST} for both")
    job = _Job(
        step=step,
        make=batch_format(format, tensors=tensors, **({"mtp": mtp} if mtp else {})),
        parts=list(make_parts(max_len, has_tree=format == "tree")),
        max_len=max_len,
        process=0 if _distributed() is None else _distributed().get_rank(),
        batches=_batches(rank, world_size),
    )
    return _compare(job, (vocabulary - 1) // len(job.parts), tolerance)


def _batches(rank: int, world_size: int) -> list[int]:
    """Return the number of the batch of every process; raise PackerError unless they are 0 to world_size - 1."""
    found = _gathered(lambda: rank)
    if {*found} != {*range(world_size)}:
        raise PackerError(
            f"the processes of this job get the batches {sorted({*found})} of {world_size}: pass rank and world_size "
            "as to BatchSampler"
        )
    return found


def _compare(job: _Job, letters: int, tolerance: float) -> StepLeaks:
    """Compare the batch with its documents alone, and with one document changed after the other.

    Document i of n has `letters` token ids of its own: 1 + i, 1 + i + n, 1 + i + 2n and so on.
    """
    parts, own, count = job.parts, job.batches[job.process], len(job.parts)
    owners = np.repeat(np.arange(count), [len(part.places) for part in parts])
    drawn = np.random.default_rng(own).integers(0, letters, len(owners))
    tokens = 1 + owners + count * drawn
    together = job.run(tokens, weights=1.0)
    scale = np.abs(together.losses).max() or 1.0

    def changes(run: _Run) -> NDArray[np.float64]:
        return np.abs(run.losses - together.losses) / scale if len(run.losses) == len(together.losses) else np.array(1)

    if changes(job.run(tokens)).max() > tolerance:
        raise PackerError("the step gives other losses for the same batch: leave out dropout and updates of weights")
    documents = _documents(job, tokens, together)
    differences, gradients = _against_alone(job, tokens, together, documents)
    moved, reaching, largest = dict[int, tuple[int, ...]](), dict[int, NDArray[np.float64] | None](), 0.0
    for number in range(len(differences)):
        batch, part = divmod(number, count)
        related = [batch * count + each for each in range(count) if part in path_to(parts, each)]
        is_other = (documents >= 0) & ~np.isin(documents, related)
        weights = is_other[together.processes == job.process].astype(np.float64)
        probed = 1 + part + count * np.arange(letters if batch == own else 0)
        reaching[number] = job.run(tokens, weights=weights, probed=probed).gradients
        places, found = parts[part].places, np.zeros(len(documents))
        another = (drawn[places] + 1) % letters
        for new in (another, np.append(drawn[places[:-1]], another[-1:]), np.zeros_like(another)):
            varied = drawn.copy()
            if batch == own:
                varied[places] = new
            run = job.run(1 + owners + count * varied)
            found = np.maximum(found, np.where(is_other, changes(run), 0))
        moved[number] = tuple(np.unique(documents[found > tolerance]).tolist())
        largest = max(largest, float(found.max()))
    return StepLeaks(
        moved=moved,
        largest=largest,
        differs=tuple(np.flatnonzero(differences > tolerance * scale).tolist()),
        difference=float(differences.max() / scale),
        gradients=gradients,
        reaching=None if reaching[0] is None else tuple(number for number, each in reaching.items() if np.any(each)),
        tolerance=tolerance,
        longest=max(len(part.places) for part in parts),
    )


def _documents(job: _Job, tokens: NDArray[np.int64], together: _Run) -> NDArray[np.int64]:
    """Return the number of the document that each loss belongs to, counted through all batches; -1 for none.

    A loss is 0 if its document has no labels. Training half of the documents at a time tells a bit of the number.
    """
    count, batches = len(job.parts), np.array(job.batches)[together.processes]
    codes = np.zeros(len(batches), np.int64)
    for bit in range(count.bit_length()):
        losses = job.run(tokens, trained=[each for each in range(count) if (each + 1) >> bit & 1]).losses
        codes |= (losses != 0).astype(np.int64) << bit if len(losses) == len(codes) else 0
    found = np.where((codes > 0) & (codes <= count), batches * count + codes - 1, -1)
    for number in {*range(count * (max(job.batches) + 1))} - {*found.tolist()}:
        raise PackerError(
            f"the step returns {len(codes):,} losses, but none of document {number}: return one for every token, "
            "and 0 for tokens without a label"
        )
    return found


def _against_alone(
    job: _Job, tokens: NDArray[np.int64], together: _Run, documents: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float | None]:
    """Return the largest difference of losses of each document from those alone, and that of the gradients.

    Losses are compared in order of size, because a process may have other tokens of a document alone. A loss that one
    side lacks is 0 there.
    """
    count, batches = len(job.parts), np.array(job.batches)
    differences, summed = np.zeros(count * (batches.max() + 1)), np.zeros(DIRECTIONS)
    for number in range(count):
        single = job.run(tokens, alone=number, weights=1.0)
        summed += 0 if single.gradients is None else single.gradients
        for document in range(number, len(differences), count):
            is_own = (single.losses != 0) & (batches[single.processes] == document // count)
            both = [together.losses[documents == document], single.losses[is_own]]
            longer = max(map(len, both))
            in_batch, alone = (np.sort(np.pad(each, (0, longer - len(each)))) for each in both)
            differences[document] = np.abs(in_batch - alone).max()
    apart = None if together.gradients is None else np.linalg.norm(together.gradients - summed)
    return differences, None if apart is None else float(apart / (np.linalg.norm(summed) or 1))


def _backward(
    losses: Any, weights: NDArray[np.float64], probed: NDArray[np.int64] | None
) -> NDArray[np.float64] | None:
    """Return the projected gradients of a weighted sum of losses, or the largest gradients of tokens in `probed`.

    The latter is None if no embedding is seen. `parameter.grad` stays as it is.
    """
    import torch

    seen, left, parameters, reached = {losses.grad_fn}, [losses.grad_fn], dict[int, Any](), list[float]()
    while left:
        node = left.pop()
        if isinstance(getattr(node, "variable", None), torch.nn.Parameter):
            parameters[id(node.variable)] = node.variable
        if probed is not None and node.name() == "EmbeddingBackward0":
            ids = _local(node._saved_indices).flatten()
            if 2 * (ids.diff() == 1).sum() < len(ids):  # consecutive ids are positions, not tokens
                reached.append(0.0)
                node.register_prehook(partial(_note_gradient, ids, probed, reached))
        following = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= following
        left += following
    given = torch.as_tensor(weights, dtype=losses.dtype, device=losses.device).reshape(losses.shape)
    found = torch.autograd.grad((losses * given).sum(), list(parameters.values()), allow_unused=True)
    if probed is not None:
        return np.max(reached, keepdims=True) if reached else None
    return sum((_projected(_local(each)) for each in found if each is not None), np.zeros(DIRECTIONS))


def _note_gradient(ids: Any, probed: NDArray[np.int64], reached: list[float], gradients: Sequence[Any]) -> None:
    """Hook of an embedding: append the largest gradient of the tokens in `probed`."""
    import torch

    is_probed = torch.isin(ids, torch.as_tensor(probed, device=ids.device))
    if gradients[0] is not None and is_probed.any():
        reached.append(float(_local(gradients[0]).flatten(0, -2)[is_probed].abs().max()))


def _projected(gradient: Any) -> NDArray[np.float64]:
    """Return products of a gradient with random vectors of 1 and -1, the same for all gradients of one size."""
    import torch

    signs, generator = torch.empty_like(gradient), torch.Generator(gradient.device).manual_seed(gradient.numel())
    found = np.zeros(DIRECTIONS)
    for number in range(DIRECTIONS):
        signs.bernoulli_(generator=generator).mul_(2).sub_(1)
        found[number] = float((gradient * signs).sum(dtype=torch.float64))
    return found


def _local(tensor: Any) -> Any:
    """Return the part of a distributed tensor that this process has."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _distributed() -> Any:
    """Return torch.distributed if this process belongs to a job of several processes, else None."""
    found = getattr(sys.modules.get("torch"), "distributed", None)
    return found if found is not None and found.is_available() and found.is_initialized() else None


def _gathered(make: Callable[[], Any]) -> list[Any]:
    """Return what `make()` returns in every process of the job; raise if it fails in one of them."""
    distributed = _distributed()
    if distributed is None:
        return [make()]
    own, failure = None, None
    try:
        own = make()
    except Exception as error:  # the others wait for this process
        failure = error
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, (own, failure and repr(failure)))
    for process, (_, message) in enumerate(found):
        if message:
            raise PackerError(f"the step failed in process {process} of the job: {message}") from failure
    return [each for each, _ in found]
