"""Sources and commands that are refused: one line with the place, the value found and the remedy, and nothing is left.

A case is a line of a table: files, a command that runs in their folder, and words of the message. Contents are text,
bytes, or a table that is written in the format of the file's name. Messages about documents end with what to do, which
test_rejections.py looks at.
"""

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from tests.helpers.commands import run
from tests.helpers.refusals import save, table
from tests.helpers.small import shrink


class Case(NamedTuple):
    files: dict[str, object]
    command: str
    message: str
    code: int = 1


GOOD = '{"input_ids": [1, 2]}'
PACK, TEXT = "pack {} --max-len 16", "pack {} --max-len 16 --tokenizer TOKENIZER"
FORMATS = ("rows.arrow", "rows.feather", "rows.zstd.arrow", "rows.parquet", "rows.jsonl", "rows.jsonl.gz")


def pack(files: dict[str, object], message: str, more: str = "", *, source: str = "", text: bool = False, **others):
    """A case of `packer pack`, of the only file unless a source is named."""
    return Case(files, f"{(TEXT if text else PACK).format(source or next(iter(files)))} {more}", message, **others)


# ---- a line of a file of JSON lines: line 4 after two good ones and a blank one ----

LINES = {
    "[1, 2]": "an array where an object is expected; write one object per line",
    "null": "null where an object is expected",
    "3": "a number where an object is expected",
    '{"input_ids": [1, 2': "not valid JSON: Expecting ',' delimiter",
    GOOD + GOOD: "not valid JSON: Extra data",
    '{"input_ids": [1], "input_ids": [2]}': "not valid JSON: a field is given twice: 'input_ids'",
    '{"text": "hello", "id": 3}': "no 'input_ids' (found: text, id)",
    "{}": "no 'input_ids' (found: none)",
    '{"input_ids": null}': "'input_ids' is null; drop the row or give it a list (it may be empty)",
    '{"input_ids": "abc"}': "'input_ids' holds \"abc\" where a list of integers is expected",
    '{"input_ids": 5}': "'input_ids' holds 5 where a list",
    '{"input_ids": [1, null]}': "'input_ids' holds a null at position 1 of 2; remove it or give it a value",
    '{"input_ids": [1.5]}': "'input_ids' holds 1.5 at position 0 where an integer",
    '{"input_ids": [1.0]}': "'input_ids' holds 1.0 at position 0",
    '{"input_ids": ["a"]}': "'input_ids' holds \"a\" at position 0",
    '{"input_ids": [true]}': "'input_ids' holds true at position 0",
    '{"input_ids": [[1]]}': "'input_ids' holds [1] at position 0",
    '{"input_ids": [9223372036854775808]}': "'input_ids' holds 9223372036854775808 at position 0: a token id is from 0",
    '{"input_ids": [1], "labels": [1]}': "'labels', but the file's first line has no such list; give it to all or none",
    '{"input_ids": [1, 2], "loss_mask": [1, 0]}': "has 'loss_mask', and the first line has none; give it to all lines",
    '{"input_ids": ' + "[" * 100_000: "not valid JSON",
}
IN_LINES = [
    pack({"rows.jsonl": f"{GOOD}\n\n{GOOD}\n{line}\n{GOOD}\n"}, f"document 2 (rows.jsonl line 4): {words}")
    for line, words in LINES.items()
]
IN_LINES += [
    pack({"rows.jsonl": f"{GOOD}\n{GOOD[:-3]}"}, "document 1 (rows.jsonl line 2): not valid JSON"),
    pack(
        {"rows.jsonl": GOOD.encode() + b'\n{"input_ids": [1], "text": "\xff"}\n'},
        "document 1 (rows.jsonl line 2): invalid UTF-8 at byte 28 of the line; write the file as UTF-8",
    ),
    pack(
        {"rows.jsonl": '{"input_ids": [1], "labels": [1]}\n' + GOOD},
        "document 1 (rows.jsonl line 2): no 'labels', but the file's first line has such list; give it to all or none",
    ),
    pack(
        {"rows.jsonl": '{"tokens": [1], "text": "a"}'},
        "no column 'input_ids' (found: tokens, text); give --tokenizer to pack text or chats, or name the tokens' "
        "column with --input-column tokens",
    ),
    pack({"rows.jsonl": "\n \n"}, "rows.jsonl: empty dataset: 0 documents"),
]

