"""Packs and batches keep their bytes: hashes in tests/net.json, made through commands and functions alone.

A case is a line. What a case gives is compared by hash: `bytes` are the packed Arrow files in the order of their names,
`rows` are the rows that `packer.load` reads, with the names and types of their columns. A deliberate change of bytes is
written down with

    PACKER_WRITE_NET=1 pytest tests/test_net.py
"""

import gzip
import hashlib
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from tests.helpers.commands import succeeded
from tests.helpers.writing import write_ipc

FILE = Path(__file__).parent / "net.json"
LENGTHS = np.random.default_rng(0).lognormal(3.1, 0.9, 300).astype(int).clip(0, 200).tolist()
SPLIT = {"max_len": 64, "shard_size": "24KB"}


# ---- sources: a function each, which writes one below a folder and returns what `packer.pack` is given ----


def table(lengths=LENGTHS, seed=1) -> pa.Table:
    """Documents with labels, values to keep, to group by and to limit."""
    random = np.random.default_rng(seed)
    tokens = [random.integers(1, 50_000, length).tolist() for length in lengths]
    labels = [[token if place % 5 > 1 else -100 for place, token in enumerate(ids)] for ids in tokens]
    columns = {
        "input_ids": pa.array(tokens, pa.list_(pa.int32())),
        "labels": pa.array(labels, pa.list_(pa.int32())),
        "scores": pa.array([[token / 7 for token in ids] for ids in tokens], pa.list_(pa.float32())),
        "topic": pa.array(["abcd"[number % 4] if number % 9 else None for number in range(len(lengths))]),
        "images": pa.array([number % 5 for number in range(len(lengths))], pa.int64()),
    }
    return pa.table(columns)


def arrow(folder: Path, *, file=False, compression=None, made=None) -> Path:
    made, path = made or table(), folder / "rows.arrow"
    return write_ipc(path, made, stream=not file, compression=compression, rows=40)


def exchanges(folder: Path) -> Path:
    """Documents that are chats, with exchanges of 7 tokens, but for one that is longer than a row."""
    made = table()
    starts = [[*range(0, length, 7)] if length < 150 else [0, 100] for length in LENGTHS]
    return parquet(folder, made.append_column("exchange_starts", pa.array(starts, pa.list_(pa.int32()))))


def topk(folder: Path) -> Path:
    """Documents with two values for each token."""
    made = table(LENGTHS[:80])
    values = [[[token, token + 1] for token in ids] for ids in made["input_ids"].to_pylist()]
    return parquet(folder, made.append_column("ids", pa.array(values, pa.list_(pa.list_(pa.int32(), 2)))))


def parquet(folder: Path, made=None) -> Path:
    pq.write_table(made or table(), folder / "rows.parquet", row_group_size=70)
    return folder / "rows.parquet"


def unlabelled(folder: Path) -> Path:
    return parquet(folder, table().drop_columns("labels"))


def lines(folder: Path, *, name="rows.jsonl", records=None) -> Path:
    records = table().select(["input_ids", "labels", "images"]).to_pylist() if records is None else records
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    return folder / name


