"""Find the files or the table of Hugging Face datasets: saved folders, `datasets` objects, and the Hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from packer.errors import OtherSourceError, PackerError, SourceError, first_line, hub_is_unreachable
from packer.inputs.arrow_files import ArrowReader
from packer.inputs.documents import SourceFile, reading
from packer.inputs.formats import require_regular
from packer.inputs.token_tables import TableInMemory
from packer.stores import AnyPath, pinned
from packer.stores.paths import split_configuration

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from datasets.table import Table as DatasetsTable

STATE, SPLITS = "state.json", "dataset_dict.json"
"""Files that `save_to_disk` writes into the folder of a `Dataset`, and of a `DatasetDict`."""

REPORT = "tokenized.json"
"""Report that `packer tokenize` adds to the folder of a dataset."""

_TIMEOUT = 10  # seconds for the Hub to answer


class Found(NamedTuple):
    """The files or the table of a source, not opened yet."""

    name: str
    files: list[SourceFile]

    saved: bool = False
    """Whether the files are Arrow streams written by `save_to_disk`."""

    table: DatasetsTable | None = None
    """Table of `datasets` instead of files."""

    fingerprint: str | None = None
    """Fingerprint of the content of a dataset in memory; None for files."""

    pad_id: int | None = None
    """Padding token of the tokenizer, from the report of `packer tokenize`."""


def find_saved(folder: AnyPath, split: str | None) -> Found:
    """Find the Arrow streams of a folder that `save_to_disk` wrote, without importing `datasets`.

    The split names a dataset in a `DatasetDict`, and may be None if there is only one. A PackerError is raised if the
    folder has an indices mapping beside the data, as versions of `datasets` before 2 saved it.
    """
    inside = ""
    if (folder / SPLITS).exists():
        splits = _read_json(folder / SPLITS).get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise SourceError(f"{folder / SPLITS}: no list of 'splits'; save the dataset again")
        _require_plain(folder / SPLITS, splits)
        inside = f"{choose_split(str(folder), splits, split)}/"
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
    """Whether this is a `datasets.Dataset` or `DatasetDict`."""
    datasets = sys.modules.get("datasets")  # imported by whoever made the object
    return datasets is not None and isinstance(source, (datasets.Dataset, datasets.DatasetDict))


def find_table(dataset: Dataset | DatasetDict, split: str | None, name: str = "dataset") -> Found:
    """Find the Arrow table of a `datasets` object. Rows that `shuffle` or `filter` chose are written first by it."""
    if isinstance(dataset, dict):
        chosen = choose_split(name, list(dataset), split)
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
    """Download a dataset of the Hugging Face Hub, as in "org/name" or "org/name:config", or find it in the cache."""
    import datasets
    from huggingface_hub import HfApi, constants

    hub_id, config = split_configuration(source)
    missing = f"{hub_id}: neither a local path nor a dataset on the Hugging Face Hub"
    if not constants.HF_HUB_OFFLINE:
        try:  # `load_dataset` alone retries for 23 s before it gives up
            HfApi().dataset_info(hub_id, timeout=_TIMEOUT)
        except Exception as error:  # types differ by version and HTTP library
            if hub_is_unreachable(error):
                raise PackerError(
                    f"{hub_id} is not a local path, and the Hugging Face Hub cannot be reached ({first_line(error)}); "
                    "download it where there is a network, and name its folder (HF_HUB_OFFLINE=1 uses past downloads)"
                ) from error
            raise PackerError(f"{missing} ({first_line(error)}); check the spelling") from error
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
        raise PackerError(f"{missing} that can be loaded ({' '.join(str(error).split())})") from error
    name = hub_id if builder.config.name == "default" else f"{hub_id}:{builder.config.name}"
    try:
        return find_table(builder.as_dataset(split), None, name)
    except ValueError:
        choose_split(name, list(builder.info.splits), split)
        raise


def choose_split(name: str, splits: Sequence[str], split: str | None) -> str:
    """Return the requested split, or the only one. Raises an OtherSourceError if there is no such split."""
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
    """Return the error for a split requested from a source without splits."""
    return OtherSourceError(f"split {split}: {what} without splits", "leave --split out")


def table_reader(found: Found) -> ArrowReader:
    """Return a reader of a table in memory."""
    assert found.table is not None
    table: pa.Table = found.table.table
    return ArrowReader(
        file=SourceFile(name=found.name, bytes=table.nbytes, path=None),
        fields=table.schema,
        rows=len(table),
        table=TableInMemory.of(found.table, table.column_names),
    )


def _file_names(state: AnyPath, files: object) -> list[str]:
    """Return the file names that a state.json lists; entries that also say "skip" or "take" are refused."""
    entries = files if isinstance(files, list) else [None]
    names = [file["filename"] for file in entries if isinstance(file, dict) and [*file] == ["filename"]]
    if len(names) < len(entries) or not all(isinstance(name, str) for name in names):
        raise SourceError(f"{state}: its list of data files is not as save_to_disk writes it; save the dataset again")
    _require_plain(state, names)
    return names


def _require_plain(file: AnyPath, names: Sequence[str]) -> None:
    """Raise a SourceError if a listed name leads out of the folder, before any of the files is opened."""
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