# ---- document 2 of any format ----

WRONG = {
    "null row": ([None], None, "'input_ids' is null"),
    "null token": ([[7, None]], None, "null at position 1"),
    "negative token": ([[7, 7, -3]], None, "'input_ids' holds -3 at position 2: a token id is from 0 to 2147483647"),
    "above int32": ([[7, 2**31]], None, "'input_ids' holds 2147483648 at position 1: a token id is from 0 to 2147"),
    "far above int32": ([[2**40]], None, f"'input_ids' holds {2**40} at position 0: a token id is from 0 to 2147"),
    "null labels": ([[7]], [None], "labels"),
    "null label": ([[7, 7]], [[7, None]], "null at position 1"),
    "label below no loss": (
        [[7, 7]],
        [[7, -101]],
        "'labels' holds -101 at position 1: a label is a token id, or -100 for no loss",
    ),
    "label above int32": ([[7, 7]], [[7, 2**31]], "'labels' holds 2147483648 at position 1"),
    "fewer labels": ([[7, 7]], [[7]], "'labels' has 1 values for 2 in 'input_ids'; both need the same number (-100 wh"),
    "more labels": ([[7, 7]], [[7, 7, 7]], "'labels' has 3 values for 2 in 'input_ids'; both need the same number"),
}
IN_DOCUMENTS = [
    pack(
        {name: table(name, [[5], [6], *bad, [9]], [[5], [6], *labels, [9]] if labels else None)},
        f"document 2 ({name} {'line 3' if 'jsonl' in name else 'row 2'}): ... {words}",
    )
    for name in FORMATS
    for bad, labels, words in WRONG.values()
]
BEYOND = {
    "token": ([[7, 9]], None, "'input_ids' holds 9 at position 1: the model has ids 0 to 8 (--vocab-size); take its"),
    "label": ([[7, 7]], [[7, 9]], "'labels' holds 9 at position 1: the model has ids 0 to 8 (--vocab-size); take its"),
}
IN_DOCUMENTS += [
    pack(
        {name: table(name, [[5], [6], *bad, [8]], [[5], [6], *labels, [8]] if labels else None)},
        f"document 2 ({name} {'line 3' if 'jsonl' in name else 'row 2'}): ... {words}",
        "--vocab-size 9",
    )
    for name in FORMATS
    for bad, labels, words in BEYOND.values()
]
IN_DOCUMENTS += [
    pack(
        {"data/a.arrow": table("a", [[1], [2]]), "data/b.jsonl": [{"input_ids": [1]}, {"input_ids": [2, -5]}]},
        "document 3 (b.jsonl line 2): 'input_ids' holds -5 at position 1",
        source="data",
    ),
    *(
        pack(
            {name: table(name, [[1], [2] * 7 + [-7, 2]])}, "document 1 ... holds -7 at position 7", "--max-len 3"
        )  # behind a cut
        for name in ("rows.arrow", "rows.jsonl")
    ),
    pack(
        {"rows.arrow": table("", [[1], [2] * 20])},
        "document 1 has 20 tokens and max_len is 16 (1 documents are longer); choose --long split, truncate or drop",
        "--long error",
    ),
]

# ---- columns and their types ----

