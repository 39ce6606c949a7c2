"""Check the counts in a manifest against each other, against the small files, and against the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.algorithms.bounds import lower_bound, token_bound
from packer.errors import PackerError
from packer.facts import Totals
from packer.options import PackOptions
from packer.shards.files import hash_file
from packer.shards.generations import in_generation, parts_of
from packer.shards.manifest import Manifest
from packer.shards.manifest_fields import ShardEntry
from packer.shards.shard_table import column_of, files_beside
from packer.stores import AnyPath


def differences(totals: Totals, counted: Mapping[str, object], origin: str) -> Iterator[str]:
    """Yield a sentence for each total of a manifest that differs from a new count.

    Args:
        totals: totals of the manifest.
        counted: correct totals by name, as in the file; others are not compared.
        origin: what was counted, as in "the rows".
    """
    return _compare(totals.to_dict(), counted, origin, "")


def _compare(totals: Mapping[str, object], counted: Mapping[str, object], origin: str, parent: str) -> Iterator[str]:
    for key, value in counted.items():
        name, recorded = f"{parent}{key}", totals.get(key)
        if isinstance(value, Mapping) and isinstance(recorded, Mapping):
            yield from _compare(recorded, value, origin, f"{name}.")
        elif recorded != value:
            yield f"{name} is {_formatted(recorded)} in the manifest, {_formatted(value)} computed from {origin}"


def _formatted(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)[:60]


def manifest_faults(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each contradiction within a manifest, or with the files for `datasets`."""
    for part in parts_of(manifest):
        for fault in _part_faults(part):
            yield in_generation(part, fault)
    for name, content in files_beside(manifest).items():
        path = folder / name
        if name not in manifest.files:
            yield f"{name} is not listed in the manifest"
        elif path.is_file() and path.read_bytes() != content and hash_file(path) == manifest.files[name]:
            yield f"{name} does not list the shards of the manifest"  # with another hash, it was changed after packing


def _part_faults(manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each contradiction within the description of a generation."""
    totals, shards = manifest.totals, manifest.shards
    rows, tokens, trained = (_total(shards, name) for name in ("rows", "tokens", "trained"))
    if trained != totals.tokens_trained:
        yield f"the shards have {trained:,} trained tokens, the manifest says {totals.tokens_trained:,}"
    if rows != totals.packs:
        yield f"the shards have {rows:,} rows, the manifest says {totals.packs:,}"
    if tokens != totals.tokens_packed:
        yield f"the shards have {tokens:,} tokens, the manifest says {totals.tokens_packed:,}"
    counted = totals.tokens_packed - totals.tokens_repeated + totals.tokens_lost
    if counted != totals.tokens:
        yield f"{counted:,} tokens are accounted for, the source had {totals.tokens:,}"
    untrained = _total(shards, "untrained_segments")
    yield from differences(totals, {"segments_untrained": untrained}, "the shards")
    if rows:
        yield from differences(totals, {"efficiency": tokens / (rows * manifest.max_len)}, "the shards")
    pools = accumulate(column_of(shards, "rows")[::-1].tolist(), initial=0)
    if totals.pool_packs not in pools:
        yield f"pool_packs is {totals.pool_packs:,} in the manifest, and no number of last shards has as many rows"
    if totals.documents_rejected is not None:
        rejected = {"rejected": sum(totals.documents_rejected.values())}
        yield from differences(totals, {"documents_dropped": rejected}, "documents_rejected")


def _total(shards: Sequence[ShardEntry], name: str) -> int:
    """Return the sum of a field of all entries, which may be above an int64 in a damaged manifest."""
    return sum(column_of(shards, name).tolist())


def totals_faults(manifest: Manifest, items: NDArray[np.int64]) -> Iterator[str]:
    """Yield a sentence for each total that the rows contradict.

    Args:
        manifest: manifest of the dataset, or of one of its generations.
        items: (max_len + 1,) segments of each extent in its rows; the two segments of a preference pair count as one.
    """
    segments = int(items.sum()) * (2 if manifest.options.pairs else 1)
    yield from differences(manifest.totals, {"segments": segments}, "the rows")
    recorded, packs = manifest.totals.lower_bound, manifest.packs
    if recorded > packs:
        yield f"lower_bound is {recorded:,} in the manifest, and there are {packs:,} rows"
    try:
        least, is_exact = bound_of_rows(manifest.options, items)
    except PackerError as error:
        yield str(error)
        return
    if recorded < least or (is_exact and recorded != least):
        yield f"lower_bound is {recorded:,} in the manifest, {least:,} computed from the rows"


def bound_of_rows(options: PackOptions, items: NDArray[np.int64]) -> tuple[int, bool]:
    """Return the fewest rows that segments need, and whether the manifest must record exactly this lower bound.

    It may record a higher one where an algorithm proves it or groups need more rows.

    Args:
        options: options in the manifest.
        items: (max_len + 1,) segments of each extent, as for `totals_faults`.

    Raises:
        PackerError: the algorithm is unknown.
    """
    algorithm = get_algorithm(options.algorithm)
    if isinstance(algorithm, OrderAlgorithm):
        keeps_whole, proves = algorithm.keeps_whole, False
    else:
        keeps_whole, proves = True, algorithm.proves
    is_grouped = options.group_by is not None
    if not keeps_whole or (is_grouped and options.group_mode != "apart"):
        return token_bound(items), False
    return lower_bound(items, options.max_items), not is_grouped and not proves
