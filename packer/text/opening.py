"""Tokenizers by path or Hub id; `tokenizers` and `transformers` are imported on use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError
from packer.paths import expanded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PATIENCE = 10  # seconds in which the Hub must answer
_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"  # leaves out `warning_advice` of its log, and nothing else


def open_tokenizer(path_or_id: str) -> PreTrainedTokenizerBase:
    """Open a tokenizer by path (a folder or tokenizer.json) or Hub id.

    A tokenizer.json with a tokenizer_config.json beside it is opened as the folder: only the latter names the
    end-of-sequence token and the chat template.

    Raises:
        PackerError: there is none.
    """
    path_or_id = expanded(path_or_id)
    path = Path(path_or_id)
    transformers = _transformers()
    opened: PreTrainedTokenizerBase
    if path.is_file() and not path.with_name("tokenizer_config.json").is_file():
        opened = transformers.PreTrainedTokenizerFast(tokenizer_object=_read(path))
        return opened
    try:
        if not path.exists():
            _look_up(path_or_id)
        opened = transformers.AutoTokenizer.from_pretrained(str(path.parent) if path.is_file() else path_or_id)
    except Exception as error:  # of several HTTP libraries, by version
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PackerError(
            f"{path_or_id} is neither a tokenizer folder or tokenizer.json nor a Hub id ({reason}): check the path"
        ) from error
    return opened


def open_decoder(path_or_id: str) -> Callable[[Any], str]:
    """Open a tokenizer by path (a folder or tokenizer.json) or Hub id; return ids -> text.

    Raises:
        PackerError: there is none.
    """
    path = Path(expanded(path_or_id))
    if path.is_file():  # without transformers, whose import takes seconds
        tokenizer = _read(path)
        return lambda ids: str(tokenizer.decode([int(token) for token in ids], skip_special_tokens=False))
    pretrained = open_tokenizer(path_or_id)
    return lambda ids: str(pretrained.decode([int(token) for token in ids]))


def _transformers() -> Any:
    """Import transformers without its line that torch is not there, for which tokenizers have no need."""
    usual = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"
    try:
        import transformers
    finally:
        if usual is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = usual
    return transformers


def _read(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise PackerError(f"{path} is no tokenizer.json: {error}") from error


def _look_up(hub_id: str) -> None:
    """Ask the Hub once whether it has this tokenizer: transformers alone retries for half a minute."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE and try_to_load_from_cache(hub_id, "tokenizer_config.json") is None:
        HfApi().model_info(hub_id, timeout=_PATIENCE)
