#!/usr/bin/env bash
# Expected: ring attention is an exact way to compute attention: if the outputs are right, autograd's are, too.
# Found: ms-swift's ring (zigzag, for more processes than key heads) has the outputs of attention on one device, and
#   gradients of queries, keys and values that are far from it. Its backward pass ignores how the weights of the ring's
#   blocks depend on queries and keys, and reads log-sum-exps that the forward pass has overwritten in place.
# Matters: the first loss and every evaluation agree with a run on one device; only training goes elsewhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/bin/pip" install --quiet --no-compile --no-deps ms-swift==4.6.0
cat > "$folder/finding.py" <<'END'
import importlib
import importlib.metadata
import sys
import types

import torch
import torch.distributed as dist
import torch.multiprocessing

SCALE = 0.5


def scores(q, k, causal):
    found = torch.einsum("qhd,khd->hqk", q, k) * SCALE
    return found.masked_fill(torch.ones(found.shape[1:]).triu(1).bool(), -torch.inf) if causal else found


# flash-attn needs a GPU: its two kernels, written out for a single document, in float32 within, bfloat16 outside


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                               softmax_scale, causal, window_size, alibi_slopes, return_softmax):
    found = scores(q.float(), k.float(), causal)
    out = torch.einsum("hqk,khd->qhd", found.softmax(-1), v.float())
    return out.to(q.dtype), found.logsumexp(-1), None, None


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                max_seqlen_k, dropout_p, softmax_scale, causal, window_size, alibi_slopes,
                                deterministic):
    dout, q, k, v, out = (each.float() for each in (dout, q, k, v, out))
    p = (scores(q, k, causal) - softmax_lse[..., None]).exp()
    ds = p * (torch.einsum("qhd,khd->hqk", dout, v) - (dout * out).sum(-1).T[..., None]) * SCALE
    dq.copy_(torch.einsum("hqk,khd->qhd", ds, k))
    dk.copy_(torch.einsum("hqk,qhd->khd", ds, q))
    dv.copy_(torch.einsum("hqk,qhd->khd", p, dout))


def load_ring():
    """The ring's own files, without the rest of ms-swift, which needs many packages."""
    kernels = types.ModuleType("flash_attn.flash_attn_interface")
    kernels._flash_attn_varlen_forward = _flash_attn_varlen_forward
    kernels._flash_attn_varlen_backward = _flash_attn_varlen_backward
    ring = types.ModuleType("ring")
    ring.__path__ = [str(importlib.metadata.distribution("ms-swift").locate_file("swift/sequence_parallel"))]
    sys.modules |= {"flash_attn": types.ModuleType("flash_attn"), kernels.__name__: kernels, "ring": ring}
    return importlib.import_module("ring.zigzag_ring_attn")


def compare(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    *inputs, dout = torch.randn(4, 16, 2, 8).bfloat16()
    whole = [each.float().requires_grad_() for each in inputs]
    out = torch.einsum("hqk,khd->qhd", scores(*whole[:2], True).softmax(-1), whole[2])
    out.backward(dout.float())
    mine = [[*range(0, 4), *range(12, 16)], [*range(4, 12)]][rank]  # zigzag: the first and last quarter, the middle
    parts = [each[mine][None].clone().requires_grad_() for each in inputs]
    found = load_ring().zigzag_ring_flash_attn_varlen_func(
        *parts, cu_seqlens=torch.tensor([0, 16], dtype=torch.int32), max_seqlen=16, causal=True, softmax_scale=SCALE,
        group=dist.group.WORLD,
    )
    found.backward(dout[mine][None])
    pairs = [(found[0], out[mine])] + [(part.grad[0], all.grad[mine]) for part, all in zip(parts, whole)]
    errors = torch.tensor([((a - b).abs().max() / b.abs().max()).item() for a, b in pairs])
    dist.all_reduce(errors, dist.ReduceOp.MAX)
    if rank == 0:
        print(f"ms-swift {importlib.metadata.version('ms-swift')}, two processes, relative to attention in one")
        for name, error in zip(("output", "gradient of q", "gradient of k", "gradient of v"), errors.tolist()):
            print(f"largest error, {name}: {error:.3f}")
    dist.destroy_process_group()
    if errors[0] > 0.02 or errors[1:].min() < 0.05:
        sys.exit("changed: the output used to be right, and the gradients wrong")


if __name__ == "__main__":
    torch.multiprocessing.spawn(compare, args=(sys.argv[1],), nprocs=2)
END
"$folder/bin/python" "$folder/finding.py" "$folder"
