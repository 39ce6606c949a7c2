"""The fields of manifest.json: their kinds and limits, and how they must agree with each other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from packer.facts import Generation, JsonRecord
from packer.facts.json_record import Count, Positive, read_fields, whole_number
from packer.options import PackOptions
from packer.shards.file_names import MOST_SHARDS, all_shard_names, rejected_name, table_name

FORMAT_VERSION = 5
"""Version of the format on disk. Versions 1 to 4 were never released."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry(JsonRecord):
    """Entry of a shard in the manifest."""

    file: str
    """File name, in the folder of the manifest."""

    rows: Positive
    """Number of rows."""

    tokens: Count
    """Number of tokens, without padding."""

    trained: Count
    """Labels that are not -100; 0 if no labels are written."""

    untrained_segments: Count
    """Segments without a trained token; 0 if no labels are written."""

    bytes: Count
    """Size of the file."""

    xxh3_128: str
    """Hash of the file, hexadecimal."""


_FIELDS = {
    "options": PackOptions,
    "generations": tuple[Generation, ...],
    "shards": tuple[ShardEntry, ...],
    "files": Mapping[str, str],
}
_TABLE = _FIELDS | {"shards": whole_number(1, MOST_SHARDS)}


def manifest_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a manifest, read and checked one by one; it has the entries of shards, or their number.

    Raises:
        KeyError: a field is missing.
        TypeError: a field holds a value of the wrong type or out of range.
        PackerError: options cannot be combined.
    """
    return read_fields(content, _TABLE if type(content.get("shards")) is int else _FIELDS)


def check_together(content: Mapping[str, Any], generations: tuple[Generation, ...]) -> None:
    """Check that the sources and the totals agree with the options, and with each other.

    Raises:
        TypeError: they contradict each other.
    """
    _check_generations(content, generations)
    for number, part in enumerate(content["generations"]):
        _check_part(content["options"], part, rejected_name(number) in content["files"])


def _check_generations(content: Mapping[str, Any], generations: tuple[Generation, ...]) -> None:
    """Check that the generations have the shards of the manifest, and that several are no mixtures."""
    if not generations:
        raise TypeError("there are no generations")
    if len(generations) > 1 and any(generation.source.mixture for generation in generations):
        raise TypeError("a generation is a mixture")
    shards, counted = content["shards"], sum(generation.shards for generation in generations)
    listed = len(shards) if isinstance(shards, list) else shards
    if listed != counted:
        raise TypeError(f"the generations have {counted:,} shards, and the manifest {listed:,}")


def _check_part(options: Mapping[str, Any], part: Mapping[str, Any], has_rejected: bool) -> None:
    """Check that the source and the totals of a generation agree with the options."""
    source, totals = part["source"], part["totals"]
    weights, mixture = options.get("weights", []), source.get("mixture", [])
    if len(weights) != len(mixture):
        raise TypeError(f"options.weights has {len(weights)} values, source.mixture has {len(mixture)}")
    if "groups" in totals and options.get("group_by") is None:
        raise TypeError("there is totals.groups, but no options.group_by")
    skips, reasons = options.get("on_error") == "skip", totals.get("documents_rejected")
    if skips != (reasons is not None) or skips != has_rejected:
        raise TypeError(
            f"options.on_error is {options.get('on_error', 'error')}, which contradicts totals.documents_rejected or "
            f"whether there is a {rejected_name(0)}"
        )
    if any("text" in each for each in (source, *mixture)) and options.get("tokenizer") is None:
        raise TypeError("the source is text, but there is no options.tokenizer")


def check_names(content: Mapping[str, Any], generations: tuple[Generation, ...]) -> None:
    """Check that every file name has the expected form, so that none points outside the folder.

    Raises:
        TypeError: a name has another form.
    """
    shards = content["shards"]
    if isinstance(shards, list):
        names = all_shard_names(*accumulate(part.shards for part in generations))
        for number, (shard, expected) in enumerate(zip(shards, names, strict=True)):
            if shard["file"] != expected:
                raise TypeError(f"shard {number} is named {json.dumps(shard['file'])[:60]}, not {expected}")
    for name in content["files"]:
        if not _PLAIN_NAME.fullmatch(name):
            raise TypeError(f"a file is named {json.dumps(name)[:60]}, which is not a plain file name")


def table_listed(content: Mapping[str, Any]) -> tuple[str, str, list[int]] | None:
    """Return the name and hash of the file with the entries of the shards; None if these are in the manifest.

    The third value is the number of shards that the dataset had after each generation.

    Raises:
        KeyError, TypeError, PackerError: the content has no such hash, or is damaged.
    """
    if type(content.get("shards")) is not int:
        return None
    manifest_fields(content)
    parts = content["generations"]
    name = table_name(len(parts) - 1)
    return name, content["files"][name], list(accumulate(part["shards"] for part in parts))