KINDS = [
    (pa.list_(pa.float32()), [1.0]),
    (pa.string(), "a b"),
    (pa.list_(pa.list_(pa.int32())), [[1]]),
    (pa.int64(), 1),
    (pa.large_list(pa.string()), ["a"]),
    (pa.list_(pa.bool_()), [True]),
]
COLUMNS = [
    pack(
        {name: table(name, [value], kind=kind)},
        f"{name}: column 'input_ids' holds {str(kind).split('<')[0]}...; expected list, large_list or "
        "fixed_size_list of integers (int8 to int64, uint8 to uint64)",
    )
    for name in ("a.arrow", "a.parquet")
    for kind, value in KINDS
]
COLUMNS += [
    case
    for name in FORMATS
    for case in (
        pack(
            {name: table(name, [[1]], [[1]])},
            f"{name}: no column 'tokens' (found: input_ids, labels); name the tokens' column with --input-column input_"
            "ids",
            "--input-column tokens",
        ),
        pack({name: table(name, [[1]])}, "no labels column 'targets'; name one that exists", "--labels-column targets"),
    )
]
COLUMNS += [
    pack(
        {
            "a.arrow": pa.table(
                [pa.array([[1, 2]])] * 4, names=[*dict.fromkeys(["input_ids", "labels", "quality"]), twice]
            )
        },
        f"a.arrow: 2 columns are named '{twice}'...keep one",
        "--keep-tokens quality",
    )
    for twice in ("input_ids", "labels", "quality")
]
COLUMNS += [
    pack(
        {"data/a.parquet": {"input_ids": [[1]], "labels": [[1]]}, "data/b.jsonl": GOOD},
        "a.parquet has a column 'labels', b.jsonl has none; give labels to all files or to none",
        source="data",
    ),
    *(
        pack(
            {
                "data/0.jsonl": "",
                f"data/a.{end}": pa.table({"input_ids": [[1, 2]]}),
                f"data/b.{end}": pa.table({"input_ids": [[1, 2]], "loss_mask": [[1, 0]]}),
            },
            f"b.{end}...has...'loss_mask'...first...none; give it to all",
            source="data",
        )
        for end in ("parquet", "arrow", "jsonl")
    ),
]

# ---- values of a kept column: for tokens and for text ----

BIG = 2**53 + 1  # not representable as a double
HOLD, NESTED = "where documents before it hold", [1]
for _ in range(60):
    NESTED = [{"a": NESTED}]
VALUES = [
    ([1, True], 1, f"'k' holds true, {HOLD} int64; use one type"),
    ([1.5, 2, False], 2, f"'k' holds false, {HOLD} double"),
    (["a", None, 3], 2, f"'k' holds 3, {HOLD} string"),
    ([[1], ["a"]], 1, f"'k' holds [\"a\"], {HOLD} list<item: int64>"),
    (["a", [1, "a"]], 1, "'k' holds [1, \"a\"]: a list, or a list inside it, has values of several types"),
    ([[0.5, True]], 0, "'k' holds [0.5, true]: a mix of numbers and booleans"),
    ([[], {"a": 1}], 1, f"'k' holds {{\"a\": 1}}, {HOLD} list<item: null>"),
    ([{"a": 1}, {"a": "x"}], 1, f'\'k\' holds {{"a": "x"}}, {HOLD} struct'),
    ([1, 2**70], 1, f"'k' holds {2**70}: integers are from {-(2**63)} to {2**63 - 1}"),
    ([1.5, 2**70], 1, f"'k' holds {2**70}: integers are from"),
    ([0.5, BIG], 1, f"'k' holds {BIG}, and other documents make the column double"),
    ([BIG, 2, 0.5], 0, f"'k' holds {BIG}, and other documents make the column"),
    ([1, NESTED], 1, "'k' holds ...nested more than 50 deep"),
]
DOCUMENT = {False: {"input_ids": [5, 6]}, True: {"text": "a b"}}
UNION = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])


def kept(values: list, kind: pa.DataType | None, text: bool) -> pa.Table:
    columns = {name: [value] * len(values) for name, value in DOCUMENT[text].items()}
    return pa.table({**columns, "k": pa.array(values, kind) if isinstance(values, list) else values})


