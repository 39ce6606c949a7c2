"""A batch sampler for distributed training: the same steps on any number of ranks, resumable at the exact row."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.column_names import PADDING, RECORD_IDS, SOURCE
from packer.errors import PackerError, as_whole
from packer.loader.dataset import EpochList, PackedDataset, segments_in
from packer.loader.row_order import LaneOrder, check_range, deal_by_cost, row_order, slot_sizes, steps_of_like_work

DEFAULT_LANES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerState:
    """Position in an epoch, and the settings that determine it; `BatchSampler.state_dict` returns it as a dict."""

    VERSION: ClassVar[int] = 1
    """Version of the fields; states of other versions are refused."""

    # Settings that determine which rows precede the position: the resuming sampler must have the same.
    dataset: str
    seed: int | None
    global_batch: int
    lanes: int | None
    window: int | None
    balance: int | None

    # The position, the same on every rank.
    epoch: int

    step: int
    """Number of finished optimizer steps of the epoch."""

    turn: int
    """Number of batches of the next step that each rank has trained on."""

    rows_done: int
    """Number of rows of the next step that all ranks together have trained on."""

    # How a global batch is divided among ranks. If the position is within a step, the resuming sampler must
    # also have a batch that ends there.
    rows: int
    world_size: int
    is_balanced: bool

    drop_last: bool
    """Whether epochs leave out an incomplete last step; the resuming sampler need not."""

    used: Mapping[str, Any] | None
    """`PackedDataset.used` at the beginning or end of an epoch, for a later mixture; None in mid-epoch."""

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> SamplerState:
        """Return the state from the result of `to_dict`.

        Raises:
            PackerError: the state has another version, lacks a field, or has a position that is not a count.
        """
        if not isinstance(state, Mapping):
            raise PackerError(f"the sampler's state is {state!r:.50}: load one that state_dict returned")
        if state.get("version") != cls.VERSION:
            raise PackerError(
                f"the sampler's state has version {state.get('version')}, this package reads version {cls.VERSION}: "
                "resume with the version of packer that saved it"
            )
        names = [field.name for field in fields(cls)]
        for name in names:
            if name not in state:
                raise PackerError(f"the sampler's state has no {name}: load one that state_dict returned")
        for name in ("epoch", "step", "turn", "rows_done", "rows", "world_size"):
            check_range(f"{name} of the sampler's state", state[name])
        return cls(**{name: state[name] for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, which torch and torchdata can save."""
        return {"version": self.VERSION, **asdict(self)}

    def refuse_other_rows(self, own: SamplerState) -> None:
        """Raise a PackerError if this state belongs to other rows than `own`, the state of the resuming sampler."""
        for name in ("dataset", "seed", "global_batch", "lanes", "window", "balance"):
            found, expected = getattr(self, name), getattr(own, name)
            if found != expected:
                raise PackerError(
                    f"the sampler's state has {name} {found}, this sampler {expected}: resume with the same {name}"
                )


class TrainedDocument(NamedTuple):
    """A document, or a part of one, that a step trains on.

    It has the number of its row, the fields of a `Segment`, its file, the index of its record in the file (None if
    unknown, see `Manifest.place`), and the path of the packed dataset.
    """

    row: int
    doc_id: int
    start: int
    length: int
    file: str
    record: int | None
    packed: str


