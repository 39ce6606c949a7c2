"""Read rejected.jsonl, the list of the records that are left out of an output, and check the counts in a manifest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from packer.errors import PackerError
from packer.facts import RejectedRecord
from packer.shards.manifest import Manifest
from packer.stores import AnyPath


def read_rejected(path: AnyPath) -> Iterator[RejectedRecord]:
    """Yield the rejected records that a file lists.

    Raises:
        PackerError: a line is damaged.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = RejectedRecord.from_dict(json.loads(line))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise PackerError(f"{path} line {number} is damaged ({error}): restore it") from None
            yield record


def rejected_faults(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each reason that the list and the totals of the manifest count differently.

    A mixture counts a document once per copy, and may not take it at all, so its counts are not compared.
    """
    recorded = manifest.totals.documents_rejected
    if recorded is None or manifest.options.weights:
        return
    try:
        counted = Counter(record.reason for record in read_rejected(folder / manifest.rejected_name))
    except PackerError as error:
        yield str(error)
        return
    for reason in dict.fromkeys([*recorded, *counted]):
        one, other = recorded.get(reason, 0), counted[reason]
        if one != other:
            origin = manifest.rejected_name
            yield f"documents_rejected.{reason} is {one:,} in the manifest, {other:,} computed from {origin}"
