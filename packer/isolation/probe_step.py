"""A probe of any training step: compare every document of a batch with itself alone, and next to other documents.

The rows have documents of many lengths, and the first may be a tree. `packer check` probes the attention
implementations of a model in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.column_names import NO_LOSS, PADDING, TREE, TREE_INPUT_IDS
from packer.errors import PackerError, as_whole
from packer.loader.batch_formats import BatchFormat, batch_format
from packer.loader.row_tokens import Tensors

Step: TypeAlias = Callable[[Any], Any]
"""Function from a batch to the losses of its tokens, as `probe` takes it."""

SMALLEST = 32
"""Minimum max_len and vocabulary, so that every document has tokens, and two token ids that no other has."""

SHARES = ((8, 4, 2, 2), (1, 10, 5), (16,))
"""Lengths of the documents in each row, as shares of the row."""

TREE_SHARES = (2, 2, 1, 1, 2)
TREE_PARENTS = (-1, 0, 0, 2, 2)
"""(length in eighths of the tree, parent) of each node of the tree that replaces the first document."""

DIRECTIONS = 16
"""Random directions on which gradients are projected: this estimates the norm of a difference to about a sixth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLeaks:
    """Result of `probe`. Differences of losses are shares of the largest loss."""

    moved: Mapping[int, tuple[int, ...]]
    """For each changed document, the other documents whose losses changed; numbered across all rows of all ranks."""

    largest: float
    """Largest change of a loss of another document."""

    differs: tuple[int, ...]
    """Documents whose losses differ from their losses alone."""

    difference: float
    """Largest difference between a loss in the batch and alone."""

    gradients: float | None
    """Norm of the difference between the gradients of the batch and of the documents alone, divided by the norm of the
    latter. It is estimated from random projections. None if the losses have no gradients."""

    reaching: tuple[int, ...] | None
    """Documents whose embeddings have a gradient from the losses of other documents. As it must be exactly 0, the
    gradient shows leaks that are too small for the losses, such as leaks in bfloat16 through a state that decays fast.
    None if no embedding is called visibly, as under `torch.compile`, or without gradients."""

    tolerance: float
    """Largest difference that does not count."""

    longest: int
    """Tokens in the longest document that was probed."""

    @property
    def is_safe(self) -> bool:
        """Whether the batch had the same results as its documents alone."""
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
            return f"differs by up to {self.difference:.1e} of the largest loss from single documents: {numbers}"
        if (self.gradients or 0) > self.tolerance:
            return (
                f"leaks in the backward pass: gradients of packed and single documents differ by {self.gradients:.1e}"
            )
        if self.reaching:
            numbers = ", ".join(map(str, self.reaching))
            return f"leaks by less than rounding: losses of others have gradients in the tokens of document {numbers}"
        backward = "without gradients" if self.gradients is None else f"gradients by {self.gradients:.1e}"
        if self.gradients is not None and self.reaching is None:
            backward += "; no embedding was seen, so leaks below the tolerance would not show"
        return (
            f"safe up to {self.longest:,} tokens: no document moves the losses of another (largest change "
            f"{self.largest:.1e}), and losses of packed and single documents differ by {self.difference:.1e}, "
            f"{backward}"
        )


