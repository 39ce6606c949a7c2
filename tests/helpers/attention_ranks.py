"""One of two processes whose model has packer's attention, for tests/test_attention_ranks.py."""

import sys
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import packer
from tests.helpers.attention import batch_of
from tests.helpers.models import gradients, loss_sum
from tests.helpers.probe_ranks import probe_steps
from tests.helpers.torch_jobs import job


def train(model, batch):
    """(loss, gradients of whole parameters)."""
    batch = dict(batch)
    model.zero_grad()
    labels = batch.pop("labels", batch["input_ids"])
    loss = loss_sum(model(**batch).logits, labels)
    loss.backward()
    return loss.detach(), {name: whole(each) for name, each in gradients(model).items()}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def error_of(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def loaded(folder, **options):
    return packer.attention.use(AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float64", **options))


def probed(model):
    def step(batch):
        labels = batch.pop("labels")[:, 1:]
        logits = model(**batch).logits[:, :-1]
        return cross_entropy(logits.transpose(1, 2), labels, reduction="none")

    return packer.probe(step, max_len=32, vocabulary=96)


def under_context_parallel(model, mesh, batch):
    shared = [batch["input_ids"], batch["position_ids"]]
    with context_parallel(mesh, buffers=shared, buffer_seq_dims=[1, 1]):
        return error_of(lambda: model(**batch).logits.sum())


def of_shard(model, rank, batch):
    """Half of the tokens, and positions that go on in the second half."""
    own = {name: batch[name].chunk(2, dim=1)[rank] for name in ("input_ids", "position_ids")}
    return error_of(lambda: model(**own, use_cache=False).logits.sum())


def with_distributed_tokens(model, mesh, batch):
    """A layer whose queries are a tensor that is distributed over the tokens."""
    attention, heads = ALL_ATTENTION_FUNCTIONS[packer.attention.IMPLEMENTATION], torch.zeros(1, 4, 32, 8)
    distributed = distribute_tensor(heads, mesh, [Shard(2)])
    layer = model.model.layers[0].self_attn
    boundaries = {name: batch[name] for name in ("cu_seq_lens_q", "max_length_q")}
    return error_of(lambda: attention(layer, distributed, distributed, distributed, None, **boundaries))


def main(folder: Path, *, probe: bool) -> None:
    with job(folder) as rank:
        torch.save(probe_steps(rank), folder / f"probe-{rank}.pt")
        mesh, batches = init_device_mesh("cpu", (2,)), torch.load(folder / "batches.pt")
        model = loaded(folder, distributed_config=DistributedConfig(tp_plan="auto", tp_size=2))
        found = {name: train(model, batch) for name, batch in batches.items()}
        if probe:
            found["tensor, probed"] = probed(model)
        model = loaded(folder)
        found["context"] = under_context_parallel(model, mesh, batch_of())
        positions = {name: batch_of()[name] for name in ("input_ids", "position_ids")}
        found["context, positions"] = under_context_parallel(model, mesh, positions)
        found["shard"] = of_shard(model, rank, batch_of())
        found["tokens"] = with_distributed_tokens(model, mesh, batch_of())
        if probe:
            parallel = DistributedDataParallel(model)
            found["data, probed"] = probed(parallel)
            del parallel
        torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), probe="probe" in sys.argv)
