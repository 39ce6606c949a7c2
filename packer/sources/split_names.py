"""Splits that file names tell, recognised as `datasets` recognises them in a folder or a repository on the Hub."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

from packer.errors import OtherSourceError
from packer.sources.hugging_face import choose_split

_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_SEPARATOR = "[-._ 0-9]"

log = logging.getLogger(__name__)


def splits_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort files into splits by their names.

    The first of three rules that fits any file decides for all of them, and files that it does not fit are in no split:

    1. shards, as in `data/train-00000-of-00002.parquet`: any word is a split;
    2. a folder named after a split, as in `train/a.jsonl` or `en-dev.v2/x/a.jsonl`;
    3. a file that is, as in `test.jsonl`, `web_train_3.parquet` or `sub/valid-0.arrow`.

    Args:
        names: relative to the source, with "/" between folders.

    Returns:
        The files of each split, in the order of the names: train, validation and test first, the others sorted. A file
        whose name has the words of two splits is in both. Empty where no name tells a split.
    """
    names = list(names)
    shards = {name: match[1] for name in names if (match := _SHARD.fullmatch(name))}
    if shards:
        found = set(shards.values())
        ordered = [split for split in _KEYWORDS if split in found] + sorted(found - {*_KEYWORDS})
        return {split: [name for name in shards if shards[name] == split] for split in ordered}
    for rule in (_folder_rule, _file_rule):
        patterns = {split: re.compile("|".join(map(rule, words))) for split, words in _KEYWORDS.items()}
        splits = {split: [name for name in names if pattern.search(name)] for split, pattern in patterns.items()}
        if any(splits.values()):
            return {split: files for split, files in splits.items() if files}
    return {}


def files_of_split(folder: str, files: int, splits: Mapping[str, Sequence[str]], split: str | None) -> Sequence[str]:
    """The files of the split that is asked for, or of the only one there is.

    Args:
        folder: the source, for messages.
        files: how many there are, those of no split included.
        splits: the files of each split, as from `splits_of`.
        split: which one; may be None where there is one split and all files are in it.

    Raises:
        OtherSourceError: no such split, or it must be chosen.
    """
    outside = files - len({name for names in splits.values() for name in names})
    if split is None and len(splits) > 1:
        raise OtherSourceError(
            f"{folder}: its files are {len(splits)} splits ({', '.join(splits)})",
            f"choose one, as in --split {next(iter(splits))}, or name files with a glob",
        )
    if split is None and outside:
        ((only, names),) = splits.items()
        raise OtherSourceError(
            f"{folder}: by their names {len(names)} of {files} files are the split {only}, as {names[0]}, and "
            f"{outside} of no split",
            f"take that split with --split {only}, or name files with a glob, as in '{folder}/**'",
        )
    chosen = choose_split(folder, list(splits), split)
    if outside:
        log.info("%d of %d files in %s are of no split by their names, and are left out", outside, files, folder)
    return splits[chosen]


def _folder_rule(word: str) -> str:
    return rf"(?:^|/)(?:[^/]*{_SEPARATOR})?{word}(?:{_SEPARATOR}[^/]*)?/"


def _file_rule(word: str) -> str:
    return rf"(?:^|/)(?:[^/]*{_SEPARATOR})?{word}{_SEPARATOR}[^/]*$"
