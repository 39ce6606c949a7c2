"""Text and tokens; `tokenizers` and `transformers` are imported on use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"

_PATIENCE = 10  # seconds in which the Hub must answer


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
        if not path.exists():
            _look_up(path_or_id)
        pretrained = AutoTokenizer.from_pretrained(path_or_id)
    except Exception as error:  # of several HTTP libraries, by version
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PackerError(
            f"{path_or_id} is neither a tokenizer folder or tokenizer.json nor a Hub id ({reason}): check the path"
        ) from error
    return lambda ids: str(pretrained.decode([int(token) for token in ids]))


def _look_up(hub_id: str) -> None:
    """Ask the Hub once whether it has this tokenizer: transformers alone retries for half a minute."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE and try_to_load_from_cache(hub_id, "tokenizer_config.json") is None:
        HfApi().model_info(hub_id, timeout=_PATIENCE)
