"""Which rows each rank trains on and when: the same for any number of ranks, and resumed to the exact row."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.dataset import OfEpoch, PackedDataset
from packer.loader.order import attention_costs, deal_by_cost, row_order, slot_sizes

STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Imbalance:
    """How much longer attention takes than if every rank had the same work at every moment; 1 is even.

    Ranks wait for each other after every batch: the sum over batches of the most work that a rank has, over the sum
    of the mean. Work is the sum of squared segment lengths.
    """

    in_order: float
    """Rows dealt to the ranks as they come."""

    by_attention: float
    """Rows dealt with `balance="attention"`."""

    def __str__(self) -> str:
        """Say both, to print when training begins."""
        return f"attention takes {self.in_order:.3f}x of an even share, {self.by_attention:.3f}x dealt by attention"


class BatchSampler:
    """Hands out the batches of one rank as lists of row numbers; a `batch_sampler` for DataLoader.

        sampler = BatchSampler(dataset, global_batch=32, rows=4, rank=rank, world_size=2)
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=packer.collate, num_workers=2)

    An optimizer step takes a global batch of rows: `global_batch` consecutive rows of the epoch's order, which depends
    on seed and epoch alone. They are dealt into batches of `rows`, and these to the ranks: with 2 ranks and the
    numbers above, each rank gets `accumulation` = 4 batches per step. So the same rows make the same step on any
    number of ranks, with any number of workers. The rows that are left at the end of an epoch make a last step with
    as many batches, which are smaller or empty (`PackedDataset` makes of an empty one a row of padding alone, which
    trains nothing), so that every row is seen once and all ranks have the same number of batches.

    A pass over the sampler is an epoch, and the next pass the next epoch, unless `set_epoch` says otherwise. A pass
    that was broken off begins again, unless `load_state_dict` resumes it.

    accelerate's `prepare` shares batches out among ranks by itself, batch i to rank i modulo their number: leave rank
    and world_size at 0 and 1 there, and make the batches of a step a multiple of the ranks. Epochs are counted here,
    not by the prepared loader; its `set_epoch` is heeded. `dispatch_batches` is refused. In the Hugging Face
    Trainer, return the DataLoader from `get_train_dataloader` with rank and world_size, and do not prepare it: over
    several ranks a prepared one loses the epoch when the Trainer resumes (transformers 5.23, accelerate 1.15).

    Args:
        dataset: from `load`.
        global_batch: rows of an optimizer step, over all ranks and accumulated batches.
        rows: rows of a batch; by default the rank's whole share of a step.
        rank: this process, from 0.
        world_size: number of processes.
        seed: of the order of rows; None for the order on disk.
        epoch: the first one; another epoch is another order under the same seed.
        drop_last: leave out the rows that do not fill a global batch.
        balance: "attention" deals the rows of a global batch so that the batches' sums of squared segment lengths
            are even. Rows never move to another global batch: that would change what a step sees (WLB-LLM, OSDI
            2025, measured 1.6% more loss when reordering over 8 of them).

    Raises:
        PackerError: a number is out of its range, or the global batch is not a multiple of rows * world_size.
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
        epoch: int = 0,
        drop_last: bool = False,
        balance: Literal["attention"] | None = None,
    ) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise PackerError(f"rank is {rank} of {world_size}: ranks count from 0 and are fewer than world_size")
        rows = max(global_batch // world_size, 1) if rows is None else rows
        if rows < 1 or global_batch < 1 or global_batch % (rows * world_size):
            raise PackerError(
                f"global_batch is {global_batch}, for {world_size} ranks and batches of {rows} rows: "
                "make it a multiple of their product"
            )
        if balance not in (None, "attention"):
            raise PackerError(f"balance is {balance!r}: choose attention, or None for rows as they come")
        row_order(0, seed=seed, epoch=epoch)  # refuses what is out of range
        self.dataset = dataset
        self.global_batch = global_batch
        self.rows = rows
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = epoch
        self.balance = balance
        left_out = len(dataset) % global_batch if drop_last else 0
        self._epoch_rows = len(dataset) - left_out
        self._handed = 0  # batches of this epoch that this rank was given
        self._resumed = False
        self._costs: NDArray[np.int64] | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch, the same on every rank."""
        return -(-self._epoch_rows // self.global_batch)

    @property
    def accumulation(self) -> int:
        """Batches of this rank in an optimizer step."""
        return self.global_batch // (self.rows * self.world_size)

    @property
    def sampler(self) -> BatchSampler:
        """Itself: accelerate looks for `set_epoch` at a batch sampler's sampler."""
        return self

    def __len__(self) -> int:
        return self.steps * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        # nothing happens before the first batch is asked for: loaders call iter() more than once, and set_epoch after
        if self._handed == len(self) and len(self):
            self.epoch += 1
            self._handed = 0
        elif not self._resumed:
            self._handed = 0
        self._resumed = False
        order = row_order(len(self.dataset), seed=self.seed, epoch=self.epoch)
        begun, first = divmod(self._handed, self.accumulation)
        for step in range(begun, self.steps):
            rows = self._rows_of_step(order, step)
            slots = self._slots_in_order(rows) if self.balance is None else self._slots_by_attention(rows)
            for turn in range(first if step == begun else 0, self.accumulation):
                self._handed = step * self.accumulation + turn + 1
                # dealt by cost the first of a turn is its heaviest: every other turn it goes to the last rank
                back = self.balance is not None and turn % 2
                slot = self.world_size - 1 - self.rank if back else self.rank
                numbers = OfEpoch(slots[turn * self.world_size + slot].tolist())
                numbers.epoch = self.epoch
                yield numbers

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the first row of an epoch, or where `load_state_dict` resumed this very epoch.

        Raises:
            PackerError: the state that was loaded resumes the middle of another epoch, or accelerate's loader
                dispatches batches.
        """
        if _accelerate_begins_a_pass() or (self._resumed and epoch == self.epoch):
            return
        if self._resumed and not (epoch == self.epoch + 1 and self._handed == len(self)):
            raise PackerError(
                f"the state that was loaded resumes epoch {self.epoch} at batch {self._handed} of {len(self)}, "
                f"set_epoch asks for epoch {epoch}: begin with {self.epoch}"
            )
        row_order(0, seed=self.seed, epoch=epoch)  # refuses what is out of range
        self.epoch, self._handed, self._resumed = epoch, 0, False

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return where this epoch stands, as plain values; the same on every rank at the same batch.

        Args:
            batches: batches of this epoch that this rank trained on; by default those that were handed out. Tell
                it where they are read ahead: by a DataLoader with workers, or accelerate's. torchdata's
                StatefulDataLoader saves the right state by itself.
        """
        step, turn = divmod(self._handed if batches is None else batches, self.accumulation)
        return {
            "version": STATE_VERSION,
            **self._identity(),
            "epoch": self.epoch,
            "step": step,
            "turn": turn,
            "rows_done": int(self._turns(step)[turn]),
            "dealt": self._dealing(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the row after the last one of a state, also on another number of ranks.

        In the middle of a global batch the ranks must be able to share what is left of it in whole batches; at the
        end of an optimizer step, where checkpoints are made, they always are.

        Raises:
            PackerError: the state is of another version, dataset, seed or global batch, or stops where this sampler
                has no end of a batch.
        """
        if state.get("version") != STATE_VERSION:
            raise PackerError(
                f"the sampler's state has version {state.get('version')}, this package reads {STATE_VERSION}: "
                "resume with the version of packer that saved it"
            )
        for name, value in self._identity().items():
            if state[name] != value:
                raise PackerError(
                    f"the sampler's state is of {name} {state[name]}, this one has {value}: resume with the same"
                )
        step, turn = state["step"], state["turn"]
        if step >= self.steps:  # the epoch is over
            step, turn = self.steps, 0
        elif turn and state["dealt"] != self._dealing():
            turns = self._turns(step).tolist()
            if self.balance or state["dealt"]["balance"] or state["rows_done"] not in turns:
                raise PackerError(
                    f"the sampler's state stops {state['rows_done']} rows into a global batch of {self.global_batch}, "
                    f"which {self.world_size} ranks with batches of {self.rows} rows do not: save at the end of a step"
                )
            turn = turns.index(state["rows_done"])
        self.epoch, self._handed, self._resumed = state["epoch"], step * self.accumulation + turn, True

    def _identity(self) -> dict[str, Any]:
        """What must not change for a state to mean the same rows."""
        return {"dataset": self.dataset.fingerprint, "seed": self.seed, "global_batch": self.global_batch}

    def _dealing(self) -> dict[str, Any]:
        """What must not change, or only so that turns still meet, within a global batch."""
        return {"rows": self.rows, "world_size": self.world_size, "balance": self.balance}

    def imbalance(self) -> Imbalance:
        """Measure how unevenly attention falls on the ranks in this epoch, dealt either way."""
        order = row_order(len(self.dataset), seed=self.seed, epoch=self.epoch)
        costs = self._attention_costs()
        work = np.zeros((2, self.steps, self.accumulation, self.world_size), np.int64)
        for step in range(self.steps):
            rows = self._rows_of_step(order, step)
            for way, slots in enumerate((self._slots_in_order(rows), self._slots_by_attention(rows))):
                work[way, step].flat = [costs[slot].sum() for slot in slots]
        most, mean = work.max(axis=3).sum(axis=(1, 2)), work.mean(axis=3).sum(axis=(1, 2))
        in_order, by_attention = np.divide(most, mean, out=np.ones(2), where=mean > 0).tolist()
        return Imbalance(in_order=in_order, by_attention=by_attention)

    # a step's rows are dealt into slots, one for each turn and rank; those of a turn stand side by side

    def _rows_of_step(self, order: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        return order[step * self.global_batch : (step + 1) * self.global_batch]

    def _slots_in_order(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        ends = [0, *self._sizes(len(rows)).cumsum().tolist()]
        return [rows[first:last] for first, last in pairwise(ends)]

    def _slots_by_attention(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [rows[slot] for slot in deal_by_cost(self._attention_costs()[rows], self._sizes(len(rows)))]

    def _sizes(self, rows: int) -> NDArray[np.int64]:
        return slot_sizes(rows, self.global_batch // self.rows)

    def _turns(self, step: int) -> NDArray[np.int64]:
        """Rows of a step that all ranks have been given before each turn, and after the last."""
        rows = min(max(self._epoch_rows - step * self.global_batch, 0), self.global_batch)
        sizes = self._sizes(rows).reshape(self.accumulation, self.world_size)
        return np.concatenate([[0], sizes.sum(axis=1).cumsum()])

    def _attention_costs(self) -> NDArray[np.int64]:
        if self._costs is None:
            self._costs = attention_costs(self.dataset)
        return self._costs


def _accelerate_begins_a_pass() -> bool:
    """Tell whether `set_epoch` is called by `iter()` of a prepared loader, and not by the training loop.

    accelerate calls it with a number of its own, which does not go up after a pass that ends with the last batch
    instead of a StopIteration: `[next(batches) for _ in range(len(loader))]` would repeat one epoch for ever. It also
    begins at 0 whatever epoch the sampler is at. Only the caller's name tells the two calls apart.

    Raises:
        PackerError: the loader dispatches batches.
    """
    caller = sys._getframe(2)  # of set_epoch
    if caller.f_globals.get("__name__") != "accelerate.data_loader":
        return False
    if type(caller.f_locals.get("self")).__name__ == "DataLoaderDispatcher":
        raise PackerError(
            "accelerate's dispatch_batches=True joins and cuts batches by rows, and a packed batch is one row: leave "
            "dispatch_batches out, and every process reads its own batches"
        )
    return caller.f_back is not None and caller.f_back.f_code.co_name == "__iter__"