KEPT = [
    pack(
        {"rows.jsonl": [{**DOCUMENT[text], "k": value} for value in values]},
        f"document {at} (rows.jsonl line {at + 1}): ...{words}",
        "--keep k",
        text=text,
    )
    for text in (False, True)
    for values, at, words in VALUES
]
KEPT += [
    case
    for text in (False, True)
    for case in (
        pack(
            {"rows.jsonl": [{**DOCUMENT[text], "k": "a"}]},
            "rows.jsonl: no column 'l' (found: ...); all files need it",
            "--keep l",
            text=text,
        ),
        pack(
            {"data/a.parquet": kept(["x"], None, text), "data/b.jsonl": [{**DOCUMENT[text], "k": 1}]},
            f"document 1 (b.jsonl line 1): 'k' holds 1, {HOLD} string; use one type",
            "--keep k",
            source="data",
            text=text,
        ),
        pack(
            {
                "data/a.parquet": kept([None], pa.null(), text),
                "data/b.parquet": kept([1], pa.int8(), text),
                "data/c.parquet": kept(["x"], None, text),
            },
            "data: column 'k' is int8 in b.parquet, string in c.parquet; use one type",
            "--keep k",
            source="data",
            text=text,
        ),
        *(
            pack(
                {"rows.arrow": kept(values, None, text)},
                f"rows.arrow: column 'k' holds {name}<..., which is not supported; save it",
                "--keep k",
                text=text,
            )
            for name, values in (
                ("sparse_union", UNION),
                ("list_view", pa.array([[1], [2]], pa.list_view(pa.int32()))),
            )
        ),
    )
]
KEPT += [
    pack({"rows.jsonl": [{"input_ids": [1], **first}, {"input_ids": [1], "k": last}]}, words, "--keep-tokens k")
    for first, last, words in (
        ({"k": None}, [2], "document 0 (rows.jsonl line 1): 'k' is null; drop the row or give it a list"),
        ({}, [2], "document 0 (rows.jsonl line 1): 'k' is null"),
        ({"k": [1]}, "a", "document 1 (rows.jsonl line 2): 'k' holds \"a\""),
    )
]
KEPT += [
    pack({"rows.jsonl": [{"input_ids": [], "k": []}] * 2}, "nothing to pack", "--keep-tokens k"),
]

# ---- text: CSV, arrays, text files ----

TEXTS = {
    "rows.csv": [
        (b"text\na\nb,c\n", "document 1 (rows.csv row 1): line 3 ends a record of 2 field(s), and the header names 1"),
        (b'text\na\n"b\n', "document 1 (rows.csv row 1): line 3: not valid CSV: unexpected end of data"),
        (b"text,text\na,b\n", "rows.csv: the header names the column 'text' twice"),
        (b"text\na\n\xff\n", "invalid UTF-8"),
        (b"title\na\n", "rows.csv: no column of text or chats that packer knows (found: title)"),
        (b"text\n", "empty dataset: 0 documents"),
        (b"", "empty dataset: 0 documents"),
    ],
    "rows.json": [
        ('[{"text": "a"}, {"text": "b"]', "document 1 (rows.json row 1): not a valid JSON array: the end of the file"),
        ('[{"text": "a"}, {"text": "b"}', "the end of the file where one of ,] is expected"),
        ('[{"text": "a"}, "b"]', "document 1 (rows.json row 1): a string where an object is expected"),
        ('[{"text": "a"},]', "']' where one of { is expected"),
        ('[{"text": "a"}] x', "'x' follows the end of the array"),
        ('[{"text": "a", "text": "b"}]', "a field is given twice: 'text'"),
        ('[{"text": "a"}, {"text": nul}' + ', {"text": "b"}' * 50 + "]", "document 1 (rows.json row 1): not valid JS"),
        ("[]", "empty dataset: 0 documents"),
    ],
}
IN_TEXT = [pack({name: content}, words, text=True) for name, cases in TEXTS.items() for content, words in cases]
IN_TEXT += [
    pack({"rows.csv": "text\na\n"}, "rows.csv: no column 'topic' (found: text)", "--keep topic", text=True),
    pack({"rows.csv": "text\nword\n"}, "set --tokenizer"),
    pack({"rows.txt": "word\n"}, "set --tokenizer"),
    pack(
        {"rows.json": '[{"input_ids": [1, 2]}, {"input_ids": [-1]}]'},
        "document 1 (rows.json row 1): 'input_ids' holds -1",
    ),
    pack(
        {"data/a.txt": "word", "data/b.txt": b"word \xff"},
        "document 1 (b.txt row 0): invalid UTF-8 at byte 5",
        source="data",
        text=True,
    ),
    pack({"a.txt": "word"}, "a.txt: a text file has no column 'topic'", "--keep topic", text=True),
    Case(
        {"a.jsonl": [{"text": "fox"}] * 3, "b.jsonl": [{"text": None}]},
        "pack a.jsonl b.jsonl --max-len 16 --tokenizer TOKENIZER -o out",
        "document 3 (b.jsonl line 1): 'text' is null",
    ),
]

