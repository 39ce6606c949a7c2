"""A packed dataset of several generations: each of them alone, some of them, and one more."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate

from packer.errors import PackerError
from packer.shards.manifest import Manifest, PartOfSet
from packer.shards.shard_table import ShardTable


def parts_of(manifest: Manifest) -> tuple[Manifest, ...]:
    """Return the description of each generation as if it were a dataset; `manifest` itself if there is only one."""
    if len(manifest.generations) == 1:
        return (manifest,)
    parts, first = [], PartOfSet()
    begins = (0, *manifest.shard_ends)
    for number, (generation, begin) in enumerate(zip(manifest.generations, begins, strict=False)):
        first = replace(first, generation=number)
        parts.append(
            replace(
                manifest,
                generations=(generation,),
                shards=manifest.shards[begin : begin + generation.shards],
                part=first,
            )
        )
        first = PartOfSet(row=first.row + generation.totals.rows, document=first.document + generation.source.documents)
    return tuple(parts)


def keys_of(manifest: Manifest) -> list[str]:
    """Return a hash of each generation: of the options, and the names, sizes and hashes of its shards.

    Those of the first generations stay the same when others are appended.
    """
    options = json.dumps(manifest.options.to_dict(), sort_keys=True).encode()
    sizes, hashes = manifest.shards.column("bytes"), manifest.shards.hashes
    keys, begin = [], 0
    for end in manifest.shard_ends:
        hashed = blake2b(options, digest_size=16)
        hashed.update(json.dumps([begin, end]).encode())  # from which the names of the shards follow
        hashed.update(sizes[begin:end].tobytes())
        hashed.update(hashes[begin:end].tobytes())
        keys.append(hashed.hexdigest())
        begin = end
    return keys


def in_generation(part: Manifest, sentence: str, *, source: object = None) -> str:
    """Return a sentence about a part of a dataset, with the number of its generation if there are several.

    `source` is the path or paths that the generation was compared with, if it was.
    """
    if part.part is None:
        return sentence
    at, compared = part.part, "" if source is None else f", compared with {source}"
    return f"generation {at.generation}, counted from row {at.row:,} and document {at.document:,}{compared}: {sentence}"


def documents_of_shard(manifest: Manifest, shard: int) -> range:
    """Return the numbers that the documents in a shard of a single source may have."""
    number = bisect_right(manifest.shard_ends, shard)
    before = sum(generation.source.documents for generation in manifest.generations[:number])
    first = manifest.first.document + before
    return range(first, first + manifest.generations[number].source.documents)


def first_generations(manifest: Manifest, generations: int | None) -> Manifest:
    """Return the description of the first generations (None: all), as it was before the others were appended.

    Raises a PackerError if there are not so many.
    """
    count = len(manifest.generations)
    if generations is None or generations == count:
        return manifest
    if not 1 <= generations <= count:
        raise PackerError(f"generations is {generations}: the dataset has {count}, choose 1 to {count}")
    chosen = manifest.generations[:generations]
    return replace(manifest, generations=chosen, shards=manifest.shards[: manifest.shard_ends[generations - 1]])


def with_generation(before: Manifest | None, added: Manifest) -> tuple[Manifest, Mapping[str, bytes]]:
    """Return the description of a dataset (None: empty) with one more generation, and the content of its small files.

    `added` is a dataset with the same options whose `files` are those that only it has.
    """
    from xxhash import xxh3_128_hexdigest

    generations = (*(before.generations if before else ()), *added.generations)
    ends = tuple(accumulate(generation.shards for generation in generations))
    shards = ShardTable.of([*(before.shards if before else ()), *added.shards], ends)
    grown = replace(added, generations=generations, shards=shards)
    files = grown.small_files()
    hashes = {name: xxh3_128_hexdigest(content) for name, content in files.items()}
    others = {**(before.files if before else {}), **added.files}
    rest = {name: digest for name, digest in others.items() if name not in hashes}
    return replace(grown, files={**hashes, **rest}), files
