"""One of two processes of megatron-core with context parallelism, for tests/test_megatron.py."""

import sys
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as distributed
from torch.nn.functional import cross_entropy

from tests.helpers.megatron_models import packed_seq_params, reduced, tiny_gpt, transformer_engine_torch
from tests.helpers.torch_jobs import job

PAGE = Path(__file__).parents[2] / "docs/how-to/trainers/megatron.md"


def divided(batch):
    """(batch, packed_seq_params) of this rank, by the code on the page about Megatron."""
    from megatron.core import utils

    if hasattr(utils, "get_thd_batch_on_this_cp_rank"):  # megatron-core 0.16
        bounds, longest = batch.pop("cu_seqlens")[0], batch.pop("max_seqlen")
        return utils.get_thd_batch_on_this_cp_rank(batch, bounds, bounds, longest)
    section = PAGE.read_text().split("### Context parallelism in your own loop")[1]
    code = section.split("```python\n")[1].split("```")[0]
    bounds = batch["cu_seqlens"][0]
    exec(code, names := {"batch": batch})
    documents = torch.arange(len(bounds) - 1).repeat_interleave(bounds.diff())
    assert torch.equal(names["packed_seq_params"].seq_idx[0], documents.int()), "for layers of Mamba"
    return names["batch"], names["packed_seq_params"]


def divided_by_row(batch):
    """(batch, packed_seq_params) of this rank, whose tokens are the first and the last part of the whole batch."""
    bounds, longest = batch["cu_seqlens"][0], batch["max_seqlen"][0]
    names = ("tokens", "position_ids", "labels", "loss_mask")
    parts = {
        name: torch.cat([batch[name].chunk(4, 1)[part] for part in PARTS[distributed.get_rank()]], 1) for name in names
    }
    return parts, packed_seq_params(bounds, longest)


PARTS = {0: (0, 3), 1: (1, 2)}


def train(model, batch, divide):
    """(loss, gradients) of both processes together, for packer's batch."""
    model.zero_grad()
    part, params = divide(dict(batch))
    logits = model(part["tokens"], part["position_ids"], None, packed_seq_params=params)
    loss = cross_entropy(logits[0], part["labels"][0], ignore_index=-100, reduction="sum")
    return reduced(loss / batch["loss_mask"].sum(), model)


def train_with_bridge(model, rows):
    """(loss, gradients) of both processes together, for micro-batches that Megatron-Bridge's collator made."""
    from megatron.core import parallel_state

    from tests.helpers.megatron_bridge import bridge

    utils, losses = bridge("training.utils.packed_seq_utils"), bridge("training.losses")
    model.zero_grad()
    total = 0.0
    for row in rows:
        params = utils.get_packed_seq_params(row)
        places = utils.get_thd_cp_partition_indices(
            params.cu_seqlens_q_padded,
            total_tokens=row["tokens"].shape[1],
            cp_group=parallel_state.get_context_parallel_group(),
            device=torch.device("cpu"),
        )
        tokens, positions, labels, mask = (
            row[name][:, places] for name in ("tokens", "position_ids", "labels", "loss_mask")
        )
        each = model(tokens, positions, None, labels=labels, packed_seq_params=params)
        sums = losses.masked_next_token_loss(mask, each, check_for_nan_in_loss=False)
        total = total + sums[0]
    return reduced(total / sum(row["loss_mask"].sum() for row in rows), model)


def main(folder: Path) -> None:
    from megatron.core import utils

    batch, rows = torch.load(folder / "batch.pt")
    with (
        mock.patch.object(utils, "tex", transformer_engine_torch()),
        mock.patch.object(utils, "is_te_min_version", return_value=True),
        job(folder) as rank,
        tiny_gpt(context_parallel_size=2) as model,
    ):
        found = {"by document": train(model, batch, divided), "by row": train(model, batch, divided_by_row)}
        if rows:
            found["bridge"] = train_with_bridge(model, rows)
    torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