# ---- nothing there, nothing to read, nothing left, damaged ----

NOISE = bytes(range(256)) * 20
WHOLE = pa.table({"input_ids": [[i, i + 1] for i in range(400)]})
NOTHING = [
    *(
        Case({}, f"{command} nowhere.jsonl", "nowhere.jsonl: no such file or folder")
        for command in ("pack --max-len 4", "stats")
    ),
    Case({}, "pack there/rows.jsonl --max-len 4", "there/rows.jsonl: no such file or folder...check the path"),
    Case({}, "verify nowhere", "nowhere: no such file or folder"),
    Case({}, "show nowhere 0", "nowhere: no such file or folder; check the path"),
    Case({"a.txt": ""}, "verify .", "manifest.json...packer pack"),
    Case({"a.txt": ""}, "show . 0", "manifest.json...packer pack"),
    Case(
        {},
        "pack none*.jsonl --max-len 4",
        "packer does not expand wildcards: leave that to the shell, or to Python's glob, and give the paths",
    ),
    pack({"data/notes.md": "nothing"}, "data: no file to read; supported formats are Arrow", source="data"),
    pack({"rows.xml": "1,2,3\n"}, "rows.xml: unknown format (it begins with b'1,2,3\\n'); supported formats are Arrow"),
    pack({"packed/manifest.json": '{"format_version": 5}'}, "packed is packed already", source="packed"),
    *(
        Case({name: table(name, [])}, f"{command} {name} --max-len 4", f"{name}: empty dataset: 0 documents")
        for name in FORMATS
        for command in ("pack", "stats")
    ),
    *(
        Case(
            {name: table(name, [[], [1, 2, 3], [], [4, 5, 6, 7]])},
            f"{command} {name} --max-len 2 --long drop",
            "nothing to pack: of 4 documents, 2 are empty and 2 longer than max_len 2 (--long drop)...check",
        )
        for name in ("rows.arrow", "rows.jsonl")
        for command in ("pack", "stats")
    ),
    *(pack({name: b"\x1f\x8b" + NOISE if name.endswith("gz") else NOISE}, name) for name in FORMATS[:5]),
    pack({"data/a.jsonl": GOOD, "data/b.parquet": b"PAR1" + NOISE}, "b.parquet", source="data"),
]

# ---- compressed, encrypted and foreign ----


def _encrypted(*, footer: bool) -> bytes:
    """A Parquet file whose columns are encrypted, by a key of an imaginary service; with or without its footer."""
    from pyarrow.parquet import encryption

    class Keys(encryption.KmsClient):
        def wrap_key(self, key, master):
            return base64.b64encode(key)

        def unwrap_key(self, key, master):
            return base64.b64decode(key)

    how = encryption.EncryptionConfiguration(
        footer_key="a", column_keys={"b": ["input_ids.list.element"]}, plaintext_footer=not footer
    )
    service = encryption.KmsConnectionConfig()
    properties = encryption.CryptoFactory(lambda _: Keys()).file_encryption_properties(service, how)
    file, rows = io.BytesIO(), pa.table({"input_ids": [[1, 2]]})
    with pq.ParquetWriter(file, rows.schema, encryption_properties=properties) as writer:
        writer.write_table(rows)
    return file.getvalue()


def _zstd(window_log: int) -> bytes:
    """The header of a frame with a window of this size, by RFC 8878."""
    return b"\x28\xb5\x2f\xfd" + bytes([0, window_log - 10 << 3]) + bytes(20)


def _array(dtype: str) -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(4, dtype=dtype))
    return file.getvalue()


