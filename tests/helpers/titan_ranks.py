"""One of two processes of torchtitan with context parallelism, for tests/test_export_trainers.py."""

import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import flex_attention
from torch.nn.functional import cross_entropy

from tests.helpers.export_trainers import alone_pairs, loss_of, tiny_titan
from tests.helpers.models import gradients
from tests.helpers.torch_jobs import job

BALANCERS = (None, "headtail", "ptrr")


@contextmanager
def compiled_flex_attention():
    """Let torchtitan's FlexAttention run as compiled for the CPU. It reads masks' blocks, and has no gradients."""
    from torchtitan.models.common import attention

    compiled = torch.compile(flex_attention.flex_attention)
    with (
        mock.patch.object(attention, "_compiled_create_block_mask", flex_attention.create_block_mask),
        mock.patch.object(attention.FlexAttention, "_compiled_flex_attn", compiled),
    ):
        yield


@contextmanager
def plain_flex_attention():
    """Let torchtitan's FlexAttention run without compiled kernels, because those for the CPU have no gradients.

    It evaluates masks for all pairs of tokens, and ignores their blocks.
    """
    from torchtitan.models.common import attention

    plain = torch.compile(flex_attention.flex_attention, backend="aot_eager")
    with (
        mock.patch.object(attention, "_compiled_create_block_mask", flex_attention.create_block_mask),
        mock.patch.object(attention.FlexAttention, "_compiled_flex_attn", plain),
        mock.patch.object(flex_attention, "_validate_device", return_value=None),
        mock.patch.object(torch, "bfloat16", torch.float32),  # to which torchtitan's attention converts
    ):
        yield


def train(mesh, batch, balancer, *, boundaries):
    """(loss, gradients) of both processes together; without boundaries, attention sees whole rows."""
    from torchtitan.distributed.context_parallel import apply_cp_to_forward, prepare_context_parallel_input

    model = tiny_titan("flex")
    apply_cp_to_forward([layer.attention.inner_attention for layer in model.layers.values()], mesh)
    tokens, positions, labels = batch
    places = positions if boundaries else torch.arange(tokens.shape[1]).expand_as(tokens)
    masks = {"positions": positions, "attention_masks": model.get_attention_masks(places)}
    tokens, labels, inputs = prepare_context_parallel_input(
        tokens, labels, masks, mesh, torch.device("cpu"), load_balancer_type=balancer
    )
    logits = model(tokens, inputs["positions"], inputs["attention_masks"])
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    loss = loss / (batch[2] != -100).sum()
    loss.backward()
    found = [loss.detach(), *gradients(model).values()]
    for each in found:
        distributed.all_reduce(each)
    return loss.item(), dict(zip(gradients(model), found[1:], strict=True))


def train_alone(pieces):
    """(loss, gradients) of documents one by one, in a process of its own."""
    model = tiny_titan("flex")

    def run(tokens):
        positions = torch.arange(len(tokens))[None]
        return model(tokens[None], positions, model.get_attention_masks(positions))[0]

    loss = loss_of(alone_pairs(run, pieces))
    loss.backward()
    return loss.item(), gradients(model)


def main(folder: Path) -> None:
    batch, pieces = torch.load(folder / "batch.pt")
    with job(folder) as rank, plain_flex_attention():
        mesh = init_device_mesh("cpu", (2,))
        found = {each: train(mesh, batch, each, boundaries=True) for each in BALANCERS}
        found["alone"] = train_alone(pieces)
        found["without boundaries"] = train(mesh, batch, None, boundaries=False)
    torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