def probe(
    step: Step,
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
    """Test whether a training step, of any trainer and kernel, treats packed documents like single ones.

    The step runs inside your own job, with its attention, parallelism and precision. It is called with a batch of three
    rows. Then it is called with each document alone, followed by padding: losses and gradients must be the same.
    Finally, it is called with the batch after changing one document at a time: in its last token, in all tokens, and to
    one repeated token. This must not change the losses of other documents, and these losses must have no gradient in
    the document's tokens. In format "tree", one document is a tree, whose nodes count as documents. `packer.check` and
    `packer check` test Hugging Face models without a step.

        def step(batch):                                     # no dropout, no update of the weights
            logits = model(batch["input_ids"], batch["position_ids"])
            return cross_entropy(logits[0, :-1], batch["labels"][0, 1:], reduction="none")

        print(packer.probe(step, max_len=4096))

    In a job of several processes, call it in all of them; torch.distributed gathers the losses. By default, all
    processes get the same batch, as in context and tensor parallelism. A step that computes only a part of the tokens
    returns the losses of that part. If ranks get different batches, pass the `rank` and `world_size` of `BatchSampler`.

    Args:
        step: function that takes a batch as `collate(format=format)` returns it, and returns an array or a tensor of
            any shape: the losses of all tokens that have a label, and 0 for others. Gradients are compared if present.
        format: batch format of the trainer.
        max_len: tokens in a row, at least 32. Documents have many lengths up to a whole row. Pass the length that you
            train with, because longer documents may leak.
        vocabulary: largest token id plus one, at least 32.
        tolerance: smallest difference that counts; rounding in bfloat16 needs about 1e-2.
        mtp: number of multi-token prediction heads, for which the batch gets `mtp_labels`, as in `collate`.
        tensors: "torch", or "numpy" for arrays.
        rank: number of this process's batch, from 0.
        world_size: number of batches in the job. Each document is changed separately, so a few batches suffice.

    Raises:
        PackerError: max_len or vocabulary is too small, ranks do not fit, the step fails in another process, returns
            no loss for a document, or NaN, or gives other losses for the same batch.
    """
    _check_arguments(step, max_len, vocabulary, tolerance)
    return StepProbe.of(
        batch_format(format, tensors=tensors, **({"mtp": mtp} if mtp else {})),
        max_len=max_len,
        ids=np.arange(1, vocabulary),
        tolerance=tolerance,
        has_tree=format == "tree",
        rank=rank,
        world_size=world_size,
    ).find_leaks(step)


def _check_arguments(step: object, max_len: int, vocabulary: int, tolerance: float) -> None:
    if not isinstance(tolerance, float | int) or not tolerance > 0:
        raise PackerError(f"tolerance is {tolerance!r}: it must be a number above 0")
    if not callable(step):
        raise PackerError(f"step is {step!r}: it must be a function of a batch, which returns losses")
    if as_whole("max_len", max_len) < SMALLEST or as_whole("vocabulary", vocabulary) < SMALLEST:
        raise PackerError(f"max_len is {max_len} and vocabulary {vocabulary}: give at least {SMALLEST} for both")


class ProbedDocument(NamedTuple):
    """A document of the probed rows, or a node of their tree."""

    places: NDArray[np.int64]
    """Places of its tokens in the concatenated rows."""

    parent: int
    """Number of the node that this node continues; -1 for none."""


class StepResult(NamedTuple):
    """What a step returned in all processes."""

    losses: NDArray[np.float64]
    """Losses of all processes, one process after the other."""

    processes: NDArray[np.int64]
    """Number of the process that returned each loss."""

    gradients: NDArray[np.float64] | None
    """What `_backward` returned, summed over the processes; None without a backward pass."""

    @property
    def scale(self) -> float:
        """Largest loss; 1 if all are 0."""
        return float(np.abs(self.losses).max()) or 1.0

    def changes(self, other: StepResult) -> NDArray[np.float64]:
        """Return the differences from other losses as shares of the largest loss; 1 if the numbers of losses differ."""
        return np.abs(other.losses - self.losses) / self.scale if len(other.losses) == len(self.losses) else np.array(1)


class DocumentComparison(NamedTuple):
    """The documents of a batch, compared with the same documents alone."""

    together: StepResult
    """Result for the batch."""

    documents: NDArray[np.int64]
    """Number of the document that each loss of `together` belongs to, counted through all batches; -1 for none."""

    differences: NDArray[np.float64]
    """Largest difference between a loss in the batch and alone, for each document."""

    gradients: float | None

    @property
    def largest(self) -> float:
        """Largest relative difference of losses or gradients."""
        return max(float(self.differences.max() / self.together.scale), self.gradients or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepProbe:
    """Documents in rows, and the batches that are made of them for the steps of all processes."""

    make: BatchFormat
    max_len: int
    documents: Sequence[ProbedDocument]

    letters: NDArray[np.int64]
    """Token ids that only this document has, for each document: `[documents, letters]`."""

    drawn: NDArray[np.int64]
    """For each token of this process's batch, the index of one of its document's letters."""

    batches: Sequence[int]
    """Numbers of the batches that the processes get; batches with different numbers have different tokens."""

    process: int
    tolerance: float

    @staticmethod
    def of(
        make: BatchFormat,
        *,
        max_len: int,
        ids: NDArray[np.int64],
        tolerance: float,
        shares: Sequence[Sequence[int]] = SHARES,
        has_tree: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> StepProbe:
        """Divide rows of `max_len` tokens by `shares`, and token ids among their documents; arguments as in `probe`."""
        documents = _make_documents(max_len, shares, has_tree=has_tree)
        count = len(documents)
        letters = ids[: len(ids) // count * count].reshape(-1, count).T
        drawn = np.random.default_rng(rank).integers(0, letters.shape[1], len(shares) * max_len)
        return StepProbe(
            make=make,
            max_len=max_len,
            documents=documents,
            letters=letters,
            drawn=drawn,
            batches=_batches(rank, world_size),
            process=0 if _distributed() is None else _distributed().get_rank(),
            tolerance=tolerance,
        )

    def run(
        self,
        step: Step,
        drawn: NDArray[np.int64] | None = None,
        *,
        trained: Sequence[int] | None = None,
        alone: int | None = None,
        weights: NDArray[np.float64] | float | None = None,
        probed: NDArray[np.int64] | None = None,
    ) -> StepResult:
        """Run a step on the rows, in which `trained` documents have labels, or on one document `alone`.

        With `weights` for the losses of this process, also run a backward pass; `probed` are then token ids.
        """
        owners = np.repeat(np.arange(len(self.documents)), [len(each.places) for each in self.documents])
        tokens = self.letters[owners, self.drawn if drawn is None else drawn]
        rows = self._rows(tokens, range(len(self.documents)) if trained is None else trained, alone)

        def run() -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
            found, gradients = step(self.make(rows)), None
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
        return StepResult(np.concatenate(losses), processes, np.sum(seen, axis=0) if seen else None)

    def run_alone(self, step: Step) -> list[StepResult]:
        """Run a step on each document alone."""
        return [self.run(step, alone=number, weights=1.0) for number in range(len(self.documents))]

    def compare(self, step: Step, alone: Sequence[StepResult]) -> DocumentComparison:
        """Run a step on the rows, and compare its losses and gradients with those of the documents alone.

        Losses are sorted before they are compared, because a process may get other tokens of a document when it is
        alone. If one side has fewer losses, the missing losses count as 0.
        """
        together = self.run(step, weights=1.0)
        if together.changes(self.run(step)).max() > self.tolerance:
            raise PackerError(
                "the step gives other losses for the same batch: leave out dropout and updates of weights"
            )
        documents, batches, count = self._owners(step, together), np.array(self.batches), len(self.documents)
        differences = np.zeros(count * (batches.max() + 1))
        for document in range(len(differences)):
            batch, number = divmod(document, count)
            single = alone[number]
            is_own = (single.losses != 0) & (batches[single.processes] == batch)
            both = [together.losses[documents == document], single.losses[is_own]]
            longer = max(map(len, both))
            in_batch, by_itself = (np.sort(np.pad(each, (0, longer - len(each)))) for each in both)
            differences[document] = np.abs(in_batch - by_itself).max()
        gradients = None if together.gradients is None else gradients_apart([together], alone)
        return DocumentComparison(together, documents, differences, gradients)

    def find_leaks(self, step: Step, alone: Sequence[StepResult] | None = None) -> StepLeaks:
        """Compare the documents of the rows with the documents alone, and change one document after the other.

        `alone` are results for each document alone, by default those of the same step.
        """
        compared = self.compare(step, self.run_alone(step) if alone is None else alone)
        together, documents, scale = compared.together, compared.documents, compared.together.scale
        moved, reaching, largest = dict[int, tuple[int, ...]](), dict[int, NDArray[np.float64] | None](), 0.0
        for number in range(len(compared.differences)):
            batch, changed = divmod(number, len(self.documents))
            is_own_batch = batch == self.batches[self.process]
            is_other = (documents >= 0) & ~np.isin(documents, self._continuing(number))
            weights = is_other[together.processes == self.process].astype(np.float64)
            probed = self.letters[changed] if is_own_batch else self.letters[:0]
            reaching[number] = self.run(step, weights=weights, probed=probed).gradients
            found = np.zeros(len(documents))
            for drawn in self.changes_of(changed):
                run = self.run(step, drawn if is_own_batch else None)
                found = np.maximum(found, np.where(is_other, together.changes(run), 0))
            moved[number] = tuple(np.unique(documents[found > self.tolerance]).tolist())
            largest = max(largest, float(found.max()))
        return StepLeaks(
            moved=moved,
            largest=largest,
            differs=tuple(np.flatnonzero(compared.differences > self.tolerance * scale).tolist()),
            difference=float(compared.differences.max() / scale),
            gradients=compared.gradients,
            reaching=None if reaching[0] is None else tuple(each for each, by in reaching.items() if np.any(by)),
            tolerance=self.tolerance,
            longest=max(len(each.places) for each in self.documents),
        )

    def changes_of(self, number: int) -> Iterator[NDArray[np.int64]]:
        """Yield `drawn` with a document changed: in all its tokens, in its last, and to one token that repeats."""
        places = self.documents[number].places
        another = (self.drawn[places] + 1) % self.letters.shape[1]
        for new in (another, np.append(self.drawn[places[:-1]], another[-1:]), np.zeros_like(another)):
            varied = self.drawn.copy()
            varied[places] = new
            yield varied

    def _owners(self, step: Step, together: StepResult) -> NDArray[np.int64]:
        """Return the documents of `DocumentComparison`.

        A loss is 0 if its document has no labels. Giving labels to half of the documents reveals one bit of each
        document's number.
        """
        count, batches = len(self.documents), np.array(self.batches)[together.processes]
        codes = np.zeros(len(batches), np.int64)
        for bit in range(count.bit_length()):
            losses = self.run(step, trained=[each for each in range(count) if (each + 1) >> bit & 1]).losses
            codes |= (losses != 0).astype(np.int64) << bit if len(losses) == len(codes) else 0
        found = np.where((codes > 0) & (codes <= count), batches * count + codes - 1, -1)
        for number in {*range(count * (max(self.batches) + 1))} - {*found.tolist()}:
            raise PackerError(
                f"the step returns {len(codes):,} losses, but none of document {number}: return one for every token, "
                "and 0 for tokens without a label"
            )
        return found

    def _path_to(self, number: int) -> list[int]:
        """Return the numbers of the nodes from the root of a tree to a node."""
        parent = self.documents[number].parent
        return [*(self._path_to(parent) if parent >= 0 else []), number]

    def _continuing(self, number: int) -> list[int]:
        """Return a document, counted through all batches, and the nodes of its tree below it."""
        count = len(self.documents)
        batch, top = divmod(number, count)
        return [batch * count + each for each in range(count) if top in self._path_to(each)]

    def _rows(self, tokens: NDArray[np.int64], trained: Sequence[int], alone: int | None) -> list[dict[str, Any]]:
        """Return rows like those of `PackedDataset`, given their concatenated tokens.

        With `alone`, there is a row of one document and padding; for a node of a tree, untrained nodes above it come
        first.
        """
        if alone is not None:
            path = np.concatenate([self.documents[each].places for each in self._path_to(alone)])
            ids, labels = np.zeros(self.max_len, np.int64), np.full(self.max_len, NO_LOSS)
            ids[: len(path)] = tokens[path]
            with_labels = slice(len(path) - len(self.documents[alone].places) + 1, len(path))
            labels[with_labels] = ids[with_labels]
            both = [length for length in (len(path), self.max_len - len(path)) if length]
            return [self._row(ids, labels, both, [0, PADDING][: len(both)])]
        labels, rows = np.full(len(tokens), NO_LOSS), list[dict[str, Any]]()
        for number in trained:
            places = self.documents[number].places[1:]
            labels[places] = tokens[places]
        roots = [each.places[0] for each in self.documents if each.parent < 0]
        for first in range(0, len(tokens), self.max_len):
            inside, end = slice(first, first + self.max_len), first + self.max_len
            lengths = np.diff([*(root for root in roots if first <= root < end), end])
            numbers = np.arange(len(lengths)) + 100 * len(rows)
            rows.append(self._row(tokens[inside], labels[inside], lengths, numbers, has_tree=not rows))
        return rows

    def _row(
        self,
        ids: NDArray[np.int64],
        labels: NDArray[np.int64],
        lengths: ArrayLike,
        numbers: ArrayLike,
        *,
        has_tree: bool = False,
    ) -> dict[str, Any]:
        """Return a row; if some documents are nodes, as a dataset of trees has it, with the tree itself `has_tree`."""
        row = {"labels": labels, "seq_lengths": np.array(lengths), "doc_ids": np.array(numbers)}
        row["doc_starts"] = np.zeros_like(row["seq_lengths"])
        if all(each.parent < 0 for each in self.documents):
            return row | {"input_ids": ids}
        trees = np.fromiter(([] for _ in row["doc_ids"]), dtype=object, count=len(row["doc_ids"]))
        if has_tree:
            nodes = enumerate(self.documents[: len(TREE_PARENTS)])
            trees[0] = [value for answer, node in nodes for value in (len(node.places), node.parent, answer)]
        return row | {TREE_INPUT_IDS: ids, TREE: trees}


def gradients_apart(found: Sequence[StepResult], expected: Sequence[StepResult]) -> float:
    """Return the norm of the difference of two sums of gradients, divided by the norm of the second."""
    first, second = (
        sum((each.gradients for each in results if each.gradients is not None), np.zeros(DIRECTIONS))
        for results in (found, expected)
    )
    return float(np.linalg.norm(first - second) / (np.linalg.norm(second) or 1))


def _make_documents(max_len: int, shares: Sequence[Sequence[int]], *, has_tree: bool) -> list[ProbedDocument]:
    """Return the documents of rows of `max_len` tokens; if the first is a tree, its nodes instead."""
    found = []
    for row, lengths in enumerate(shares):
        parents = [-1] * len(lengths)
        if has_tree and not row:
            nodes = [share * lengths[0] // 8 for share in TREE_SHARES]
            lengths, parents = (*nodes, *lengths[1:]), [*TREE_PARENTS, *parents[1:]]
        bounds = np.cumsum([0, *lengths]) * max_len // sum(lengths) + row * max_len
        found += [
            ProbedDocument(np.arange(*each[:2]), each[2]) for each in zip(bounds, bounds[1:], parents, strict=False)
        ]
    return found


def _batches(rank: int, world_size: int) -> list[int]:
    """Return the number of the batch of every process; raise PackerError unless they are 0 to world_size - 1."""
    found = _gathered(lambda: rank)
    if {*found} != {*range(world_size)}:
        raise PackerError(
            f"the processes of this job get the batches {sorted({*found})} of {world_size}: pass rank and world_size "
            "as to BatchSampler"
        )
    return found


def _backward(
    losses: Any, weights: NDArray[np.float64], probed: NDArray[np.int64] | None
) -> NDArray[np.float64] | None:
    """Return the projected gradients of a weighted sum of losses, or the largest gradients of tokens in `probed`.

    The latter are None if no embedding is called visibly. `parameter.grad` stays as it is.
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
    """Return products of a gradient with random vectors of 1 and -1. Gradients of equal size get the same vectors."""
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
    except Exception as error:  # other processes wait for this one
        failure = error
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, (own, failure and repr(failure)))
    for process, (_, message) in enumerate(found):
        if message:
            raise PackerError(f"the step failed in process {process} of the job: {message}") from failure
    return [each for each, _ in found]