BZIP2, XZ, LZ4 = bz2.compress(GOOD.encode()), lzma.compress(GOOD.encode()), b"\x04\x22\x4d\x18" + bytes(20)
FOREIGN = [
    pack({"rows.jsonl": gzip.compress(GOOD.encode())}, "rows.jsonl: compressed by gzip...rename it to rows.jsonl.gz"),
    pack({"rows.csv": _zstd(20)}, "rows.csv: compressed by zstd...rename it to rows.csv.zst"),
    *(
        pack({name + ending: content}, f"{name}{ending}: {tool} is not read; decompress it with `{command}`")
        for name in ("rows.jsonl", "rows")
        for content, ending, tool, command in (
            (BZIP2, ".bz2", "bzip2", "bunzip2"),
            (BZIP2, "", "bzip2", "bunzip2"),
            (XZ, ".xz", "xz", "unxz"),
            (LZ4, ".lz4", "lz4", "unlz4"),
        )
    ),
    pack({"rows.parquet.gz": b"PAR1"}, "rows.parquet.gz: only JSON, CSV and text are read compressed...gunzip"),
    pack({"rows.jsonl.zst": _zstd(28)}, "a window of 256 MiB, and up to 128 are read; decompress it with `zstd -d --l"),
    *(pack({"rows.parquet": _encrypted(footer=it)}, "rows.parquet: it is encrypted, and...") for it in (True, False)),
    pack({"rows.npy": _array(">i4")}, "rows.npy: >i4 of shape [4]...not big-endian...astype('<i4')"),
    pack(
        {"rows.arrow": pa.table({"input_ids": pa.array([[1, 2]], pa.list_view(pa.int32()))})},
        "holds list_view<item: int32>; expected list...cast it with .cast(pyarrow.list_(pyarrow.int32()))",
    ),
]


# ---- splits and several paths ----

ONE, CHOOSE = {"train.jsonl": GOOD, "test.jsonl": GOOD}, "choose one, as in --split train"
HALVES = {"data/a.jsonl": GOOD + "\n", "data/sub/c.jsonl": GOOD + "\n"}
BOTH = "data/a.jsonl data/sub"
PATHS = [
    *(
        Case(
            {f"d/{name}": text for name, text in ONE.items()},
            command,
            f"its files form 2 splits (train, test); {CHOOSE}",
        )
        for command in ("pack d --max-len 8", "stats d", "stats d --algorithm all", "tokenize d --tokenizer TOKENIZER")
    ),
    Case(
        {"d/train/a.jsonl": GOOD},
        "pack d --max-len 8 --split test",
        "split test: d has no such split (found: train)",
    ),
    Case({"a.jsonl": GOOD}, "pack a.jsonl --max-len 8 --split train", "without splits; leave --split out"),
    Case(
        {f"d/{name}.jsonl": GOOD for name in ("web", "books", "dev")},
        "pack d --max-len 8",
        "1 of 3 files are in the split validation, such as dev.jsonl, and 2 in no split; ...with --split validation, "
        "or name the files, as in d/*",
    ),
    Case(
        {"d/train.jsonl": GOOD, "d/test.jsonl": GOOD, "a.jsonl": GOOD},
        "pack d a.jsonl --max-len 8 -o out",
        f"d: its files form 2 splits (train, test); {CHOOSE}",
    ),
    Case(
        {"d/train.jsonl": GOOD, "d/test.jsonl": GOOD, "a.jsonl": GOOD},
        "pack d a.jsonl --max-len 8 -o out --split dev",
        "split dev: d has no such split (found: train, test)",
    ),
    Case(
        {"a.jsonl": GOOD, "b.jsonl": GOOD},
        "pack a.jsonl b.jsonl --max-len 8 -o out --split train",
        "split train: a.jsonl and 1 other path are files without splits",
    ),
    *(
        Case(
            HALVES, f"pack {given} --max-len 16 -o out", f"data/a.jsonl is given twice, {where}: leave one of them out"
        )
        for given, where in (
            ("data/a.jsonl data/sub data/a.jsonl", "at data/a.jsonl"),
            ("data data/a.jsonl", "at data and at data/a.jsonl"),
            ("data data/../data", "at data and at data/../data"),
        )
    ),
    Case(HALVES, f"pack {BOTH} --max-len 16", "a.jsonl and 1 other path have no common name: name the output with", 2),
    Case(HALVES, f"pack {BOTH} --max-len 16 -o data/sub/x", "data/sub/x is inside the source data/sub"),
    Case(HALVES, "pack data --max-len 16 -o data/x", "data/x is inside the source data"),
    Case(HALVES, f"pack {BOTH} none.jsonl --max-len 16 -o out", "none.jsonl: no such file or folder"),
    Case(HALVES, f"pack {BOTH} org/name --max-len 16 -o out", "org/name: no such file or folder (a Hub id cannot be"),
    Case(
        {**HALVES, "labels.arrow": pa.table({"input_ids": [[1]], "labels": [[1]]})},
        f"pack {BOTH} labels.arrow --max-len 16 -o out",
        "labels.arrow has a column 'labels', data/...jsonl has none",
    ),
    Case(
        {**HALVES, "text.jsonl": '{"text": "a"}\n'},
        f"pack {BOTH} text.jsonl --max-len 16 -o out",
        "text.jsonl: no column 'input_ids' (found: text); give --tokenizer to pack text or chats",
    ),
    Case({}, "pack --max-len 16", "Give a DATASET", 2),
    Case({}, "tokenize --tokenizer x", "Missing argument 'DATASET...'", 2),
]

