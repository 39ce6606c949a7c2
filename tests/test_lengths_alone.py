"""Packing of lengths alone, and rows of document numbers for trainers that make their own examples."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.errors import PackerError
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.index_only import hashes
from tests.helpers.packed_rows import seal
from tests.helpers.writing import write_ipc

LENGTHS = np.random.default_rng(0).integers(0, 40, 400)


def write(path, lengths=LENGTHS, column="num_tokens", **columns):
    """Write a file of lengths; its ending says in which format."""
    table = pa.table({column: pa.array(lengths), **columns})
    if path.suffix == ".npy":
        np.save(path, lengths)
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=70)
    elif path.suffix == ".arrow":
        write_ipc(path, table, rows=90)
    elif path.suffix == ".csv":
        rows = [",".join(map(str, row.values())) for row in table.to_pylist()]
        path.write_text("\n".join([",".join(table.column_names), *rows, ""]))
    else:
        content = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def documents_in(folder):
    return sorted(segment for row in packer.rows(folder) for segment in row)


@pytest.fixture(scope="module")
def of_tokens(tmp_path_factory):
    """An index of documents with these lengths, and tokens."""
    folder = tmp_path_factory.mktemp("tokens")
    table = pa.table({"input_ids": pa.array([list(range(length)) for length in LENGTHS], pa.list_(pa.int32()))})
    write_ipc(folder / "tokens.arrow", table)
    packer.pack(folder / "tokens.arrow", folder / "index", max_len=64, index_only=True, shard_size="4KB")
    return folder / "index"


@pytest.mark.parametrize("name", ["l.npy", "l.parquet", "l.arrow", "l.csv", "l.jsonl", "l.jsonl.gz"])
def test_rows_are_those_of_documents_with_tokens(tmp_path, of_tokens, name):
    path = write(tmp_path / name)
    packer.pack(path, tmp_path / "packed", max_len=64, shard_size="4KB", lengths_column="num_tokens")
    assert [hash for file, hash in sorted(hashes(tmp_path / "packed").items()) if file.endswith(".arrow")] == [
        hash for file, hash in sorted(hashes(of_tokens).items()) if file.endswith(".arrow")
    ]
    expected = [(document, 0, length) for document, length in enumerate(LENGTHS.tolist()) if length]
    assert documents_in(tmp_path / "packed") == expected
    assert not list(packer.verify(tmp_path / "packed", path))


def test_the_command_takes_a_file_and_a_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "l.npy")
    write(tmp_path / "data.parquet")
    for words, output in (("l.npy", "l-packed-64"), ("data.parquet:num_tokens", "data-packed-64")):
        said = succeeded("pack", "--lengths", words, "--max-len", 64)
        assert f"packer.rows('{output}') has the documents of each row" in said
        assert "trained" not in said
    for words, message in (
        (["--lengths", "data.parquet"], "name the column as well, as in data.parquet:num_tokens"),
        (["--lengths", "data.parquet:tokens"], "no column 'tokens' (found: num_tokens)"),
        (["--lengths", "nowhere.npy"], "nowhere.npy: no such file"),
        (["l.npy", "--lengths", "l.npy"], "--lengths takes the place of DATASET"),
        (["--lengths", "l.npy", "--keep", "name"], "holds lengths and no columns: leave out name"),
    ):
        done = run("pack", *words, "--max-len", 64, "-o", "other")
        assert done.exit_code != 0
        assert message in done.stderr
    assert not (tmp_path / "other").exists()


def test_folders_kept_columns_and_long_documents(tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "a.parquet", LENGTHS[:100], column="n")
    write(tmp_path / "data" / "b.parquet", LENGTHS[100:], column="n")
    packer.pack(tmp_path / "data", tmp_path / "packed", max_len=16, lengths_column="n")
    found = {}
    for document, start, length in documents_in(tmp_path / "packed"):
        assert start == found.get(document, 0)
        found[document] = start + length
    assert found == {document: length for document, length in enumerate(LENGTHS.tolist()) if length}


def test_columns_are_kept_and_group(tmp_path):
    kinds = pa.array([("photo", "chart", None)[number % 3] for number in range(len(LENGTHS))])
    path = write(tmp_path / "l.parquet", kind=kinds)
    packer.pack(path, tmp_path / "packed", max_len=64, lengths_column="num_tokens", keep=["kind"], group_by="kind")
    for row in packer.load(tmp_path / "packed"):
        real = row["doc_ids"] >= 0
        assert row["kind"][real].tolist() == [kinds[int(number)].as_py() for number in row["doc_ids"][real]]
    assert not list(packer.verify(tmp_path / "packed", path))


@pytest.mark.parametrize(
    ("name", "lengths", "message"),
    [
        ("l.parquet", [3, -1], "row 1: 'num_tokens' is -1; expected 0 to 2147483647"),
        ("l.parquet", [3, 2**31], "row 1: 'num_tokens' is 2147483648; expected"),
        ("l.parquet", [3, None], "row 1: 'num_tokens' is missing"),
        ("l.parquet", [3.0, 2.5], "row 0: 'num_tokens' holds double; expected whole numbers"),
        ("l.parquet", ["3", "4"], "row 0: 'num_tokens' holds string; expected whole numbers"),
        ("l.csv", ["1", "x"], "row 1: 'num_tokens' is 'x'; expected a whole number"),
    ],
)
def test_what_is_no_length_is_named(tmp_path, name, lengths, message):
    path = write(tmp_path / name, lengths)
    with pytest.raises(PackerError, match=f"{name} {message}"):
        packer.pack(path, tmp_path / "packed", max_len=64, lengths_column="num_tokens")
    assert not (tmp_path / "packed").exists()


def test_an_array_holds_lengths_only_where_that_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", np.arange(1000, dtype=np.uint16))
    for command in (["pack", "--max-len", "64"], ["stats", "--max-len", "64"]):
        refused(*command, "tokens.npy", words=("tokens.npy is a bare array", "--lengths tokens.npy"))
    with pytest.raises(PackerError, match=r"tokens\.npy is a bare array.*lengths_column='lengths'"):
        packer.pack("tokens.npy", max_len=64)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.npy"]


def test_an_archive_of_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "l.npz", LENGTHS)
    refused("pack", "--lengths", f"{tmp_path / 'l.npz'}:arr_0", "--max-len", 64, words=("l.npz: unknown format",))


def npy(header: str, content=bytes(80), version=b"\x01\x00") -> bytes:
    text = header.encode("latin-1") + b"\n"
    size = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + text + content


GOOD = "{'descr': '<i8', 'fortran_order': False, 'shape': (10,), }"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("{'descr': '<i8', 'shape': (10,"), "the header does not describe an array"),
        (npy(GOOD.replace("'<i8'", "'\"'")), "the header does not describe an array"),
        (npy(GOOD.replace("'<i8'", "['<i8']")), "the header does not describe an array"),
        (npy(GOOD.replace("'<i8'", "('<i8', 10**30)")), "the header does not describe an array"),
        (npy(GOOD.replace("'<i8'", "'|O'"), b"cos\nsystem\n"), "object of shape [10]; expected whole numbers"),
        (npy(GOOD.replace("(10,)", "()")), "int64 of shape []; expected whole numbers in one dimension"),
        (npy(GOOD.replace("(10,)", "(5, 2)").replace("False", "True")), "int64 of shape [5, 2]; expected whole"),
        (
            npy(GOOD.replace("(10,)", "(9223372036854775808,)")),
            "names 9,223,372,036,854,775,808 values of 8 bytes",
        ),
        (npy(GOOD.replace("(10,)", "(-1,)")), "its header names -1 values of 8 bytes, and 80 bytes follow"),
        (npy(GOOD, bytes(88)), "its header names 10 values of 8 bytes, and 88 bytes follow; write it again"),
        (npy(GOOD.replace("<i8", "|b1"), bytes(10)), "bool of shape [10]; expected whole numbers"),
        (npy(GOOD, version=b"\x03\x00"), "a .npy file of version 3.0; expected 1.0 or 2.0"),
        (b"PK\x03\x04" + bytes(100), "cannot be read, truncated or corrupt: the magic string is not correct"),
        (b"", "cannot be read, truncated or corrupt"),
        (b"\x93NUMPY\x01\x00", "cannot be read, truncated or corrupt"),
    ],
)
def test_damaged_arrays_are_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "l.npy").write_bytes(content)
    refused("pack", "--lengths", tmp_path / "l.npy", "--max-len", 64, words=("l.npy: ", message))


def test_arrays_of_any_whole_numbers_are_lengths(tmp_path):
    for number, dtype in enumerate(("u1", "<i2", ">i4", ">u8", "i1")):
        array = np.asfortranarray(np.array([3, 0, 100, 7], dtype))
        np.save(tmp_path / f"{number}.npy", array)
        packer.pack(tmp_path / f"{number}.npy", tmp_path / str(number), max_len=64, lengths_column="lengths")
        assert documents_in(tmp_path / str(number)) == [(0, 0, 3), (2, 0, 64), (2, 64, 36), (3, 0, 7)]
    (tmp_path / "two.npy").write_bytes(npy(GOOD.replace("(10,)", "(2,)"), b"\5" + bytes(15), b"\x02\x00"))
    packer.pack(tmp_path / "two.npy", tmp_path / "two", max_len=64, lengths_column="lengths")
    assert documents_in(tmp_path / "two") == [(0, 0, 5)]


@pytest.mark.parametrize("name", ["l.jsonl", "l.jsonl.gz", "l.json"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**63, "is 9223372036854775808; expected 0 to 2147483647"),
        (10**30, "expected 0 to 2147483647"),
        (-1, "is -1; expected 0 to 2147483647"),
        (2.5, "is 2.5; expected a whole number"),
        (3.0, "is 3.0; expected a whole number"),
        (True, "is true; expected a whole number"),
        ("3", 'is "3"; expected a whole number'),
        ([3], "is [3]; expected a whole number"),
        (None, "is missing; give it a number"),
    ],
)
def test_values_of_json_that_are_no_lengths_are_named_with_their_place(tmp_path, name, value, message):
    records = [{"n": 3}, {"n": value}, {"n": 4}]
    text = json.dumps(records) if name == "l.json" else "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    where = "l.json row 1" if name == "l.json" else f"{name} line 2"
    with pytest.raises(PackerError) as raised:
        packer.pack(tmp_path / name, tmp_path / "packed", max_len=64, lengths_column="n")
    assert str(raised.value).startswith(f"{where}: 'n' {message}" if value != 10**30 else f"{where}: 'n' is 1000000")
    assert message in str(raised.value)


def test_there_are_no_tokens_to_load_or_write(tmp_path):
    path = write(tmp_path / "l.npy")
    packer.pack(path, tmp_path / "packed", max_len=64, lengths_column="n")
    with pytest.raises(PackerError, match="packed from lengths alone, so there are no tokens: leave source out"):
        packer.load(tmp_path / "packed", source=path)
    with pytest.raises(PackerError, match="packed from lengths alone, so there are no tokens to export"):
        packer.export(tmp_path / "packed", to="parquet")
    refused("show", tmp_path / "packed", 0, words=("so there are no tokens to show: packer.rows('",))


def test_the_batch_sampler_gives_documents_in_the_order_of_rows_and_resumes(tmp_path):
    packer.pack(write(tmp_path / "l.npy"), tmp_path / "packed", max_len=64, lengths_column="n", shard_size="4KB")
    rows = packer.rows(tmp_path / "packed")
    assert rows[-1] == rows[len(rows) - 1] == rows[len(rows) - 1 :][0]
    options = {"global_batch": 8, "rows": 2, "seed": 5}
    numbers = packer.BatchSampler(rows.dataset, **options)
    whole = list(rows.batch_sampler(**options))
    assert whole == [[rows[number] for number in batch] for batch in numbers]
    ranks = [iter(rows.batch_sampler(**options, rank=rank, world_size=2)) for rank in range(2)]
    by_step = [next(rank) for _ in range(len(whole) // 4) for rank in ranks for _ in range(2)]
    assert sorted(map(str, by_step)) == sorted(map(str, whole))
    begun = rows.batch_sampler(**options)
    first = [batch for _, batch in zip(range(5), begun, strict=False)]
    resumed = rows.batch_sampler(**options)
    resumed.load_state_dict(begun.state_dict())
    assert first + list(resumed) == whole


def test_a_dataloader_asks_the_dataset_for_rows(tmp_path):
    torch = pytest.importorskip("torch")
    packer.pack(write(tmp_path / "l.npy"), tmp_path / "packed", max_len=64, lengths_column="n")
    rows = packer.rows(tmp_path / "packed")

    class Examples(torch.utils.data.Dataset):
        def __getitem__(self, row):
            return torch.cat([torch.arange(start, start + length) for _, start, length in row])

    sampler = rows.batch_sampler(global_batch=4, drop_last=True)
    batches = list(torch.utils.data.DataLoader(Examples(), batch_sampler=sampler, collate_fn=list))
    assert [len(batch) for batch in batches] == [4] * sampler.steps
    assert all(0 < len(example) <= 64 for batch in batches for example in batch)


def made_images(lengths, most=9):
    return np.random.default_rng(1).integers(0, most, len(lengths))


@pytest.mark.parametrize("kind", ["lengths", "tokens"])
def test_rows_stay_within_all_limits(tmp_path, kind):
    images, sounds = made_images(LENGTHS), made_images(LENGTHS, 3)
    path = write(tmp_path / "l.parquet", images=images, sounds=sounds)
    options = {"max_len": 64, "long": "drop", "limit": ["images:12", "sounds:3"], "max_segments": 4}
    if kind == "tokens":
        tokens = pa.array([list(range(length)) for length in LENGTHS], pa.list_(pa.int32()))
        pq.write_table(pa.table({"input_ids": tokens, "images": images, "sounds": sounds}), path)
    else:
        options["lengths_column"] = "num_tokens"
    manifest = packer.pack(path, tmp_path / "packed", **options)
    dataset = packer.load(tmp_path / "packed")
    for row in dataset:
        real = row["doc_ids"] >= 0
        assert row["images"].tolist() == [images[document] if document >= 0 else 0 for document in row["doc_ids"]]
        assert row["images"].sum() <= 12
        assert row["sounds"].sum() <= 3
        assert real.sum() <= 4
    expected = [(document, 0, length) for document, length in enumerate(LENGTHS.tolist()) if length]
    assert documents_in(tmp_path / "packed") == expected
    assert not list(packer.verify(tmp_path / "packed", path))
    real = LENGTHS > 0
    bounds = [LENGTHS.sum() / 64, images[real].sum() / 12, sounds[real].sum() / 3, real.sum() / 4]
    assert manifest.totals.lower_bound >= max(bounds)
    assert manifest.rows <= 1.05 * manifest.totals.lower_bound


@pytest.mark.parametrize("max_segments", [None, 2])
@pytest.mark.parametrize("column", [[0] * 8, [3, 2, 1, 0, 3, 1, 2, 3]])
def test_a_bound_under_limits_is_not_below_the_bound_without(tmp_path, column, max_segments):
    """Half of each row is taken by segments of which no three fit into one."""
    path = write(tmp_path / "l.parquet", np.array([3, 3, 3, 4, 3, 5, 3, 7]), images=column)
    options = {"max_len": 8, "lengths_column": "num_tokens", "long": "drop", "max_segments": max_segments}
    plain = packer.pack(path, tmp_path / "plain", **options)
    limited = packer.pack(path, tmp_path / "limited", limit=["images:5"], **options)
    assert plain.totals.lower_bound <= limited.totals.lower_bound <= limited.rows
    assert not list(packer.verify(tmp_path / "limited"))


def test_a_limit_needs_no_policy_for_long_documents_if_there_are_none(tmp_path):
    path = write(tmp_path / "l.parquet", images=made_images(LENGTHS))
    shards = []
    for options in ({}, {"long": "error"}):
        output = tmp_path / f"packed-{len(options)}"
        packer.pack(path, output, max_len=64, lengths_column="num_tokens", limit=["images:12"], **options)
        assert not list(packer.verify(output, path))
        shards.append([digest for file, digest in sorted(hashes(output).items()) if file.endswith(".arrow")])
    assert shards[0] == shards[1]


def test_limits_do_not_apply_to_documents_that_are_dropped(tmp_path):
    lengths = np.array([3, 0, 100, 5, 7])
    path = write(tmp_path / "l.parquet", lengths, images=[1, 50, 50, 2, 3])
    options = {"max_len": 64, "lengths_column": "num_tokens", "limit": ["images:3"], "long": "drop"}
    packer.pack(path, tmp_path / "packed", **options)
    assert documents_in(tmp_path / "packed") == [(0, 0, 3), (3, 0, 5), (4, 0, 7)]
    assert not list(packer.verify(tmp_path / "packed", path))
    assert len(packer.load(tmp_path / "packed")) == 2
    with pytest.raises(PackerError, match=r"document 2 \(l.parquet row 2\) has images 50, .* with more: 1\)"):
        packer.pack(path, tmp_path / "other", **{**options, "long": "truncate"})


def test_verify_finds_a_row_above_its_limit(tmp_path):
    path = write(tmp_path / "l.parquet", images=made_images(LENGTHS))
    options = {"max_len": 64, "long": "drop", "lengths_column": "num_tokens", "keep": ["images"]}
    packer.pack(path, tmp_path / "packed", **options)
    manifest = json.loads((tmp_path / "packed" / "manifest.json").read_bytes())
    del manifest["options"]["keep"]
    manifest["options"]["limit"] = ["images:5"]
    seal(tmp_path / "packed", manifest)
    assert any("packed with limit images:5" in fault for fault in packer.verify(tmp_path / "packed"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": ["images:3"]}, r"has images \d, and a row may have 3 \(documents with more: \d+\): raise limit"),
        (
            {"limit": ["images"]},
            "limit is 'images': give a column and the most that a row may hold, 1 to 2147483647, as in",
        ),
        ({"limit": ["images:0"]}, "give a column and the most"),
        ({"limit": ["images:3", "images:4"]}, "names 'images' twice"),
        (
            {"limit": ["images:9"], "long": "split", "max_len": 30},
            r"has \d+ tokens and max_len is 30 \(\d+ documents are longer\); with limit none is split: choose",
        ),
        (
            {"limit": ["images:9"], "long": "error", "max_len": 30},
            r"\(\d+ documents are longer\); with limit none is split: choose long='drop' or truncate",
        ),
        (
            {"limit": ["images:9"], "split_at": "exchanges", "long": "split"},
            "split_at is exchanges, which does not go with limit",
        ),
        ({"limit": ["images:9"], "group_by": "images"}, "group_by is 'images', which does not go with limit"),
        ({"limit": ["images:9"], "algorithm": "bfd"}, "algorithm is bfd, which does not go with limit"),
        ({"limit": ["num_tokens:9"]}, "a column of tokens or lengths"),
        ({"limit": ["name:9"]}, "l.parquet: column 'name' holds string; .* convert it to Parquet"),
        ({"limit": ["gap:9"]}, r"document 7 \(l.parquet row 7\): 'gap' is missing"),
        ({"limit": ["below:9"]}, r"document 7 \(l.parquet row 7\): 'below' is -1; expected 0 to 2147483647"),
        ({"limit": ["nothing:9"]}, "no column 'nothing'"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(tmp_path, options, message):
    names = pa.array([str(number) for number in range(len(LENGTHS))])
    images = made_images(LENGTHS)
    gap, below = ([value if number == 7 else int(image) for number, image in enumerate(images)] for value in (None, -1))
    path = write(tmp_path / "l.parquet", images=images, name=names, gap=gap, below=below)
    options = {"max_len": 64, "long": "drop", "lengths_column": "num_tokens", **options}
    with pytest.raises(PackerError, match=message):
        packer.pack(path, tmp_path / "packed", **options)
    assert not (tmp_path / "packed" / "manifest.json").exists()
