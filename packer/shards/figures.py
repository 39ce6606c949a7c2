"""The figures of a manifest: whether they agree with each other, with the small files, and with what the rows hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import OrderAlgorithm, get_algorithm
from packer.algorithms.bounds import lower_bound, token_bound
from packer.errors import PackerError
from packer.facts import Totals
from packer.options import PackOptions
from packer.shards.files import hash_file
from packer.shards.manifest import Manifest, datasets_files


def differences(totals: Totals, counted: Mapping[str, object], by: str) -> Iterator[str]:
    """Yield each total of a manifest that is not what was counted, a sentence each.

    Args:
        totals: those of the manifest.
        counted: what they should be, as in the file; totals that are not here are not looked at.
        by: what was counted, as in "the rows".
    """
    return _differences(totals.to_dict(), counted, by, "")


def _differences(told: Mapping[str, object], counted: Mapping[str, object], by: str, name: str) -> Iterator[str]:
    for key, value in counted.items():
        where, found = f"{name}{key}", told.get(key)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            yield from _differences(found, value, by, f"{where}.")
        elif found != value:
            yield f"{where} is {_shown(found)} in the manifest, {_shown(value)} by {by}"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)[:60]


def manifest_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield what does not agree in a manifest, and in the files for `datasets` beside it, a sentence each."""
    totals, shards = manifest.totals, manifest.shards
    rows, tokens, trained = (sum(getattr(entry, name) for entry in shards) for name in ("rows", "tokens", "trained"))
    if trained != totals.tokens_trained:
        yield f"the shards train {trained:,} tokens, the manifest says {totals.tokens_trained:,}"
    if rows != totals.packs:
        yield f"the shards have {rows:,} rows, the manifest says {totals.packs:,}"
    if tokens != totals.tokens_packed:
        yield f"the shards have {tokens:,} tokens, the manifest says {totals.tokens_packed:,}"
    counted = totals.tokens_packed - totals.tokens_repeated + totals.tokens_lost
    if counted != totals.tokens:
        yield f"{counted:,} tokens are accounted for, the source had {totals.tokens:,}"
    untrained = sum(entry.untrained_segments for entry in shards)
    yield from differences(totals, {"segments_untrained": untrained}, "the shards")
    if rows:
        yield from differences(totals, {"efficiency": tokens / (rows * manifest.max_len)}, "the shards")
    pools = list(accumulate((entry.rows for entry in reversed(shards)), initial=0))
    if totals.pool_packs not in pools:
        yield f"pool_packs is {totals.pool_packs:,} in the manifest, which no number of last shards holds"
    for name, content in datasets_files(manifest.source, [entry.file for entry in shards]).items():
        path = folder / name
        if name not in manifest.files:
            yield f"{name} is not named in the manifest"
        elif path.is_file() and path.read_bytes() != content and hash_file(path) == manifest.files[name]:
            yield f"{name} does not name the shards of the manifest"  # else it was changed after packing


def row_faults(manifest: Manifest, items: NDArray[np.int64]) -> Iterator[str]:
    """Yield the figures that are not those of the rows, a sentence each.

    Args:
        manifest: of the dataset.
        items: (max_len + 1,) segments of every extent that the rows hold; of pairs, both sides as one.
    """
    segments = int(items.sum()) * (2 if manifest.options.pairs else 1)
    yield from differences(manifest.totals, {"segments": segments}, "the rows")
    told, packs = manifest.totals.lower_bound, manifest.packs
    if told > packs:
        yield f"lower_bound is {told:,} in the manifest, and there are {packs:,} rows"
    try:
        least, is_exact = bound_of_rows(manifest.options, items)
    except PackerError as error:
        yield str(error)
        return
    if told < least or (is_exact and told != least):
        yield f"lower_bound is {told:,} in the manifest, {least:,} by the rows"


def bound_of_rows(options: PackOptions, items: NDArray[np.int64]) -> tuple[int, bool]:
    """Rows that items need at least, and whether the lower bound of a manifest is that one and no better one.

    Some algorithms prove a better bound, groups may need more rows, and a document that may be cut anywhere fewer.

    Args:
        options: those of the manifest.
        items: as of `row_faults`.

    Raises:
        PackerError: there is no such algorithm.
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