CASES = [*IN_LINES, *IN_DOCUMENTS, *COLUMNS, *KEPT, *IN_TEXT, *NOTHING, *FOREIGN, *PATHS]


def refused(case: Case, folder: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command that must fail in one line and leave nothing; return the line."""
    for name, content in case.files.items():
        save(folder / name, content)
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    done = run(*(tokenizer if word == "TOKENIZER" else word for word in case.command.split()))
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == case.code, done.output
    assert done.stdout == ""
    if case.code == 1:
        (line,) = done.stderr.splitlines()
        assert line.startswith("packer: ")
    assert sorted(folder.rglob("*")) == before
    return " ".join(done.stderr.split())


def says(line: str, message: str) -> bool:
    """Whether the parts of a message, between `...`, stand in a line in this order."""
    place = 0
    for part in map(str.strip, message.split("...")):
        place = line.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.command[:40]}-{case.message[-40:]}")
def test_what_cannot_be_packed_is_refused_in_one_line(case, tmp_path, tokenizer, monkeypatch):
    line = refused(case, tmp_path, tokenizer, monkeypatch)
    assert says(line, case.message), line


@pytest.mark.parametrize("case", [*IN_LINES, *KEPT], ids=lambda case: case.message[-60:])
def test_the_message_does_not_depend_on_how_much_is_read_together(case, tmp_path, tokenizer, monkeypatch):
    shrink(monkeypatch, piece=100, json_block=10, record_block=60)
    line = refused(case, tmp_path, tokenizer, monkeypatch)
    assert says(line, case.message), line


@pytest.mark.parametrize("name", FORMATS)
def test_a_truncated_file_is_named_wherever_it_ends(name, tmp_path, tokenizer, monkeypatch):
    save(tmp_path / name, table(name, WHOLE["input_ids"].to_pylist()))
    whole = (tmp_path / name).read_bytes()
    for size in {0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 9, len(whole) - 4, len(whole) - 2}:
        (tmp_path / name).write_bytes(whole[:size])
        line = refused(Case({}, PACK.format(name), name), tmp_path, tokenizer, monkeypatch)
        assert name in line


# ---- what cannot be written as a line: datasets that `datasets` saved, damaged bytes, the Hub ----


@pytest.fixture
def saved(tmp_path):
    """A saved dataset of two files, and a function that changes a JSON file of a folder."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"input_ids": [[1], [2]]}).save_to_disk(tmp_path / "d", num_shards=2)

    def change(name: str, **values) -> None:
        path = tmp_path / "d" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values if path.exists() else values))

    return change


def refuses(source: object, message: str, **options) -> None:
    """Pack from Python; the one-line error has these words."""
    with pytest.raises(packer.PackerError) as error:
        packer.pack(source, "out", max_len=8, **options)
    assert says(str(error.value), message), error.value
    assert "\n" not in str(error.value)
    assert not Path("out").exists()


