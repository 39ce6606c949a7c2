"""Find what `datasets` would read: saved datasets, objects, the Hub, and configurations and splits in a folder.

Configurations are defined in the folder's README.md. Without configurations, file names determine the splits.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from packer.errors import UNREADABLE, OtherSourceError, PackerError, SourceError
from packer.shards.files import MANIFEST
from packer.sources.documents import Found, SourceFile, reading
from packer.sources.formats import is_data, require_regular
from packer.stores import AnyPath, pinned
from packer.stores.hub import has_files
from packer.stores.paths import split_configuration

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


STATE, SPLITS = "state.json", "dataset_dict.json"
"""Files that `save_to_disk` writes to the folder of a `Dataset` and of a `DatasetDict`."""

PACKED_FILES = {MANIFEST, STATE}
"""Files that every packed dataset has."""

PACKED_ALREADY = "is packed already: pack the source that it was packed from, or what `packer tokenize` wrote"

REPORT = "tokenized.json"
"""Report that `packer tokenize` adds to the folder of a dataset."""


def find_saved(folder: AnyPath, split: str | None) -> Found:
    """Find the Arrow streams of a folder that `save_to_disk` wrote, without importing `datasets`.

    The split names a dataset in a `DatasetDict`, and may be None if there is only one. Raises a PackerError if the
    folder has an indices mapping next to the data, as `datasets` before version 2 saved it.
    """
    inside = ""
    if (folder / SPLITS).exists():
        splits = _read_json(folder / SPLITS).get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise SourceError(f"{folder / SPLITS}: no list of 'splits'; save the dataset again")
        _require_plain(folder / SPLITS, splits)
        inside = f"{_choose_split(str(folder), splits, split)}/"
    state = _read_json(folder / inside / STATE)
    if not inside and split is not None and split != state.get("_split"):
        raise no_splits(f"{folder} is a single dataset", split)
    names = _file_names(folder / inside / STATE, state.get("_data_files"))
    paths = [(pinned(folder / inside / name), inside + name) for name in names]
    for path, name in paths:
        require_regular(path, name)
    files = [SourceFile.of(path, name) for path, name in paths]
    if state.get("_indices_data_files"):
        raise PackerError(
            f"{folder / inside / STATE}: an indices mapping beside the data says which rows are used: load the dataset "
            "and save it again, which writes these rows"
        )
    pad_id = _read_json(folder / REPORT).get("pad_id") if (folder / REPORT).exists() else None
    pad_id = pad_id if isinstance(pad_id, int) and pad_id >= 0 else None
    return Found(str(folder / inside), files, saved=True, pad_id=pad_id)


def is_dataset(source: object) -> bool:
    """Whether `source` is a `datasets.Dataset` or `DatasetDict`."""
    datasets = sys.modules.get("datasets")  # already imported by the code that made the object
    return datasets is not None and isinstance(source, (datasets.Dataset, datasets.DatasetDict))


def find_table(dataset: Dataset | DatasetDict, split: str | None, name: str = "dataset") -> Found:
    """Find the Arrow table of a `datasets` object.

    If rows were shuffled or filtered, `datasets` first writes them in their new order.
    """
    if isinstance(dataset, dict):
        chosen = _choose_split(name, list(dataset), split)
        return find_table(dataset[chosen], None, f"{name}/{chosen}")
    if split is not None and split != str(dataset.split):
        raise no_splits(f"{name} is a single dataset", split)
    if dataset.format["type"] == "custom":
        raise PackerError(
            f"{name} has a transform (set_transform), which packing does not apply: apply it with map, or remove it "
            "with reset_format"
        )
    if dataset._indices is not None:
        dataset = dataset.flatten_indices()
    return Found(name, [], table=dataset.data, fingerprint=dataset._fingerprint)


def find_on_hub(source: str, split: str | None) -> Found:
    """Download a dataset from the Hugging Face Hub ("org/name" or "org/name:config"), or find it in the cache."""
    import datasets

    hub_id, config = split_configuration(source)
    if has_files(hub_id, PACKED_FILES):  # asks the Hub first, because `load_dataset` retries for 23 s
        raise PackerError(f"{hub_id} {PACKED_ALREADY}")
    try:
        builder = datasets.load_dataset_builder(hub_id, config or None)
        builder.download_and_prepare()
    except Exception as error:
        names: list[str] = []
        with suppress(Exception):
            names = datasets.get_dataset_config_names(hub_id)
        if config not in names and len(names) > 1:
            raise PackerError(
                f"{hub_id}: {'there is no such configuration' if config else 'has several configurations'} "
                f"({', '.join(names)}); name one, as in {hub_id}:{names[0]}"
            ) from error
        reason = " ".join(str(error).split())
        raise PackerError(
            f"{hub_id}: neither a local path nor a dataset on the Hugging Face Hub that can be loaded ({reason})"
        ) from error
    name = hub_id if builder.config.name == "default" else f"{hub_id}:{builder.config.name}"
    try:
        return find_table(builder.as_dataset(split), None, name)
    except ValueError:
        _choose_split(name, list(builder.info.splits), split)
        raise


def _choose_split(name: str, splits: Sequence[str], split: str | None) -> str:
    """Return the requested split, or the only one. Raises an OtherSourceError if it does not exist."""
    found = ", ".join(splits) or "none"
    if split is None and len(splits) == 1:
        return splits[0]
    if split is None:
        raise OtherSourceError(
            f"{name}: has {len(splits)} splits ({found})", f"choose one, as in --split {[*splits, 'train'][0]}"
        )
    if split not in splits:
        raise OtherSourceError(f"split {split}: {name} has no such split (found: {found})", "choose one of these")
    return split


def no_splits(what: str, split: str) -> OtherSourceError:
    """Return the error for requesting a split of a source without splits."""
    return OtherSourceError(f"split {split}: {what} without splits", "leave --split out")


def _file_names(state: AnyPath, files: object) -> list[str]:
    """Return the file names in a state.json. Entries with "skip" or "take" are refused."""
    entries = files if isinstance(files, list) else [None]
    names = [file["filename"] for file in entries if isinstance(file, dict) and [*file] == ["filename"]]
    if len(names) < len(entries) or not all(isinstance(name, str) for name in names):
        raise SourceError(f"{state}: its list of data files is not as save_to_disk writes it; save the dataset again")
    _require_plain(state, names)
    return names


def _require_plain(file: AnyPath, names: Sequence[str]) -> None:
    """Raise a SourceError if a listed name leads out of the folder. Call it before any file is opened."""
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise SourceError(f"{file}: names {name!r}, not a plain name in this folder; save the dataset again")


def _read_json(path: AnyPath) -> dict[str, object]:
    require_regular(path, str(path))
    with reading(str(path)):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise SourceError(f"{path}: not a JSON object; save the dataset again")
        return content


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
    """A named configuration: some files of a folder, in splits. Without patterns, file names determine the splits."""

    name: str
    is_default: bool
    folder: str  # folder to which patterns are relative
    patterns: Mapping[str, Sequence[str]] | None  # patterns for the files of each split


def configurations_in(folder: AnyPath) -> dict[str, Configuration]:
    """Return the configurations in a folder's README.md. Raises a PackerError if they are malformed."""
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
    """Return the configuration with this name; without a name, the only one or the default."""
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
    """Return the files of a split of a configuration, in its order; `names` are all files in its folder.

    Raises a PackerError if a pattern matches no file, or if two patterns match one file; checks the split like
    `_choose_split`.
    """
    before = "".join(f"{part}/" for part in chosen.folder.split("/") if part not in ("", "."))
    patterns = chosen.patterns
    if patterns is None:
        inside = [file.removeprefix(before) for file in _matching(f"{before}**", names)]
        patterns = splits_of(inside) or {"train": inside}
    split, found = _choose_split(name, list(patterns), split), dict[str, None]()
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
    """Return the names that a pattern matches: a file, all files in a folder, or a glob, which matches only data."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if "/".join(parts) in names:
        return ["/".join(parts)]
    parts += [] if any(wildcard in pattern for wildcard in "*?[") else ["**"]
    special = sum(part.startswith("__") for part in parts[:-1])  # such as __pycache__; a glob must name them
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

    Three rules are tried in order, and the first one that matches any file is used. Files that it does not match are in
    no split:

    1. shards such as `data/train-00000-of-00002.parquet`; any word may be a split;
    2. folders named after a split, such as `train/a.jsonl` or `en-dev.v2/x/a.jsonl`;
    3. files named after a split, such as `test.jsonl`, `web_train_3.parquet` or `sub/valid-0.arrow`.

    The splits train, validation and test come first, the others are sorted; files keep the order of `names`. A file
    named after two splits is in both. If no rule matches, there are no splits.
    """
    names = list(names)
    shards = {name: match[1] for name in names if (match := _SHARD.fullmatch(name))}
    if shards:
        found = set(shards.values())
        ordered = [split for split in _KEYWORDS if split in found] + sorted(found - {*_KEYWORDS})
        return {split: [name for name in shards if shards[name] == split] for split in ordered}
    for after in (rf"(?:{_SEPARATOR}[^/]*)?/", rf"{_SEPARATOR}[^/]*$"):  # words in a folder name, then in a file name
        begin = rf"(?:^|/)(?:[^/]*{_SEPARATOR})?"
        patterns = {split: re.compile(f"{begin}(?:{'|'.join(words)}){after}") for split, words in _KEYWORDS.items()}
        splits = {split: [name for name in names if pattern.search(name)] for split, pattern in patterns.items()}
        if any(splits.values()):
            return {split: files for split, files in splits.items() if files}
    return {}


def files_of_split(folder: str, files: int, splits: Mapping[str, Sequence[str]], split: str | None) -> Sequence[str]:
    """Return the files of the requested split, or of the only one. `files` is the total number of files.

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
    chosen = _choose_split(folder, list(splits), split)
    if outside:
        log.info("%d of %d files in %s are in no split by their names, and are left out", outside, files, folder)
    return splits[chosen]
