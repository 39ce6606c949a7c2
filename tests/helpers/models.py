"""A tiny causal language model, and what it makes of documents that are fed to it one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 128
FLASH = "flash_attention_2"
"""Name of FlashAttention-2 in transformers."""


def tiny_llama(*, attention="sdpa", dtype=torch.float32) -> LlamaForCausalLM:
    """A random Llama of two layers; weights large enough for attention to matter."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).to(dtype).train()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that no text ever meets: SFTTrainer wants one for its padding token."""
    from tokenizers import Tokenizer, models

    words = {f"token{number}": number for number in range(VOCABULARY)}
    word_level = Tokenizer(models.WordLevel(words, unk_token="token1"))
    return PreTrainedTokenizerFast(tokenizer_object=word_level, pad_token="token0", eos_token="token2")


def loss_sum(logits, labels):
    """Cross-entropy summed over the trained tokens of `[batch, T]` sequences, in the dtype of the logits."""
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")


def gradients(model):
    """Copies of the gradients of every parameter, by name; zeros for one that takes no part."""
    parameters = model.named_parameters()
    return {name: torch.zeros_like(each) if each.grad is None else each.grad.clone() for name, each in parameters}


@contextmanager
def recorded_gradients(model) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Yield a list that gets the gradients of every optimizer step, in whatever loop or trainer it is made."""
    recorded = []
    handle = register_optimizer_step_pre_hook(lambda *_: recorded.append(gradients(model)))
    try:
        yield recorded
    finally:
        handle.remove()


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """What a model makes of documents that never meet."""

    logits: dict[tuple[int, int], torch.Tensor]
    """`[tokens, vocabulary]` of each piece, by (document, start)."""

    loss: float
    """Mean over the trained tokens of all documents."""

    gradients: dict[str, torch.Tensor]
    """Of that mean."""

    @property
    def gradient_norm(self) -> float:
        """Of all parameters together."""
        return torch.stack([each.norm() for each in self.gradients.values()]).norm().item()


def train_alone(model, pieces) -> Alone:
    """Train on every piece by itself: `pieces` maps (document, start) to (tokens, labels).

    The label of a first token is never looked at: nothing comes before it that could predict it.
    """
    trained = sum(label != -100 for _, labels in pieces.values() for label in labels[1:])
    model.zero_grad()
    logits, total = {}, 0.0
    for name, (tokens, labels) in pieces.items():
        output = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        loss = loss_sum(output, torch.tensor([labels])) / trained
        loss.backward()
        total += loss.item()
        logits[name] = output[0].detach()
    alone = Alone(logits=logits, loss=total, gradients=gradients(model))
    model.zero_grad()
    return alone