def test_saved_datasets_that_are_not_whole_are_refused(tmp_path, saved, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("above").mkdir()
    Path("above/d").symlink_to(tmp_path / "d")
    refuses("above", "contains 1 saved dataset(s): above/d; give one of them")
    refuses("d", "is a single dataset without splits; leave split out", split="train")
    saved("state.json", _indices_data_files=[{"filename": "indices.arrow"}])
    refuses("d", "d/state.json: an indices mapping beside the data says which rows are used: load the dataset and save")
    saved("state.json", _indices_data_files=None)
    (tmp_path / "d" / "data-00001-of-00002.arrow").unlink()
    refuses("d", "data-00001-of-00002.arrow: cannot be read: No such file or directory")
    (tmp_path / "d" / "state.json").write_text("{")
    refuses("d", "state.json: cannot be read, truncated or corrupt")


@pytest.mark.parametrize("name", ["../other/data.arrow", "/elsewhere/data.arrow", "sub/../../data.arrow", "..", ""])
def test_a_saved_dataset_may_only_name_files_in_its_folder(tmp_path, saved, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    saved("state.json", _data_files=[{"filename": name}])
    refuses("d", f"d/state.json: names {name!r}, not a plain name in this folder")
    saved("dataset_dict.json", splits=[name, "train"])
    for split in (None, "train"):
        refuses("d", f"d/dataset_dict.json: names {name!r}, not a plain name", split=split)


def test_datasets_in_memory_are_refused_by_row_and_split(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    dataset = datasets.Dataset.from_dict({"input_ids": [[1], None, [2, None], [3]]})
    refuses(dataset.select([3, 2, 1]), "document 1 (dataset row 1): 'input_ids' holds a null at position 1 of 2")
    refuses(dataset.select([3, 0, 1]), "document 2 (dataset row 2): 'input_ids' is null")
    halves = datasets.DatasetDict(train=dataset, test=dataset)
    refuses(halves, "has 2 splits (train, test); choose one, as in split='train'")
    halves.save_to_disk("two")
    refuses("two", "has 2 splits (train, test); choose one, as in split='train'")
    refuses("two", "no such split (found: train, test)", split="dev")
    refuses(dataset.filter(lambda row: False), "empty dataset")
    refuses([[1, 2]], "a list of lists of tokens is not supported; give datasets.Dataset.from_dict(")
    refuses(5, "a source of type int is not supported; give a path, a Dataset or a DatasetDict")
    refuses(["d", dataset], "a list of sources holds paths")


def test_bytes_that_contradict_each_other_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.arrow", pa.table({"input_ids": pa.array([[7, 8], [9]], pa.list_(pa.int32()))}))
    whole, offsets = (tmp_path / "a.arrow").read_bytes(), np.array([0, 2, 3], np.int32).tobytes()
    assert whole.count(offsets) == 1
    for wrong in ([0, 2, 3000], [0, 4, 3], [-1, 2, 3]):
        (tmp_path / "b.arrow").write_bytes(whole.replace(offsets, np.array(wrong, np.int32).tobytes()))
        refuses("b.arrow", "b.arrow: cannot be read, truncated or corrupt: ")
    (tmp_path / "b.arrow").write_bytes(whole * 2)
    refuses("b.arrow", "bytes follow the end of the Arrow stream")


@pytest.mark.nightly  # test_first_hour.py has one in this process
@pytest.mark.parametrize(
    ("offline", "message"),
    [
        ("0", " is not a local path, and the Hugging Face Hub cannot be reached"),
        ("1", ": neither a local path nor a dataset on the Hugging Face"),
    ],
)
def test_a_hub_id_without_a_network_fails_quickly(tmp_path, offline, message):
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": offline, "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "packer", "pack", "no-one/nothing", "--max-len", "8", "-o", str(tmp_path / "out")]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert f"no-one/nothing{message}" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / "a.jsonl").chmod(0)
    refuses("a.jsonl", "a.jsonl: cannot be read: Permission denied")