def saved(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset(table()).save_to_disk(folder / "rows")
    return folder / "rows"


def in_memory(folder: Path):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset(table()).shuffle(seed=3)


def split(folder: Path) -> Path:
    for name, seed in (("train", 4), ("test", 5)):
        (folder / "rows").mkdir(exist_ok=True)
        pq.write_table(table(seed=seed), folder / "rows" / f"{name}-0.parquet")
    return folder / "rows"


def several(folder: Path) -> list[Path]:
    (folder / "more").mkdir()
    return [parquet(folder), arrow(folder / "more", made=table(LENGTHS[:50], seed=6))]


def paired(folder: Path) -> Path:
    columns = {}
    for side, lengths in (("chosen", LENGTHS), ("rejected", LENGTHS[::-1])):
        made = table([min(length, 30) + 1 for length in lengths], seed=len(side))
        columns |= {f"{side}_input_ids": made["input_ids"], f"{side}_labels": made["labels"]}
    return arrow(folder, made=pa.table(columns))


def lengths_alone(folder: Path) -> Path:
    np.save(folder / "lengths.npy", np.array(LENGTHS, np.int64))
    return folder / "lengths.npy"


WORDS = [f"Row {number}: " + "the quick brown fox, Zoë's «café» 中文 😀 " * (number % 7) for number in range(60)]


def texts(folder: Path) -> Path:
    return lines(folder, records=[{"text": text, "topic": text[:6]} for text in WORDS])


def completions(folder: Path) -> Path:
    return lines(folder, records=[{"prompt": text[:9], "completion": text[9:] + "."} for text in WORDS])


def chats(folder: Path) -> Path:
    roles = ("user", "assistant") * 3
    made = [[{"role": role, "content": text[: 30 + n]} for n, role in enumerate(roles)] for text in WORDS]
    return lines(folder, records=[{"messages": messages} for messages in made])


def answers(folder: Path) -> Path:
    return lines(folder, records=[{"prompt": t[:9], "chosen": t[9:40] + "!", "rejected": t[20:] + "?"} for t in WORDS])


def table_of_text(folder: Path) -> Path:
    (folder / "rows.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in WORDS))
    return folder / "rows.csv"


def array_of_text(folder: Path) -> Path:
    (folder / "rows.json").write_text(json.dumps([{"text": text} for text in WORDS]))
    return folder / "rows.json"


# ---- cases: a source and options ----

PACKS = {
    "arrow stream": (arrow, {}),
    "arrow file": (partial(arrow, file=True), {}),
    "compressed arrow": (partial(arrow, compression="zstd"), {}),
    "parquet": (parquet, {}),
    "JSON lines": (lines, {}),
    "compressed JSON lines": (partial(lines, name="rows.jsonl.gz"), {}),
    "saved dataset": (saved, {}),
    "shuffled dataset in memory": (in_memory, {}),
    "split": (split, {"split": "test"}),
    "several paths": (several, {}),
    "one shard": (parquet, {"shard_size": "1GB"}),
    **{
        f"algorithm {name}": (parquet, {"algorithm": name})
        for name in ("mixed", "bfd", "ffd", "optimal", "sequential", "wrapped")
    },
    "three segments a row": (parquet, {"max_segments": 3}),
    **{f"{name}, three segments a row": (parquet, {"max_segments": 3, "algorithm": name}) for name in ("optimal",)},
    "align": (parquet, {"align": 8}),
    "align and split at exchanges": (exchanges, {"align": 4}),
    "truncate long": (parquet, {"long": "truncate"}),
    "drop long": (parquet, {"long": "drop"}),
    "drop untrained": (parquet, {"untrained": "drop", "max_len": 16}),
    "seed": (parquet, {"seed": 12}),
    "padding": (parquet, {"pad_id": 7}),
    "several values of a token": (topk, {"keep_tokens": ["ids"], "align": 4}),
    "keep": (parquet, {"keep": ["topic", "images"], "keep_tokens": ["scores"]}),
    "added columns": (parquet, {"add_column": ["position_ids"]}),
    "no labels": (unlabelled, {"labels": False, "add_column": ["position_ids"]}),
    "limit": (parquet, {"limit": ["images:6"], "long": "drop"}),
    "grouped": (parquet, {"group_by": "topic"}),
    "pairs": (paired, {"pairs": True, "max_len": 64}),
    "text": (texts, {"tokenizer": True, "keep": ["topic"]}),
    "text without ends": (texts, {"tokenizer": True, "eos": False}),
    "text in CSV": (table_of_text, {"tokenizer": True}),
    "text in a JSON array": (array_of_text, {"tokenizer": True}),
    "completions": (completions, {"tokenizer": True}),
    "chats": (chats, {"tokenizer": True}),
    "chats, all trained": (chats, {"tokenizer": True, "train_on": "all"}),
    "chats split at tokens": (chats, {"tokenizer": True, "split_at": "tokens"}),
    "pairs of text": (answers, {"tokenizer": True, "pairs": True, "max_len": 256}),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    pytest.importorskip("transformers")
    from tests.helpers.chat_templates import EXACT, save_tokenizer

    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=EXACT["chatml"])


@pytest.fixture(scope="module")
def net():
    """The hashes of the net; with PACKER_WRITE_NET, those of this run are written instead."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    yield known
    if os.environ.get("PACKER_WRITE_NET"):
        FILE.write_text(json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def compare(net, name, found):
    if os.environ.get("PACKER_WRITE_NET"):
        net[name] = found
    assert found == net[name]


def digest(parts) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


def shown(value) -> bytes:
    """A value and its types, whatever it is made of: arrays, mappings, lists, numbers, text."""
    if isinstance(value, np.ma.MaskedArray):
        return b"masked" + shown(value.tolist())
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, dict):
        return b"{" + b",".join(name.encode() + b":" + shown(part) for name, part in sorted(value.items())) + b"}"
    if isinstance(value, (list, tuple, np.ndarray)):
        return b"[" + b",".join(map(shown, value)) + b"]"
    return repr(value).encode()


def found_in(out: Path, **load) -> dict[str, str]:
    shards = [path.read_bytes() for path in sorted(out.rglob("*.arrow"))]
    return {"bytes": digest(shards), "rows": digest(shown(dict(row)) for row in packer.load(out, **load))}


def pack(folder: Path, source, path_of_tokenizer=None, **options) -> Path:
    options = SPLIT | options
    if "tokenizer" in options:
        options["tokenizer"] = path_of_tokenizer
    packer.pack(source, folder / "out", sync=False, **options)
    return folder / "out"


# ---- bytes of packs ----


@pytest.mark.parametrize("name", PACKS)
def test_a_pack_keeps_its_bytes(tmp_path, net, tokenizer, name):
    write, options = PACKS[name]
    compare(net, name, found_in(pack(tmp_path, write(tmp_path), tokenizer, **options)))


def test_what_is_held_out_keeps_its_bytes(tmp_path, net):
    out = pack(tmp_path, parquet(tmp_path), holdout=0.1)
    compare(net, "held out", [found_in(side) for side in (out, out.with_name("out-holdout"))])


@pytest.mark.parametrize("name", ["parquet", "align", "keep", "grouped"])
def test_an_index_has_the_rows_of_the_pack(tmp_path, net, name):
    """Only for sources that are mapped."""
    _, options = PACKS[name]
    source = arrow(tmp_path)
    packer.pack(source, tmp_path / "whole", sync=False, **SPLIT | options)
    packer.pack(source, tmp_path / "index", sync=False, index_only=True, **SPLIT | options)
    whole = found_in(tmp_path / "whole")
    assert found_in(tmp_path / "index", source=source)["rows"] == whole["rows"]
    compare(net, f"index of {name}", whole)


def test_lengths_alone_keep_their_rows(tmp_path, net):
    out = tmp_path / "out"
    source = lengths_alone(tmp_path)
    succeeded("pack", "--lengths", source, "--max-len", 64, "-o", out, "--no-sync")
    compare(net, "lengths alone", digest(shown(row) for row in packer.rows(out)))


def test_a_tokenized_dataset_keeps_its_rows(tmp_path, net, tokenizer):
    succeeded("tokenize", chats(tmp_path), "-o", tmp_path / "out", "--tokenizer", tokenizer, "--no-sync")
    import datasets

    compare(net, "tokenized", digest(map(shown, datasets.load_from_disk(tmp_path / "out"))))


@pytest.mark.parametrize("to", ["torchtune", "maxtext", "megatron", "parquet"])
def test_an_export_keeps_its_columns(tmp_path, net, to):
    out = pack(tmp_path, parquet(tmp_path))
    packer.export(out, tmp_path / "exported", to=to, sync=False)
    files = sorted((tmp_path / "exported").glob("*.parquet"))
    compare(net, f"export {to}", digest(shown(row) for path in files for row in pq.read_table(path).to_pylist()))


# ---- rows of the loader ----


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loader")
    options = {
        "keep": ["images", "topic"],
        "keep_tokens": ["scores"],
        "add_column": ["position_ids"],
        "max_segments": 12,
    }
    return packer.load(pack(folder, parquet(folder), **options))


BATCHES = {
    **{name: {"format": name} for name in ("hf", "hf_rows", "trl", "torchtitan", "torchtune", "megatron")},
    "encoder": {"format": "encoder", "keep": ["images"]},
    "segment_ids": {"format": "segment_ids"},
    "encoder with additive masks": {"format": "encoder", "additive_mask": True, "position_offset": 2},
    "extra heads": {"mtp": 2, "format": "hf_rows"},
    "loss by document": {"loss_weights": "document", "format": "megatron"},
    "kept": {"keep": ["images", "topic"], "keep_tokens": ["scores"]},
    "order on disk": {"seed": None},
    "epoch and seed": {"seed": 5, "epoch": 3},
    "without the last": {"rows": 7, "drop_last": True},
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_keep_their_values(dataset, net, name):
    options = {"rows": 3, "tensors": "numpy"} | BATCHES[name]
    compare(net, f"batches: {name}", digest(map(shown, packer.batches(dataset, **options))))


@pytest.mark.parametrize("name", ["hf", "megatron"])
def test_static_batches_keep_their_values(dataset, net, name):
    static = packer.static_shape(dataset, rows=3)
    found = digest(map(shown, packer.batches(dataset, rows=3, static=static, format=name, tensors="numpy")))
    compare(net, f"static batches: {name}", found)


SAMPLERS = {
    "one rank": {"global_batch": 6},
    "ranks": {"global_batch": 8, "rows": 2, "rank": 1, "world_size": 2},
    "balance": {"global_batch": 8, "rows": 2, "rank": 0, "world_size": 2, "balance": 1},
    "lanes": {"global_batch": 8, "rows": 2, "rank": 1, "world_size": 2, "lanes": 4, "window": 2},
    "in order": {"global_batch": 4, "seed": None},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_orders_of_rows_keep_their_numbers(dataset, net, name):
    sampler = packer.BatchSampler(dataset, **SAMPLERS[name])
    epochs = [[list(map(int, batch)) for batch in sampler] for _ in range(2)]
    state = sampler.state_dict(batches=3)
    resumed = packer.BatchSampler(dataset, **SAMPLERS[name])
    resumed.load_state_dict(state)
    rest = [list(map(int, batch)) for batch in resumed]
    compare(net, f"order: {name}", digest([shown(epochs), shown(rest)]))
