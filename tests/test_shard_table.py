"""Entries of shards are written by field, so that a manifest of very many is read quickly."""

import json
import os
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.json_records import ShardEntry
from packer.shards.files import MANIFEST, all_shard_names
from packer.shards.manifest import ShardTable
from packer.shards.reader import read_manifest
from tests.helpers.commands import refused
from tests.helpers.packed_rows import make

COUNTS = st.integers(0, 2**40)
HASHES = st.binary(min_size=16, max_size=16).map(bytes.hex)
FIELDS = st.fixed_dictionaries({"rows": st.integers(1, 2**40), "tokens": COUNTS, "trained": COUNTS, "bytes": COUNTS})


@given(st.lists(st.tuples(FIELDS, COUNTS, HASHES), min_size=1, max_size=20))
def test_a_table_gives_back_the_entries(drawn):
    entries = [
        ShardEntry(
            file=name,
            untrained_segments=untrained,
            trained_later=untrained // 2,
            largest_id=untrained - 1,
            xxh3_128=digest,
            **fields,
        )
        for name, (fields, untrained, digest) in zip(all_shard_names(len(drawn)), drawn, strict=True)
    ]
    table = ShardTable.of(entries)
    again = ShardTable.from_dict(json.loads(json.dumps(table.to_dict())))
    assert again == table
    for one in (table, again):
        assert list(one) == entries
        assert [one[-1 - index] for index in range(len(entries))] == entries[::-1]
        for name in ("rows", "tokens", "trained", "untrained_segments", "trained_later", "largest_id", "bytes"):
            assert one.column(name).tolist() == [getattr(entry, name) for entry in entries]


WRONG = {
    "a list of records": (lambda shards: [shards], "shards is [{"),
    "no field": (lambda shards: {name: shards[name] for name in shards if name != "rows"}, "no 'rows'"),
    "no shards": (lambda shards: {name: [] for name in shards}, "is not a list of whole numbers"),
    "another length": (lambda shards: shards | {"rows": shards["rows"][1:]}, "different lengths"),
    "words": (lambda shards: shards | {"tokens": ["many"] * len(shards["rows"])}, "is not a list of whole numbers"),
    "lists": (lambda shards: shards | {"rows": [[1], [2, 3]]}, "shards.rows is not a list of whole numbers"),
    "far too large": (lambda shards: shards | {"bytes": [10**40] * len(shards["rows"])}, "not a list of whole numbers"),
    "negative": (lambda shards: shards | {"bytes": [-1] * len(shards["rows"])}, "bytes of shard 0 is -1, less than 0"),
    "no rows": (lambda shards: shards | {"rows": [0] * len(shards["rows"])}, "rows of shard 0 is 0, less than 1"),
    "sums": (lambda shards: shards | {"rows": [2**62] * len(shards["rows"])}, "rows add up to"),
    "no hashes": (lambda shards: shards | {"xxh3_128": ["x" * 32] * len(shards["rows"])}, "32 hexadecimal digits"),
    "numbers as hashes": (lambda shards: shards | {"xxh3_128": [5] * len(shards["rows"])}, "32 hexadecimal digits"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_entries_are_refused_in_one_line_that_names_the_field(tmp_path, kind):
    folder = make(tmp_path, shard_size=400)
    change, words = WRONG[kind]
    content = json.loads((folder / MANIFEST).read_bytes())
    content["shards"] = change(content["shards"])
    (folder / MANIFEST).write_text(json.dumps(content))
    for command in (("verify", folder), ("show", folder, 0), ("stats", folder), ("export", folder, "--to", "parquet")):
        refused(*command, words=(f"{folder / MANIFEST} is damaged (", words))
    with pytest.raises(PackerError, match="is damaged"):
        packer.load(folder)


@pytest.mark.nightly
def test_100_000_shards_are_loaded_within_two_seconds_and_their_folder_is_checked(tmp_path):
    """The shards are links to a few files, of which a file system may allow only tens of thousands each."""
    folder, many = make(tmp_path, shard_size=400), tmp_path / "many"
    manifest = read_manifest(folder)
    first = [manifest.shards[number] for number in range(4)]
    many.mkdir()
    entries = [first[number % 4] for number in range(100_000)]
    for number, (name, entry) in enumerate(zip(all_shard_names(len(entries)), entries, strict=True)):
        if number % 20_000 == 0:
            for each in first:
                shutil.copy(folder / each.file, tmp_path / f"{number}-{each.file}")
        os.link(tmp_path / f"{number // 20_000 * 20_000}-{entry.file}", many / name)
    manifest = replace(manifest, shards=ShardTable.of(entries))
    files = manifest.small_files()
    for name, content in files.items():
        (many / name).write_bytes(content)
    hashed = {name: xxhash.xxh3_128_hexdigest(content) for name, content in files.items()}
    (many / MANIFEST).write_bytes(replace(manifest, files=hashed).to_bytes())
    packer.load(folder)
    begun = time.process_time()
    dataset = packer.load(many)
    assert time.process_time() - begun < 2
    found = dataset.manifest
    assert len(found.shards) == 100_000
    assert found.shards[99_999] == replace(entries[-1], file="data-99999-of-100000.arrow")
    assert found.shards.column("rows").sum() == np.sum([entry.rows for entry in entries])
    assert len(dataset) == found.shards.column("rows").sum()
    last = sum(entry.rows for entry in first) - 1
    assert dataset[-1]["doc_ids"].tolist() == packer.load(folder)[last]["doc_ids"].tolist()
    (many / "data-77777-of-100000.arrow").unlink()
    with pytest.raises(PackerError, match=r"data-77777-of-100000.arrow is missing, but listed in the manifest"):
        packer.load(many)
    (many / "data-77777-of-100000.arrow").symlink_to(tmp_path)
    with pytest.raises(PackerError, match=r"data-77777-of-100000.arrow is a symbolic link"):
        read_manifest(many)
