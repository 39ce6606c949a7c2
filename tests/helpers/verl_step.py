"""A training step of verl's FSDP engine; as a module, in each of two processes with Ulysses, over stand-in kernels."""

import sys
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as distributed

from packer.trainers.verl import PackedRows
from tests.helpers.models import gradients, tiny_llama
from tests.helpers.naive_attention import flash_attn_installed
from tests.helpers.torch_jobs import job


def loss_of_step(model, items, *, ulysses=1):
    """Return the loss of items of a packed dataset, in one micro-batch."""
    import verl.workers.engine.fsdp.transformer_impl as engines
    from verl.utils import tensordict_utils
    from verl.utils.dataset.dataset_utils import SFTTensorCollator
    from verl.workers.utils.losses import sft_loss

    batch = SFTTensorCollator("no_padding")(items)
    facts = {"use_remove_padding": True, "temperature": 1.0, "pad_mode": "no_padding", "pad_token_id": 0}
    data = tensordict_utils.get_tensordict(tensor_dict=batch, non_tensor_dict=facts)
    tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=batch["loss_mask"].values().sum().item())
    engine = object.__new__(engines.FSDPEngineWithLMHead)  # without a GPU, it cannot be set up
    engine.module, engine.pad_to_length, engine.use_ulysses_sp = model, False, ulysses > 1
    engine.ulysses_sequence_parallel_size = ulysses
    engine._autocast_dtype, engine.get_data_parallel_group = torch.float32, lambda: None
    with mock.patch.object(engines, "get_device_id", return_value="cpu"):
        return engine.forward_step(data, partial(sft_loss, None), forward_only=False)[0]


def train_with_ulysses(packed):
    """Return the loss and gradients of all rows; every process of the job has the same."""
    from verl.models.transformers import monkey_patch
    from verl.utils.ulysses import set_ulysses_sequence_parallel_group

    model = tiny_llama(attention="flash_attention_2")
    with mock.patch.object(monkey_patch, "is_trl_available", return_value=False):
        monkey_patch.apply_monkey_patch(model, use_remove_padding=True, ulysses_sp_size=2)
    set_ulysses_sequence_parallel_group(distributed.group.WORLD)
    rows = PackedRows(packed)
    loss = loss_of_step(model, [rows[number] for number in range(len(rows))], ulysses=2)
    loss.backward()
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad)
        parameter.grad /= 2  # as FSDP does
    return loss.item(), gradients(model)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with job(folder) as rank, flash_attn_installed():
        torch.save(train_with_ulysses(sys.argv[2]), folder / f"{rank}.pt")
