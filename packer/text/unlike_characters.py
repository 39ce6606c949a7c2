"""Characters that two tokenizers treat differently, because libraries have the tables of different Unicode versions.

A later version adds characters and changes none: their classes, by which texts are cut into words, the order of marks,
and what letters and marks compose to. So texts without characters that one of two versions lacks are the same to both.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.progress import STATUS

Encoded: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Tokens of texts, one text after the other, and the number of tokens up to the end of each."""

Encode: TypeAlias = Callable[[Sequence[str]], Encoded]

CACHE_DIR = "PACKER_CACHE_DIR"
"""Environment variable that names the folder in which results are kept; by default, the user's cache folder."""

_COMPARED = range(1, 0xF0000)  # without the planes for private use
_TOGETHER = 64  # characters that are compared in one text first


def unlike_characters(one: Encode, other: Encode, key: str) -> NDArray[np.bool_]:
    """Return for each code point, shape (0x110000,), whether two tokenizers may treat it differently.

    They are compared on all characters that Python knows, between letters, digits, spaces, apostrophes and marks; all
    others count as different. The result is kept under `key`, which must name tokenizers and versions.
    """
    known = [code for code in _COMPARED if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    path = _cache_folder() / f"unlike-{key}-{unicodedata.unidata_version}-{len(known)}.json"
    found = _read(path)
    if found is None:
        STATUS.info("comparing two ways to tokenize on all characters, once for this tokenizer")
        found = _compare(known, one, other)
        _write(path, found)
    unlike = np.ones(sys.maxunicode + 1, np.bool_)
    unlike[known] = False
    unlike[found] = True
    return unlike


def texts_with(characters: NDArray[np.bool_], texts: Sequence[str]) -> list[int]:
    """Return the numbers of the texts that hold one of the characters, none of which is ASCII."""
    numbers = [at for at, text in enumerate(texts) if not text.isascii()]
    codes = np.frombuffer("".join(texts[at] for at in numbers).encode("utf-32-le"), np.uint32)
    places = np.flatnonzero(characters[codes])
    ends = np.cumsum([len(texts[at]) for at in numbers], dtype=np.int64)
    return [numbers[at] for at in np.unique(np.searchsorted(ends, places, side="right"))]


def differing(one: Encoded, other: Encoded) -> list[int]:
    """Return the numbers of the texts that have different tokens."""
    if np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1]):
        return []
    both = [np.split(ids, ends[:-1]) for ids, ends in (one, other)]
    return [at for at, (a, b) in enumerate(zip(*both, strict=True)) if not np.array_equal(a, b)]


def _compare(codes: Sequence[int], one: Encode, other: Encode) -> list[int]:
    """Return the characters that are treated differently, ascending."""
    contexts = {chr(code): _context(chr(code), chr(near)) for code, near in pairwise([*codes, codes[0]])}
    groups = [list(contexts)[first : first + _TOGETHER] for first in range(0, len(contexts), _TOGETHER)]
    found: set[str] = set()
    # many characters to a text, and one by one where the tokens differ
    for number in _differing(one, other, ["".join(map(contexts.__getitem__, group)) for group in groups]):
        group = groups[number]
        found.update(group[at] for at in _differing(one, other, [contexts[each] for each in group]))
    pairs = list(chain.from_iterable(map(_decompositions, contexts)))
    found.update(pairs[at][0] for at in _differing(one, other, pairs))
    return sorted(map(ord, found))


def _context(character: str, near: str) -> str:
    """Return a text that shows the class of a character, and whether it is a mark; `near` is mostly of its script.

    Subtle: a mark of any class but 0 is sorted between U+0345, of the last class, and U+0334, of the first.
    """
    c = character
    return f"a{c}b {c}'s  {c}\n{c}\n\n1{c}2 !{c}?\t{c}{c}{near}{c}a\u0345{c}\u0334"


def _decompositions(character: str) -> Iterable[str]:
    """Return what composes to a character: a base and a mark, and everything if the base is composed, too."""
    parts = unicodedata.decomposition(character).split()
    if len(parts) == 2 and not parts[0].startswith("<"):
        yield "".join(chr(int(part, 16)) for part in parts)
        yield unicodedata.normalize("NFD", character)


def _differing(one: Encode, other: Encode, texts: Sequence[str]) -> list[int]:
    return differing(one(texts), other(texts))


def _cache_folder() -> Path:
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "packer"
    return Path(os.environ.get(CACHE_DIR) or usual)


def _read(path: Path) -> list[int] | None:
    """Read a result; None if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    is_valid = isinstance(found, list) and all(type(code) is int and 0 <= code <= sys.maxunicode for code in found)
    return found if is_valid else None


def _write(path: Path, found: list[int]) -> None:
    """Keep a result, where a folder can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
            file.write(json.dumps(found))
        Path(file.name).replace(path)
    except OSError:
        return
