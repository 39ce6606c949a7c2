"""Attention in which no document of a packed row sees another, for Hugging Face models, and a probe that proves it.

    packer.attention.use(model)      run a loaded model on torch's own varlen attention; no flash-attn build
    packer.attention.register()      the same by name: from_pretrained(..., attn_implementation=register())
    packer.attention.probe(model)    change one document, and see whether another moves: a verdict per implementation

The way of a batch through it:

    boundaries.py    what a batch says of its segments -> cu_seqlens
    varlen.py        query, key, value and cu_seqlens -> attention: torch's kernel, or SDPA segment by segment
    rope.py          RoPE whose frequencies depend on lengths: those of each document by its own
    hugging_face.py  transformers' interface to all of it, and what it refuses
    isolation.py     the probe: packed against alone, for every implementation that is installed
    measuring.py     what a model makes of documents: logits, loss, gradients
    rounding.py      how far a model is from itself by rounding alone
    thresholds.py    fields of a config that matter from some length on, made short for the probe
    opening.py       a path, a Hub id or a config file -> a model small enough to probe in seconds

Importing this package imports nothing; torch and transformers are imported when a function needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from packer.attention.isolation import Verdict

__all__ = ["IMPLEMENTATION", "probe", "register", "use"]

IMPLEMENTATION = "packer_varlen"
"""Name under which transformers knows this attention. Without "flash" in it: transformers looks for that word."""


def register() -> str:
    """Make IMPLEMENTATION known to transformers and return it, for `from_pretrained(attn_implementation=...)`.

    Where the model is at hand, prefer `use`, which also notices a model that has attention of its own.

    Raises:
        PackerError: torch or transformers is not installed, or transformers is too old.
    """
    from packer.attention.hugging_face import register

    return register()


def use(model: PreTrainedModel) -> PreTrainedModel:
    """Let a Hugging Face model compute attention segment by segment; return the model.

    On CUDA in float16 or bfloat16 this is torch's varlen FlashAttention-2, elsewhere SDPA for each segment. Sliding
    windows, grouped heads, any head size and scale are those of the model. LongRoPE and dynamic RoPE get the
    frequencies of each document's own length. The batch says where segments begin:
    `cu_seq_lens_q` and `max_length_q`, as `packer.collate` makes them, or `position_ids` that restart.

        model = packer.attention.use(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype="bfloat16"))
        for batch in packer.batches(packer.load("dataset-packed-4096"), rows=4):
            model(**batch).loss.backward()

    The model can be compiled with `torch.compile` afterwards, by the Trainer's `torch_compile=True`, too.

    The forward pass raises where the result would be wrong: a KV cache, an attention mask, chunked layers that are
    shorter than a segment, logits that are capped, attention sinks, dropout, boundaries that do not arrive.

    Raises:
        PackerError: the model has attention of its own, which nothing can replace; or as `register`.
    """
    from packer.attention.hugging_face import use

    return use(model)


def probe(
    model: PreTrainedModel, implementations: Sequence[str] | None = None, *, position_offset: int = 0
) -> list[Verdict]:
    """Tell for each attention implementation whether documents in a row stay to themselves; see `Verdict`.

    A batch of `packer.collate` goes through the model, then the same batch with one document changed: no other may
    move. Logits, loss and gradients are compared with those of the documents alone; where they differ, so is the
    model with itself under other rounding. The model's weights, gradients and mode are left as they were. Documents
    have up to 20 tokens: `Verdict.thresholds` names fields of the config, such as a sliding window, beyond which the
    model computes differently and nothing was probed.

    Args:
        model: with its weights, on the device and in the dtype to be probed; a few layers suffice.
        implementations: names for `attn_implementation`; by default those that are installed.
        position_offset: the position of every document's first token, as in `packer.batches`.

    Raises:
        PackerError: torch or transformers is not installed, or the model does not run on documents alone.
    """
    from packer.attention.isolation import probe

    return probe(model, implementations, position_offset=position_offset)
