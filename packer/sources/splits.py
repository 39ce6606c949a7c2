"""Which files of a folder are which split, as for `datasets`: by `configs` in its README.md, or by their names."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple

from packer.errors import UNREADABLE, OtherSourceError, PackerError
from packer.inputs.documents import reading
from packer.inputs.foreign_folders import SIDE_FILES
from packer.inputs.formats import ending_of
from packer.inputs.hugging_face import choose_split
from packer.stores import AnyPath

README = "README.md"
_FRONT_MATTER = re.compile(r"\s*---[\r\n]+([\S\s]*?)[\r\n]+---(?:\r\n|\n|$)")
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_SEPARATOR = "[-._ 0-9]"

log = logging.getLogger(__name__)


class Configuration(NamedTuple):
    """A name for some files of a folder, in splits. Without patterns, the names of files say what their split is."""

    name: str
    is_default: bool
    folder: str  # in which patterns begin
    patterns: Mapping[str, Sequence[str]] | None  # of the files of each split


def is_data(name: str) -> bool:
    """Whether a file, by its name, is data rather than a file beside it."""
    return bool(ending_of(name)) and name not in SIDE_FILES


def configurations_in(folder: AnyPath) -> dict[str, Configuration]:
    """Return the configurations that the README.md of a folder names. Raises a PackerError if they are malformed."""
    file = folder / README
    with reading(str(file)):
        text = file.read_bytes().decode(errors="replace") if file.is_file() else ""
    block = _FRONT_MATTER.match(text)
    if block is None or "configs" not in block[1]:
        return {}
    import yaml

    try:
        content = yaml.safe_load(block[1])
        entries = content.get("configs") if isinstance(content, dict) else None
        return {each.name: each for each in map(_configuration, entries or ())}
    except (yaml.YAMLError, *UNREADABLE) as error:
        raise PackerError(
            f"{file}: its configs, which say what files form which split, cannot be read "
            f"({' '.join(str(error).split())}); correct them, or name the files"
        ) from error


def _configuration(entry: Mapping[str, Any]) -> Configuration:
    name, folder, files = entry["config_name"], entry.get("data_dir") or "", entry.get("data_files")
    pairs = list(files.items()) if isinstance(files, dict) else [("train", files or ())]
    if isinstance(files, list) and any(isinstance(each, dict) for each in files):
        pairs = [(each["split"], each["path"]) for each in files]
    patterns = {split: [paths] if isinstance(paths, str) else paths for split, paths in pairs}
    texts = [name, folder, *patterns, *chain(*patterns.values())]
    if len(patterns) < len(pairs) or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"{name}: data_files are paths, or splits, each once, with their paths")
    return Configuration(name, bool(entry.get("default")), folder, None if files is None else patterns)


def choose_configuration(folder: str, found: Mapping[str, Configuration], name: str | None) -> Configuration:
    """Return the configuration of a name or, without a name, the only one or the default."""
    names = ", ".join(found) or "none"
    if name is not None:
        if name in found:
            return found[name]
        remedy = "name one of these" if found else f"leave :{name} out"
        raise PackerError(f"{folder}:{name}: there is no such configuration (found: {names}); {remedy}")
    chosen = [each for each in found.values() if len(found) == 1 or each.is_default or each.name == "default"]
    if len(chosen) != 1:
        raise PackerError(
            f"{folder}: its README.md names {len(found)} configurations ({names}), {len(chosen) or 'none'} of them as "
            f"the default; name one, as in {folder}:{next(iter(found))}"
        )
    return chosen[0]


def files_of_configuration(name: str, chosen: Configuration, names: Collection[str], split: str | None) -> list[str]:
    """Return the files of a split of a configuration, in its order, from the names of all files in its folder.

    Raises a PackerError if a pattern matches no file, or one that another matches, and for splits as `choose_split`.
    """
    before = "".join(f"{part}/" for part in chosen.folder.split("/") if part not in ("", "."))
    patterns = chosen.patterns
    if patterns is None:
        inside = [file.removeprefix(before) for file in _matching(f"{before}**", names)]
        patterns = splits_of(inside) or {"train": inside}
    split, found = choose_split(name, list(patterns), split), dict[str, None]()
    for pattern in patterns[split]:
        matching = [] if pattern.startswith("/") else _matching(before + pattern, names)
        if not matching or not found.keys().isdisjoint(matching):
            what = "files that another pattern matches" if matching else "no file in this folder"
            raise PackerError(
                f"{name}: its README.md gives {pattern} to the split {split}, which matches {what}; correct it, or "
                "name the files"
            )
        found |= dict.fromkeys(matching)
    return list(found)


def _matching(pattern: str, names: Collection[str]) -> list[str]:
    """Return the names that a pattern matches: a file, a folder with all inside, or a glob, which matches data only."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if "/".join(parts) in names:
        return ["/".join(parts)]
    parts += [] if any(wildcard in pattern for wildcard in "*?[") else ["**"]
    special = sum(part.startswith("__") for part in parts[:-1])  # folders of tools, which a glob must name
    split = [(name, name.split("/")) for name in names if is_data(name.rpartition("/")[2])]
    return [
        name for name, of in split if sum(part.startswith("__") for part in of[:-1]) == special and _fits(of, parts)
    ]


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    first, *rest = pattern
    if first == "**":
        return any(_fits(parts[start:], rest) for start in range(0 if rest else 1, len(parts) + 1))
    return "**" not in first and fnmatchcase(parts[0], first) and _fits(parts[1:], rest)