class BatchSampler:
    """Yields the batches of one rank as lists of row numbers; a `batch_sampler` for DataLoader.

        sampler = BatchSampler(dataset, global_batch=32, rows=4, rank=rank, world_size=2)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate, num_workers=2)

    An optimizer step takes a global batch: `global_batch` consecutive rows of the epoch's order, which depends only on
    seed and epoch. These rows are divided into batches of `rows`, and the batches among the ranks: with 2 ranks and the
    numbers above, each rank gets `accumulation` = 4 batches per step. A step therefore sees the same rows for any
    number of ranks and workers. The remaining rows of an epoch form a last step with the same number of batches. Some
    of these are smaller or empty, so that every row is seen once and all ranks have equally many batches. (For an empty
    batch, `PackedDataset` returns a row of padding, which adds nothing to the loss.)

    By default, the rows of the whole dataset are shuffled, which takes 40 bytes of memory per row. With `lanes`, shards
    are dealt to this many lanes, every step takes equally many rows from each lane, and each rank reads only the shards
    of its own lanes. In a lane, the shards of an epoch come in random order, and rows are shuffled within a window of
    some shards. Memory does not grow with the number of rows. Steps are the same for any number of ranks that divides
    `lanes`. Datasets in object storage are always read in lanes.

    Each pass over the sampler is the next epoch, unless `set_epoch` was called. An interrupted pass starts over, unless
    `load_state_dict` resumes it. A state from the end of an epoch begins the next epoch. If `set_epoch` is then called
    with the finished epoch, the first pass has no batches.

    Do not pass the DataLoader to accelerate's `prepare`: accelerate would divide the batches among the ranks again and
    count epochs itself, so a prepared loader is an error. In the Hugging Face Trainer, return the loader from
    `get_train_dataloader`.

    Args:
        dataset: dataset from `load`.
        rows: rows per batch; by default all rows that a rank has in a step.
        rank: number of this process, from 0.
        world_size: number of processes.
        seed: seed of the order of rows, 0 to 2**64 - 1; None for the order on disk.
        drop_last: whether to leave out the rows at the end of an epoch that do not fill a global batch.
        balance: number of consecutive steps whose rows are redistributed, so that the rows of a step take equally long
            to train on and ranks wait less for each other. Work is the sum of squared segment lengths, to which the
            cost of attention is proportional. With 1, rows stay in their step, and only its batches are balanced.
            Larger values help if a rank has few rows in a step, but they group similar documents in a step; a small
            model reached a higher loss with them. None, the default, does not balance. Not allowed with lanes.
        lanes: number of lanes, a multiple of world_size that divides the global batch; None shuffles the whole dataset.
            The default for a dataset in object storage is the largest divisor of the global batch up to 16.
        window: number of shards of a lane whose rows are shuffled together.

    Raises:
        PackerError: a number is not an integer or out of range, global_batch is not a multiple of rows * world_size or
            of lanes, or lanes is not a multiple of world_size.
    """

    def __init__(
        self,
        dataset: PackedDataset,
        *,
        global_batch: int,
        rows: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = 0,
        drop_last: bool = False,
        balance: int | None = None,
        lanes: int | None = None,
        window: int = 2,
    ) -> None:
        global_batch, rank = as_whole("global_batch", global_batch), as_whole("rank", rank)
        world_size = as_whole("world_size", world_size)
        if world_size < 1 or not 0 <= rank < world_size:
            raise PackerError(f"rank is {rank} of {world_size}: it must be from 0 to world_size - 1")
        rows = max(global_batch // world_size, 1) if rows is None else as_whole("rows", rows)
        if rows < 1 or global_batch < 1 or global_batch % (rows * world_size):
            raise PackerError(
                f"global_batch is {global_batch}, for {world_size} ranks and batches of {rows} rows: "
                "it must be a multiple of their product"
            )
        if balance is not None and (balance := as_whole("balance", balance)) < 1:
            raise PackerError(f"balance is {balance}: choose 1 to balance each step, more to balance several together")
        if seed is not None:
            check_range("seed", seed)
            seed = int(seed)
        lanes, window = None if lanes is None else as_whole("lanes", lanes), as_whole("window", window, least=1)
        if lanes is None and dataset.is_remote:
            lanes = next(divisor for divisor in range(DEFAULT_LANES, 0, -1) if global_batch % divisor == 0)
        if lanes is not None:
            _check_lanes(lanes, global_batch=global_batch, world_size=world_size, balance=balance)
        self.dataset = dataset
        self.global_batch = global_batch
        self.rows = rows
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0
        self.balance = balance
        self.lanes = lanes
        self.window = window
        self.drop_last = drop_last
        self._epoch_rows = len(dataset) - (len(dataset) % global_batch if drop_last else 0)
        self._yielded = 0  # number of batches of this epoch that were yielded on this rank
        self._resumed = False
        self._told: int | None = None  # epoch of the last `set_epoch`, if no pass has begun since
        self._empty_passes = 0  # number of coming passes without batches, because their epoch is finished

    @classmethod
    def of_state(cls, dataset: PackedDataset, state: Mapping[str, Any]) -> BatchSampler:
        """Return a sampler with the settings of a state, for one process. Raises a PackerError as `load_state_dict`."""
        saved = SamplerState.from_dict(state)
        options = {name: getattr(saved, name) for name in ("global_batch", "seed", "drop_last", "balance", "lanes")}
        sampler = cls(dataset, **options, window=2 if saved.window is None else saved.window)
        saved.refuse_other_rows(sampler._state(0))
        return sampler

    @property
    def steps(self) -> int:
        """Number of optimizer steps per epoch, the same on every rank."""
        return -(-self._epoch_rows // self.global_batch)

    @property
    def accumulation(self) -> int:
        """Number of batches per optimizer step on this rank."""
        return self.global_batch // (self.rows * self.world_size)

    def __len__(self) -> int:
        return self.steps * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        # This code runs when the first batch is requested, not in iter(): loaders call iter() more than once, and may
        # call set_epoch after it.
        self._refuse_prepared_loader()
        if self._empty_passes:
            self._empty_passes -= 1
            return
        self._told = None
        if self._yielded == len(self) and len(self):
            self.epoch += 1
            self._yielded = 0
        elif not self._resumed:
            self._yielded = 0
        self._resumed = False
        begun, first = divmod(self._yielded, self.accumulation)
        steps = self._steps_in_order(begun) if self.lanes is None else self._steps_in_lanes(begun)
        for step, (batches, shards) in enumerate(steps, begun):
            for turn in range(first if step == begun else 0, self.accumulation):
                self._yielded = step * self.accumulation + turn + 1
                numbers = EpochList(batches[turn].tolist())
                numbers.epoch, numbers.shards = self.epoch, shards
                yield numbers

    def set_epoch(self, epoch: int) -> None:
        """Start the next pass at the first row of an epoch, or where `load_state_dict` resumed the same epoch.

        If the loaded state is from the end of that epoch, the next pass has no batches.

        Raises:
            PackerError: the loaded state is in the middle of another epoch, or accelerate has prepared the loader.
        """
        self._refuse_prepared_loader()
        if self._resumed and epoch == self.epoch:
            self._empty_passes = int(self._yielded == len(self))
            return
        if self._resumed and not (epoch == self.epoch + 1 and self._yielded == len(self)):
            raise PackerError(
                f"the loaded state resumes epoch {self.epoch} at batch {self._yielded} of {len(self)}, but set_epoch "
                f"was called with {epoch}: start with {self.epoch}"
            )
        check_range("epoch", epoch)
        self.epoch, self._yielded, self._resumed = epoch, 0, False
        self._told, self._empty_passes = epoch, 0

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position in this epoch as plain values. They are the same on every rank after the same batch.

        Args:
            batches: number of batches of this epoch that this rank trained on; by default, all that were yielded. Pass
                it if batches are read ahead, as by a DataLoader with workers. torchdata's StatefulDataLoader saves the
                right state automatically.

        Raises:
            PackerError: the epoch has fewer batches.
        """
        done = self._yielded if batches is None else batches
        if not 0 <= done <= len(self):
            raise PackerError(
                f"batches is {done}, and an epoch has {len(self)} on this rank: count the batches of this epoch only"
            )
        return self._state(done).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the row after the last one of a state. The number of ranks may differ.

        A state from the end of an optimizer step fits any number of ranks (with lanes: any that divides `lanes`). In
        the middle of a step, the remaining rows of the global batch must divide into whole batches for these ranks.

        Raises:
            PackerError: the state has another version, dataset, seed, global batch, lanes or window, or its position is
                not the end of a batch of this sampler.
        """
        saved, own = SamplerState.from_dict(state), self._state(0)
        saved.refuse_other_rows(own)
        step, turn = saved.step, saved.turn
        batches = saved.global_batch // max(1, saved.rows * saved.world_size)
        if step > self.steps + 1 or turn >= max(1, batches):  # with drop_last, an epoch has a step less
            raise PackerError(
                f"the sampler's state is at step {step}, batch {turn}, and an epoch has {self.steps} steps: load one "
                "that state_dict returned"
            )
        if step >= self.steps:  # state from the end of an epoch
            step, turn = self.steps, 0
        elif turn and (saved.rows, saved.world_size, saved.is_balanced) != (own.rows, own.world_size, own.is_balanced):
            turns = self._turns(step).tolist()
            is_cut = self.lanes is not None and (saved.rows_done % self.lanes or turns[-1] < self.global_batch)
            if own.is_balanced or saved.is_balanced or is_cut or saved.rows_done not in turns:
                raise PackerError(
                    f"the sampler's state ends {saved.rows_done} rows into a global batch of {self.global_batch}, "
                    f"whose remaining rows cannot be divided into batches of {self.rows} rows for {self.world_size} "
                    "ranks: save the state at the end of a step"
                )
            turn = turns.index(saved.rows_done)
        self.epoch, self._yielded, self._resumed = saved.epoch, step * self.accumulation + turn, True
        # torchdata's StatefulDataLoader loads a state after `set_epoch`, and may begin two passes instead of one.
        is_over = self._yielded == len(self) and self._told == self.epoch
        self._empty_passes = 2 if is_over else 0

    def _refuse_prepared_loader(self) -> None:
        """Raise a PackerError if this pass runs in a loader that accelerate has prepared."""
        state = sys.modules.get("accelerate.state")
        reader = None if state is None else state.GradientState().active_dataloader
        while (reader := getattr(reader, "batch_sampler", None)) is not None:  # accelerate wraps batch samplers
            if reader is self:
                raise PackerError(
                    "accelerate has prepared the DataLoader, and would divide its batches among the ranks again: leave "
                    "it out of prepare(), and give rank and world_size to packer.BatchSampler"
                )

    def _state(self, done: int) -> SamplerState:
        """Return the state after `done` batches of this epoch."""
        step, turn = divmod(done, self.accumulation)
        return SamplerState(
            dataset=self.dataset.fingerprint,
            seed=self.seed,
            global_batch=self.global_batch,
            lanes=self.lanes,
            window=None if self.lanes is None else self.window,
            balance=None if self.balance == 1 else self.balance,
            epoch=self.epoch,
            step=step,
            turn=turn,
            rows_done=int(self._turns(step)[turn]),
            rows=self.rows,
            world_size=self.world_size,
            is_balanced=self.balance is not None,
            drop_last=self.drop_last,
            used=None if 0 < done < len(self) else self.dataset.used(self.epoch + (done > 0)),
        )

    def rows_of_step(self, step: int, *, epoch: int | None = None) -> tuple[int, int, list[int]]:
        """Return (epoch, index of a step in it, numbers of the rows that the step trains on, over all ranks).

        The position of the sampler does not matter.

        Args:
            step: number of the optimizer step. The first is 1, as trainers log it.
            epoch: epoch in which steps are counted; by default, they are counted from the start of training, epoch 0.

        Raises:
            PackerError: there is no such step.
        """
        if as_whole("step", step) < 1 or not self.steps or (epoch is not None and step > self.steps):
            raise PackerError(f"step is {step}: the first step is 1, and an epoch has {self.steps:,}")
        passed, before = divmod(step - 1, self.steps)
        epoch = passed if epoch is None else epoch
        check_range("epoch", epoch)
        if self.lanes is None:
            rows, _ = self._divided(self._order(epoch), before)
        else:
            rows = replace(self._lane_order, rank=0, world_size=1).rows_of_step(epoch, before)
        return epoch, before, rows.tolist()

    def documents(self, step: int, *, epoch: int | None = None) -> list[TrainedDocument]:
        """Return the documents that a step trains on, over all ranks: after a spike of the loss, look at these.

        Arguments and errors are those of `rows_of_step`. `packer.show` prints the documents with their text.
        """
        found = []
        *_, numbers = self.rows_of_step(step, epoch=epoch)
        for number, row in zip(numbers, self.dataset.read(numbers), strict=True):
            packed = self.dataset.datasets[int(row.get(SOURCE, 0))]
            records = row[RECORD_IDS].tolist() if RECORD_IDS in row else repeat(None)
            for segment, record in zip(segments_in(row), records, strict=False):
                place = packed.manifest.place(segment.doc_id, record)
                found.append(TrainedDocument(number, *segment[:3], *place, str(packed.path)))
        return found

    def imbalance(self) -> float:
        """Return the time of attention in this epoch as a multiple of the time with perfectly balanced ranks.

        Ranks wait for each other after every batch. The result is therefore the sum over batches of the largest work of
        any rank, divided by the sum of the mean work. Work is the sum of squared segment lengths.

        Raises:
            PackerError: the rows are read in lanes.
        """
        if self.lanes is not None:
            raise PackerError(
                f"lanes is {self.lanes}: the imbalance is known only for rows that are shuffled without lanes"
            )
        order = self._order(self.epoch)
        work = np.zeros((self.steps, self.accumulation, self.world_size), np.int64)
        for step in range(self.steps):
            rows, bounds = self._divided(order, step)
            work[step].flat = np.diff(np.cumsum(np.append(0, self._costs_of(rows)))[bounds])
        mean = work.mean(axis=2).sum()
        return float(work.max(axis=2).sum() / mean) if mean else 1.0

    # A step has `accumulation` turns; in each turn, every rank processes one batch. The rows of a step are divided into
    # slots, one per turn and rank: [turn 0 rank 0, turn 0 rank 1, ..., turn 1 rank 0, ...].

    def _steps_in_order(self, begun: int) -> Iterator[tuple[list[NDArray[np.int64]], None]]:
        """Yield this rank's batches of each step; rows are shuffled as a whole."""
        order = self._order(self.epoch)
        for step in range(begun, self.steps):
            rows, bounds = self._divided(order, step)
            own = np.arange(self.accumulation) * self.world_size + self.rank
            if self.balance is not None:
                # The balanced slots of a turn are sorted by cost, so every other turn goes through the ranks backwards.
                own[1::2] += self.world_size - 1 - 2 * self.rank
            yield [rows[bounds[slot] : bounds[slot + 1]] for slot in own], None

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Return the numbers of the rows of an epoch, in order."""
        order = row_order(len(self.dataset), seed=self.seed, epoch=epoch)
        if first := self.dataset.first_number(epoch):
            order = order + first
        if self.balance is not None and self.balance > 1:
            order = steps_of_like_work(order, self._costs_of(order), size=self.global_batch, window=self.balance)
        return order

    def _divided(self, order: NDArray[np.int64], step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows of a step, slot by slot; index of each slot's first row, plus the end)."""
        rows = order[step * self.global_batch : (step + 1) * self.global_batch]
        sizes = slot_sizes(len(rows), self.global_batch // self.rows)
        if self.balance is not None:
            rows = rows[deal_by_cost(self._costs_of(rows), sizes)]
        return rows, np.concatenate([[0], np.cumsum(sizes)])

    def _steps_in_lanes(self, begun: int) -> Iterator[tuple[list[NDArray[np.int64]], tuple[int, ...] | None]]:
        """Yield (this rank's batches of each step, shards of the step's windows); None as shards for local datasets."""
        epoch = self.epoch
        for step in range(begun, self.steps):
            shards = None
            if self.dataset.is_remote:
                shards, upcoming = self._lane_order.shards_of_step(epoch, step)
                self.dataset.fetch_ahead(shards, upcoming)
            rows = self._lane_order.rows_of_step(epoch, step)
            yield np.array_split(rows, self.accumulation), shards

    @cached_property
    def _lane_order(self) -> LaneOrder:
        return LaneOrder(
            shard_ranges=self.dataset.shard_ranges,
            lanes=self.lanes or 1,
            window=self.window,
            seed=self.seed,
            global_batch=self.global_batch,
            rank=self.rank,
            world_size=self.world_size,
        )

    def _turns(self, step: int) -> NDArray[np.int64]:
        """Return how many rows of a step all ranks together have processed before each turn and after the last."""
        rows = min(max(self._epoch_rows - step * self.global_batch, 0), self.global_batch)
        if self.lanes is None:
            sizes = slot_sizes(rows, self.global_batch // self.rows).reshape(self.accumulation, self.world_size)
        else:
            of_ranks = np.diff(np.arange(self.world_size + 1) * rows // self.world_size)
            sizes = np.stack([slot_sizes(own, self.accumulation) for own in of_ranks.tolist()], axis=1)
        return np.concatenate([[0], sizes.sum(axis=1).cumsum()])

    def _costs_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._costs[self.dataset.stored_rows(rows)]

    @cached_property
    def _costs(self) -> NDArray[np.int64]:
        return attention_costs(self.dataset)


def attention_costs(dataset: PackedDataset) -> NDArray[np.int64]:
    """Return the sum of squared segment lengths of each stored row, shape (rows,); padding costs nothing.

    The cost of attention within segments is proportional to this sum: the second term of a batch's cost in Hierarchical
    Balance Packing (arXiv 2503.07680). Reads the segment boundaries of all rows once, and no tokens.
    """
    costs = [np.zeros(0, np.int64)]
    for offsets, seq_lengths, doc_ids in dataset.segments():
        squares = np.where(doc_ids == PADDING, 0, seq_lengths.astype(np.int64) ** 2)
        sums = np.concatenate([[0], np.cumsum(squares)])
        costs.append(sums[offsets[1:]] - sums[offsets[:-1]])
    return np.concatenate(costs)


def _check_lanes(lanes: int, *, global_batch: int, world_size: int, balance: int | None) -> None:
    if lanes < 1 or global_batch % lanes:
        raise PackerError(f"lanes is {lanes}, global_batch {global_batch}: choose a divisor of the global batch")
    if lanes % world_size:
        raise PackerError(
            f"lanes is {lanes}, for {world_size} ranks: choose a multiple of the number of ranks that divides "
            f"global_batch, {global_batch}"
        )
    if balance is not None:
        raise PackerError(
            f"balance is {balance}, and lanes is {lanes}: balancing moves rows between ranks, and in lanes each rank "
            "reads its own; leave balance out"
        )
