"""Text and tokens; `tokenizers` and `transformers` are imported on use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"


def train_byte_level(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer: every text round-trips, and END_OF_TEXT is token 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def open_decoder(path_or_id: str) -> Callable[[Any], str]:
    """Open a tokenizer by path (a folder or tokenizer.json) or Hub id; return ids -> text.

    Raises:
        PackerError: there is none.
    """
    path = Path(path_or_id)
    if path.is_file():
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise PackerError(f"{path} is no tokenizer.json: {error}") from error
        return lambda ids: tokenizer.decode([int(token) for token in ids], skip_special_tokens=False)
    from transformers import AutoTokenizer

    try:
        pretrained = AutoTokenizer.from_pretrained(path_or_id)
    except (OSError, ValueError) as error:
        raise PackerError(
            f"{path_or_id} is neither a tokenizer folder or tokenizer.json nor a Hub id: {str(error).splitlines()[0]}"
        ) from error
    return lambda ids: str(pretrained.decode([int(token) for token in ids]))
