"""Sort files into splits by their names, as `datasets` does in a folder or a repository on the Hub."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

from packer.errors import OtherSourceError
from packer.sources.files.hugging_face import choose_split

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

    The first of three rules that matches any file is applied to all of them; files that it does not match are in no
    split:

    1. shards such as `data/train-00000-of-00002.parquet`, in which any word is a split;
    2. folders named after a split, such as `train/a.jsonl` or `en-dev.v2/x/a.jsonl`;
    3. files named after a split, such as `test.jsonl`, `web_train_3.parquet` or `sub/valid-0.arrow`.

    Args:
        names: file names relative to the source, with "/" between folders.

    Returns:
        Files of each split, in the order of `names`. The splits train, validation and test come first, the others are
        sorted. A file that is named after two splits is in both. Empty if no file is named after a split.
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
    """Return the files of the requested split, or of the only one.

    Args:
        folder: name of the source in messages.
        files: number of files, including those in no split.
        splits: files of each split, from `splits_of`.
        split: name of the split; may be None if all files are in one split.

    Raises:
        OtherSourceError: the split does not exist, or must be chosen.
    """
    outside = files - len({name for names in splits.values() for name in names})
    if split is None and len(splits) > 1:
        raise OtherSourceError(
            f"{folder}: its files form {len(splits)} splits ({', '.join(splits)})",
            f"choose one, as in --split {next(iter(splits))}, or name files with a glob",
        )
    if split is None and outside:
        ((only, names),) = splits.items()
        raise OtherSourceError(
            f"{folder}: by their names, {len(names)} of {files} files are in the split {only}, such as {names[0]}, and "
            f"{outside} in no split",
            f"choose that split with --split {only}, or name files with a glob, as in '{folder}/**'",
        )
    chosen = choose_split(folder, list(splits), split)
    if outside:
        log.info("%d of %d files in %s are in no split by their names, and are left out", outside, files, folder)
    return splits[chosen]


def _folder_rule(word: str) -> str:
    return rf"(?:^|/)(?:[^/]*{_SEPARATOR})?{word}(?:{_SEPARATOR}[^/]*)?/"


def _file_rule(word: str) -> str:
    return rf"(?:^|/)(?:[^/]*{_SEPARATOR})?{word}{_SEPARATOR}[^/]*$"
