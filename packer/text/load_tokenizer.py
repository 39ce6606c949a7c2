"""Tokenizers by path or Hub id: by their files alone, or by transformers, which takes seconds to import."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from packer.errors import PackerError, first_line
from packer.paths import expanded
from packer.progress import STATUS
from packer.system_errors import hub_is_unreachable
from packer.text.tokenizer import Tokenizer, of_rust, of_transformers
from packer.text.tokenizer_files import FILES, GENERATION_CONFIG, class_by_files, is_named_template, open_by_files

_TIMEOUT = 10  # seconds within which the Hub must answer
_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"  # silences `warning_advice` and nothing else


def open_tokenizer(path_or_id: str) -> Tokenizer:
    """Open a tokenizer by path (a folder or tokenizer.json) or Hub id.

    A tokenizer.json next to a tokenizer_config.json is opened as the folder, because only the configuration names the
    end-of-sequence token and the chat template. Code that comes with a tokenizer (`auto_map`) is never run.

    Raises:
        PackerError: there is no such tokenizer, or it needs its own code.
    """
    path_or_id = expanded(path_or_id)
    path = Path(path_or_id)
    STATUS.info("loading the tokenizer")
    opened, folder = _open(path_or_id, path)
    return opened if folder is None else replace(opened, generation_ends=_generation_ends(folder))


def _open(path_or_id: str, path: Path) -> tuple[Tokenizer, Path | None]:
    """Open a tokenizer; return it with the folder of its files, None if that is not known."""
    if path.is_file() and not path.with_name("tokenizer_config.json").is_file():
        return _open_alone(path), path.parent
    folder_or_id = str(path.parent) if path.is_file() else path_or_id
    try:
        folder = Path(folder_or_id) if path.exists() else _download(path_or_id)
        complete = open_by_files(folder, folder_or_id) if folder is not None else None
        if complete is not None:
            return complete, folder
        transformers, known = _transformers(), class_by_files(folder) if folder is not None else None
        opens = getattr(transformers, f"{known}Fast", None) or getattr(transformers, known or "AutoTokenizer")
        # None, the default, would ask on stdin whether to run code that comes with the tokenizer
        opened = opens.from_pretrained(folder_or_id, trust_remote_code=False)
    except Exception as error:  # several HTTP libraries raise their own, depending on versions
        if "trust_remote_code" in str(error):
            raise PackerError(
                f"{path_or_id} comes with its own code (auto_map), which packer does not run: if its tokenizer.json "
                "does without that code, remove auto_map from tokenizer_config.json and config.json in a copy of it"
            ) from error
        _check_templates(Path(folder_or_id) / "tokenizer_config.json")
        raise PackerError(f"{path_or_id} {_fault(path, error)}") from error
    return of_transformers(opened), folder


def _generation_ends(folder: Path) -> tuple[int, ...]:
    """Return the tokens at which a model stops, one or several in generation_config.json; () without them."""
    path = folder / GENERATION_CONFIG
    try:
        ends = json.loads(path.read_bytes()).get("eos_token_id") if path.is_file() else None
        listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if all(type(token) is int and token >= 0 for token in listed):
            return tuple(listed)
        reason = f"eos_token_id is {str(ends)[:60]} where a token id or a list of them is expected"
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        reason = first_line(error)
    raise PackerError(f"{path} does not say which tokens end a turn: {reason}; fix or remove it")


def _fault(path: Path, error: Exception) -> str:
    """Say why there is no tokenizer: in a folder, among what was downloaded before, or on the Hub, and what to do."""
    from huggingface_hub import constants

    reason = shorten(str(error), 200, placeholder=" ...") or type(error).__name__
    if path.is_dir() and not any((path / name).is_file() for name in FILES):
        return "has no files of a tokenizer, such as tokenizer.json: name a folder that has"
    if path.exists():
        return f"cannot be opened as a tokenizer ({reason}): name a folder with a tokenizer.json, or save it again"
    if constants.HF_HUB_OFFLINE and type(error).__name__ != "HFValidationError":
        return f"is not a local path, nor was it downloaded before HF_HUB_OFFLINE was set ({reason}): check the path"
    if hub_is_unreachable(error):
        return f"is not a local path, and the Hugging Face Hub cannot be reached ({reason}): check the network"
    return f"is neither a tokenizer folder or tokenizer.json nor a Hub id ({reason}): check the path"


def open_decoder(path_or_id: str) -> Callable[[Any], str]:
    """Open a tokenizer by path (a folder or tokenizer.json) or Hub id; return the function that decodes token ids.

    Raises:
        PackerError: there is no such tokenizer.
    """
    path = Path(expanded(path_or_id))
    return _open_alone(path).decode if path.is_file() else open_tokenizer(path_or_id).decode


def _open_alone(path: Path) -> Tokenizer:
    """Open a tokenizer.json without a configuration."""
    backend = _read(path)
    special = {"pad_token": str(backend.padding["pad_token"])} if backend.padding is not None else {}
    return of_rust(backend, name=str(path), special_tokens=special, chat_template=None)


def _transformers() -> Any:
    """Import transformers without its warning that torch is missing, which tokenizers do not need."""
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
        raise PackerError(f"{path} is not a tokenizer.json: {error}") from error


def _check_templates(config: Path) -> None:
    """Check a list of chat templates, for which transformers raises a bare `KeyError` or `TypeError`."""
    try:
        templates = json.loads(config.read_bytes()).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return
    for one in templates if isinstance(templates, list) else []:
        if not is_named_template(one):
            raise PackerError(
                f"{config}: a chat_template is {str(one)[:60]!a} where an object with a name and a template is "
                "expected; fix it"
            )


def _download(hub_id: str) -> Path | None:
    """Download the `FILES` of a tokenizer of the Hub; return their folder, or None if transformers has to try again.

    Whether the Hub has the tokenizer, and answers, is asked first: transformers would retry for half a minute.
    """
    from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE and try_to_load_from_cache(hub_id, "tokenizer_config.json") is None:
        HfApi().model_info(hub_id, timeout=_TIMEOUT)
    try:
        return Path(snapshot_download(hub_id, allow_patterns=[*FILES], etag_timeout=_TIMEOUT))
    except Exception:  # transformers says why it fails
        return None