def splits_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort files, named relative to the source with "/" between folders, into splits by their names.

    The first of three rules that matches any file is applied to all of them; files that it does not match are in no
    split:

    1. shards such as `data/train-00000-of-00002.parquet`, in which any word is a split;
    2. folders named after a split, such as `train/a.jsonl` or `en-dev.v2/x/a.jsonl`;
    3. files named after a split, such as `test.jsonl`, `web_train_3.parquet` or `sub/valid-0.arrow`.

    The splits train, validation and test come first, the others are sorted; their files keep the order of `names`. A
    file that is named after two splits is in both. Without a match, there are no splits.
    """
    names = list(names)
    shards = {name: match[1] for name in names if (match := _SHARD.fullmatch(name))}
    if shards:
        found = set(shards.values())
        ordered = [split for split in _KEYWORDS if split in found] + sorted(found - {*_KEYWORDS})
        return {split: [name for name in shards if shards[name] == split] for split in ordered}
    for after in (rf"(?:{_SEPARATOR}[^/]*)?/", rf"{_SEPARATOR}[^/]*$"):  # the words in a folder's, then a file's name
        begin = rf"(?:^|/)(?:[^/]*{_SEPARATOR})?"
        patterns = {split: re.compile(f"{begin}(?:{'|'.join(words)}){after}") for split, words in _KEYWORDS.items()}
        splits = {split: [name for name in names if pattern.search(name)] for split, pattern in patterns.items()}
        if any(splits.values()):
            return {split: files for split, files in splits.items() if files}
    return {}


def files_of_split(folder: str, files: int, splits: Mapping[str, Sequence[str]], split: str | None) -> Sequence[str]:
    """Return the files of the requested split, or of the only one. `files` is the number of all files.

    Raises an OtherSourceError if the split does not exist, or must be chosen.
    """
    outside = files - len({name for names in splits.values() for name in names})
    if split is None and len(splits) > 1:
        raise OtherSourceError(
            f"{folder}: its files form {len(splits)} splits ({', '.join(splits)})",
            f"choose one, as in --split {next(iter(splits))}, or name the files",
        )
    if split is None and outside:
        ((only, names),) = splits.items()
        raise OtherSourceError(
            f"{folder}: by their names, {len(names)} of {files} files are in the split {only}, such as {names[0]}, and "
            f"{outside} in no split",
            f"choose that split with --split {only}, or name the files, as in {folder}/*",
        )
    chosen = choose_split(folder, list(splits), split)
    if outside:
        log.info("%d of %d files in %s are in no split by their names, and are left out", outside, files, folder)
    return splits[chosen]
