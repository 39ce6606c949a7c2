"""Attention within the documents of packed rows for Hugging Face models, and a probe that tests implementations.

    packer.attention.use(model)      run a loaded model on torch's varlen attention, without a flash-attn build
    packer.attention.register()      register it by name, for from_pretrained(..., attn_implementation=register())
    packer.attention.probe(model)    test whether documents affect each other, for each attention implementation

The modules, in the order in which a batch passes through them:

    implementations.py     names of the attention implementations, and verdicts of the probe
    boundaries.py          cu_seqlens of a batch, from cu_seq_lens_q or position_ids
    varlen.py              attention within segments: torch's varlen kernel, or SDPA per segment
    rope.py                LongRoPE and dynamic RoPE with frequencies per document
    transformers_hook.py   the interface to transformers, and the cases it refuses

and those of the probe:

    load_model.py          path, Hub id or config file -> a small model with random weights
    thresholds.py          config fields that change a model's behavior beyond some length
    compare_outputs.py     logits, loss and gradients of packed and single documents
    isolation.py           a verdict for each implementation

Importing this package imports neither torch nor transformers; its functions do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packer.attention.implementations import IMPLEMENTATION

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from packer.attention.implementations import Verdict

__all__ = ["IMPLEMENTATION", "probe", "register", "use"]


def register() -> str:
    """Register packer's attention with transformers and return its name, for `attn_implementation=`.

    Prefer `use` for a model that is loaded already: it also detects models whose attention cannot be replaced, and
    accepts batches with position_ids alone. Without `use`, batches need `cu_seq_lens_q` and `max_length_q`.

    Raises:
        PackerError: torch or transformers is not installed, or transformers is too old.
    """
    from packer.attention.transformers_hook import register

    return register()


def use(model: PreTrainedModel, *, rows_are_documents: bool = False) -> PreTrainedModel:
    """Make a Hugging Face model compute attention within segments only, and return the model.

    On NVIDIA GPUs in float16 or bfloat16 this runs torch's varlen FlashAttention-2, elsewhere SDPA for each segment.
    Sliding windows, grouped heads, head sizes and scales of the model are kept. With LongRoPE and dynamic RoPE, each
    document gets the frequencies of its own length. The batch must contain the segment boundaries: `cu_seq_lens_q` and
    `max_length_q`, as `packer.collate` returns them, or `position_ids` that restart with every segment.

        model = packer.attention.use(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype="bfloat16"))
        for batch in packer.batches(packer.load("dataset-packed-4096"), rows=4):
            model(**batch).loss.backward()

    The model can be compiled afterwards, with `torch.compile` or the Trainer's `torch_compile=True`.

    The forward pass raises PackerError if its result would be wrong: with a KV cache, an attention mask, chunked layers
    that are shorter than a segment, capped logits, attention sinks, dropout, or missing boundaries.

    Args:
        model: model to switch.
        rows_are_documents: whether batches without boundaries are accepted, each of whose rows is then one document, as
            in an evaluation of single documents.

    Raises:
        PackerError: the model's attention cannot be replaced; torch or transformers is not installed; or transformers
            is too old.
    """
    from packer.attention.transformers_hook import use

    return use(model, rows_are_documents=rows_are_documents)


def probe(
    model: PreTrainedModel, implementations: Sequence[str] | None = None, *, position_offset: int = 0
) -> list[Verdict]:
    """Test for each attention implementation whether documents in a packed batch affect each other.

    The model runs on a batch of `packer.collate`, then on the same batch with one document changed; the outputs of all
    other documents must stay the same. Logits, loss and gradients are also compared with those of each document alone;
    where they differ, the difference is compared with that of the model under other rounding. In a causal language
    model, no token may change earlier ones, and eager and sdpa must agree on single documents. Weights, gradients and
    mode of the model are restored afterwards. Documents have up to 20 tokens: `Verdict.thresholds` lists config fields,
    such as a sliding window, above which the model may behave differently.

    Args:
        model: model to probe, on its device and in its dtype; a few layers suffice.
        implementations: values of `attn_implementation`; by default all that are installed.
        position_offset: position of the first token of every document, as in `packer.batches`.

    Returns:
        One verdict per implementation, in order.

    Raises:
        PackerError: torch or transformers is not installed, or the model fails on single documents.
    """
    from packer.attention.isolation import probe

    return probe(model, implementations, position_offset=position_offset)
