"""With --on-error skip, records that cannot be used are left out, counted, and listed in rejected.jsonl."""

import csv
import gzip
import json
import shutil
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError, SourceError
from packer.json_records import REMEDY
from tests.helpers.chat_templates import EXACT, REWRITING, save_tokenizer
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.from_text import documents_of
from tests.helpers.kills import Killed, kill
from tests.helpers.pack import hashes
from tests.helpers.packed_rows import edit_manifest
from tests.helpers.small import shrink
from tests.helpers.writing import write_as, write_lines

TEXT = "The quick fox"
GOOD = [{"input_ids": list(range(1, 2 + n % 7)), "labels": [-100, *range(2, 2 + n % 7)]} for n in range(40)]
LISTS = {"input_ids": pa.list_(pa.int64()), "labels": pa.list_(pa.int64())}
EMPTY = {"input_ids": [], "labels": []}


def pack(source, out: Path, **options) -> packer.Manifest:
    return packer.pack(source, out, **{"max_len": 16, "sync": False, "on_error": "skip", **options})


def listed(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]


def shards(out: Path) -> list[str]:
    return [shard.xxh3_128 for shard in packer.load(out).manifest.shards]


def assert_left_out(source, out: Path, bad: dict[int, str], **options) -> packer.Manifest:
    """Pack a source, and check what is said of the documents that are left out, given their reasons."""
    manifest = pack(source, out, **options)
    found = listed(out)
    assert {record["document"]: record["reason"] for record in found} == bad
    assert [record["document"] for record in found] == sorted(bad)
    totals = manifest.totals
    assert totals.documents_rejected == dict(Counter(bad.values()))
    assert totals.documents_dropped["rejected"] == len(bad)
    assert totals.documents == totals.documents_packed + sum(totals.documents_dropped.values())
    assert list(packer.verify(out)) == []
    assert list(packer.verify(out, source, tokenizer=options.get("tokenizer"))) == []
    return manifest


# ---- tokens ----

BAD_LISTS = {
    "null list": ({"input_ids": None, "labels": [1, 2]}, "missing_value"),
    "null token": ({"input_ids": [1, None], "labels": [1, 2]}, "invalid_tokens"),
    "negative token": ({"input_ids": [1, -5], "labels": [1, 2]}, "invalid_tokens"),
    "large token": ({"input_ids": [1, 2**31], "labels": [1, 2]}, "invalid_tokens"),
    "null labels": ({"input_ids": [1, 2], "labels": None}, "invalid_labels"),
    "null label": ({"input_ids": [1, 2], "labels": [1, None]}, "invalid_labels"),
    "few labels": ({"input_ids": [1, 2], "labels": [1]}, "invalid_labels"),
    "label below": ({"input_ids": [1, 2], "labels": [-101, 2]}, "invalid_labels"),
}
BAD_LINES = {
    "no JSON": ("{not JSON, " + TEXT, "unreadable"),
    "cut": ('{"input_ids": [1, 2', "unreadable"),
    "twice": ('{"input_ids": [1], "input_ids": [2], "labels": [1]}', "unreadable"),
    "no object": ("[1, 2]", "unreadable"),
    "null line": ("null", "unreadable"),
    "no column": ({"text": TEXT}, "missing_value"),
    "text": ({"input_ids": TEXT, "labels": [1]}, "wrong_type"),
    "text as a token": ({"input_ids": [1, TEXT], "labels": [1, 2]}, "invalid_tokens"),
    "half a token": ({"input_ids": [1.5], "labels": [1]}, "invalid_tokens"),
    "no labels": ({"input_ids": [1, 2]}, "invalid_labels"),
    "a mask of its own": ({"input_ids": [1], "labels": [1], "loss_mask": [1]}, "invalid_labels"),
}


def mixed_up(bad: Collection[tuple], good: list = GOOD) -> tuple[list, dict[int, str]]:
    """Return good records with bad ones between them, and the reasons of these, given with them, by their number."""
    records = [*good[:3]]
    reasons = {}
    for number, (one, reason) in enumerate(bad):
        reasons[len(records)] = reason
        records += [one, *good[3 + number : 4 + number]]
    return [*records, *good[3 + len(bad) :]], reasons


def assert_rows_of_emptied(folder: Path, records: list, at: Collection[int]) -> None:
    """Check that rows are those of the same source with empty documents in place of some."""
    emptied = write_lines(folder / "emptied.jsonl", [EMPTY if n in at else one for n, one in enumerate(records)])
    pack(emptied, folder / "expected", on_error="error")
    assert shards(folder / "out") == shards(folder / "expected")


@pytest.fixture
def small(monkeypatch):
    """Make pieces and blocks of a few documents."""
    shrink(monkeypatch, piece=600, json_block=200, record_block=200)


@pytest.mark.parametrize("name", ["rows.arrow", "rows.z.arrow", "rows.parquet", "rows.jsonl.gz", "dataset", "table"])
def test_lists_that_cannot_be_used_are_left_out_of_every_format(tmp_path, name):
    records, reasons = mixed_up(BAD_LISTS.values())
    columns = {column: pa.array([record[column] for record in records], kind) for column, kind in LISTS.items()}
    if name == "rows.jsonl.gz":
        source = tmp_path / name
        source.write_bytes(gzip.compress(b"".join(json.dumps(record).encode() + b"\n" for record in records)))
    else:
        source = write_as(tmp_path / name, pa.table(columns))
    assert_left_out(source, tmp_path / "out", reasons)
    place = {"line": 4} if name == "rows.jsonl.gz" else {"row": 3}
    assert place.items() <= listed(tmp_path / "out")[0].items()
    assert_rows_of_emptied(tmp_path, records, reasons)


def test_lines_that_cannot_be_used_are_left_out(tmp_path, small):
    records, reasons = mixed_up(BAD_LINES.values())
    lines = ["", *records[:5], "  ", *records[5:]]  # blank lines count as lines only
    source = write_lines(tmp_path / "rows.jsonl", lines)
    assert_left_out(source, tmp_path / "out", reasons)
    assert [one["line"] for one in listed(tmp_path / "out")] == [n + 2 + (n >= 5) for n in reasons]
    assert_rows_of_emptied(tmp_path, records, reasons)


def test_the_first_valid_line_says_which_columns_a_file_has(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", ["nonsense", *GOOD])
    manifest = pack(source, tmp_path / "out")
    assert manifest.totals.documents_packed == len(GOOD)
    assert manifest.source.labels
    with pytest.raises(PackerError, match=r"document 0 \(rows.jsonl line 1\): not valid JSON"):
        pack(source, tmp_path / "other", on_error="error")
    with pytest.raises(PackerError, match=r"rows.jsonl: no column 'input_ids' \(found: text\)"):
        pack(write_lines(source, [{"text": "a"}, *GOOD]), tmp_path / "other")


def test_masks_that_cannot_be_used_are_left_out(tmp_path):
    good = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 0], "completion_mask": [0, 1, 1]}] * 4
    bad = [
        {**good[0], "attention_mask": [1, 0, 1]},  # padding between tokens
        {**good[0], "completion_mask": [0, 2, 1]},
        {**good[0], "completion_mask": [0, 1]},
        {**good[0], "attention_mask": None},
    ]
    records, reasons = mixed_up([(record, "invalid_labels") for record in bad], good)
    for name in ("rows.jsonl", "rows.parquet", "table"):
        source = write_as(tmp_path / name, records)
        manifest = assert_left_out(source, tmp_path / f"out {name}", reasons)
        assert manifest.totals.tokens == 2 * len(good)


def test_elements_of_a_json_array_that_are_no_objects_are_left_out(tmp_path, tokenizer):
    elements = ["5", '{"text": "a", "text": "b"}', '{"text": "fox"}', '["x", {}]', "null", '{"id": 7}']
    elements.insert(0, f'{{"text": "dogs", "id": 1{"0" * 5000}}}')  # more digits than Python takes
    (tmp_path / "rows.json").write_text(f"[{', '.join(elements)}]")
    bad = dict.fromkeys((0, 1, 2, 4, 5), "unreadable") | {6: "missing_value"}
    assert_left_out(tmp_path / "rows.json", tmp_path / "out", bad, tokenizer=tokenizer)


def test_chats_are_split_at_exchanges_where_others_are_left_out(tmp_path, tokenizer):
    turns = [say(role, f"fox {n}") for n in range(4) for role in ("user", "assistant")]
    records = [{"messages": chat} for chat in (turns, None, turns[:4], [say("narrator")], turns)]
    source = write_lines(tmp_path / "chats.jsonl", records)
    options = {"tokenizer": tokenizer, "split_at": "exchanges", "max_len": 64}
    assert_left_out(source, tmp_path / "out", {1: "missing_value", 3: "invalid_chat"}, **options)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_limit_needs_a_number_in_every_record_that_is_packed(tmp_path, name):
    records = [{**record, "images": number % 4} for number, record in enumerate(GOOD)]
    if name.endswith("jsonl"):
        records.insert(3, "nonsense")
    source = write_as(tmp_path / name, records)
    rejected = {"unreadable": 1} if name.endswith("jsonl") else {}
    manifest = pack(source, tmp_path / "out", limit=["images:6"])
    assert manifest.totals.documents_rejected == rejected
    for value, words in ((None, "missing; give it a number"), (-1, "-1; expected 0 to"), (2**31, "expected 0 to")):
        records[5] = {**GOOD[5], "images": value}
        source = write_as(tmp_path / f"bad-{name}", records)
        with pytest.raises(SourceError, match=rf"document 5 .*'images' is .*{words}"):
            pack(source, tmp_path / "no", limit=["images:6"])


def test_values_that_cannot_be_kept_are_left_out(tmp_path):
    bad = [{"input_ids": [1], "id": 2**80}, {"input_ids": [1], "id": [1, TEXT]}, {"input_ids": [1], "id": "\ud800"}]
    good = [{"input_ids": [1, 2], "id": n} for n in range(9)]
    records, reasons = mixed_up([(record, "invalid_value") for record in bad], good)
    source = write_lines(tmp_path / "rows.jsonl", records)
    # a list and a string are fine as values, but not among numbers: that is an error about the column
    misfit = write_lines(tmp_path / "misfit.jsonl", [*records, {"input_ids": [1], "id": "x"}])
    with pytest.raises(SourceError, match="use one type"):
        pack(misfit, tmp_path / "no", keep=["id"])
    assert_left_out(source, tmp_path / "out", reasons, keep=["id"])


# ---- text ----


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    refusing = EXACT["chatml"].replace(
        "{% for message in messages %}",
        "{% if messages[0].role == 'assistant' %}{{ raise_exception('no ' + messages[0].content) }}{% endif %}"
        "{% for message in messages %}",
        1,
    )
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=refusing)


def say(role: str, content: object = "The quick fox") -> dict:
    return {"role": role, "content": content}


CHAT = [say("user"), say("assistant", "brown dogs")]
BAD_CHATS = {
    "null": (None, "missing_value"),
    "begins with the assistant": ([say("assistant", TEXT), *CHAT], "template_error"),
    "unknown role": ([say("narrator", TEXT), *CHAT], "invalid_chat"),
    "no role": ([{"content": TEXT}, *CHAT], "invalid_chat"),
    "null role": ([say("user"), {"role": None, "content": TEXT}], "invalid_chat"),
}
BAD_CHAT_LINES = {
    **BAD_CHATS,
    "text": (TEXT, "wrong_type"),
    "no object": ([TEXT], "wrong_type"),
    "long role": ([say(TEXT)], "invalid_chat"),
    "number": ([say("user", 5)], "wrong_type"),
    "surrogate": ([say("user", TEXT + "\ud800")], "invalid_text"),
    "weight": ([{**say("assistant"), "weight": -0.5}], "invalid_chat"),
}


@pytest.mark.parametrize("name", ["chats.jsonl", "chats.json", "chats.parquet", "chats.arrow", "table"])
def test_chats_that_cannot_be_used_are_left_out(tmp_path, tokenizer, name, small):
    table_of = BAD_CHAT_LINES if ".json" in name else BAD_CHATS
    good = [{"messages": [say("user", f"dogs {n}"), say("assistant", "fox " * n)]} for n in range(1, 20)]
    records, reasons = mixed_up([({"messages": chat}, reason) for chat, reason in table_of.values()], good)
    source = tmp_path / name
    if name == "chats.jsonl":
        records.insert(0, {"messages": CHAT})
        records += ['{"messages": [', {}]
        reasons = {document + 1: reason for document, reason in reasons.items()}
        reasons |= {len(records) - 2: "unreadable", len(records) - 1: "missing_value"}
        write_lines(source, records)
    elif name == "chats.json":
        source.write_text("[\n" + ",\n".join(map(json.dumps, [*records, 5, [1]])) + "]")
        reasons |= {len(records): "unreadable", len(records) + 1: "unreadable"}
    else:
        source = write_as(source, records, rows=5)
    assert_left_out(source, tmp_path / "out", reasons, tokenizer=tokenizer)
    # The documents that are left are those of the same source without the others, under their own numbers.
    usable = [record for n, record in enumerate(records) if n not in reasons]
    pack(write_lines(tmp_path / "usable.jsonl", usable), tmp_path / "usable", tokenizer=tokenizer, on_error="error")
    found, expected = documents_of(tmp_path / "out"), documents_of(tmp_path / "usable")
    assert [found[n] for n in sorted(found)] == [expected[n] for n in sorted(expected)]
    assert sorted(found) == [n for n in range(len(records)) if n not in reasons]


def test_spans_that_cannot_be_located_are_left_out(tmp_path):
    template = (  # what comes before the end of a message depends on what follows
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content == 'think' and loop.last %}hmm{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template=template)
    unlocated = [say("user"), say("assistant", "think"), say("user"), say("assistant")]
    source = write_lines(tmp_path / "chats.jsonl", [{"messages": chat} for chat in (CHAT, unlocated, CHAT)])
    assert_left_out(source, tmp_path / "out", {1: "unlocated_spans"}, tokenizer=tokenizer)


def test_texts_of_csv_and_text_files_are_left_out(tmp_path, tokenizer):
    rows = [["text", "id"], ["fox", "1"], ["dogs"], ["a", "b", TEXT], ["brown", "4"]]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    bad = {1: "unreadable", 2: "unreadable"}
    assert_left_out(tmp_path / "rows.csv", tmp_path / "out", bad, tokenizer=tokenizer, keep=["id"])
    (tmp_path / "texts").mkdir()
    for name, content in (("a", b"fox"), ("b", b"dogs \xff"), ("c", b"brown")):
        (tmp_path / "texts" / f"{name}.txt").write_bytes(content)
    assert_left_out(tmp_path / "texts", tmp_path / "other", {1: "unreadable"}, tokenizer=tokenizer)


def test_prompts_and_texts_without_a_value_are_left_out(tmp_path, tokenizer):
    records = [{"prompt": "a", "completion": "b"}, {"prompt": None, "completion": "b"}, {"prompt": "a"}]
    source = write_lines(tmp_path / "pairs.jsonl", records)
    assert_left_out(source, tmp_path / "out", {1: "missing_value", 2: "missing_value"}, tokenizer=tokenizer)
    source = write_lines(tmp_path / "texts.jsonl", [{"text": None}, {}, {"text": 5}, {"text": "fox"}])
    bad = {0: "missing_value", 1: "missing_value", 2: "wrong_type"}
    assert_left_out(source, tmp_path / "texts", bad, tokenizer=tokenizer)


LINES = [
    *(
        b'{"prompt": "a \\u00e9\\ud83d\\ude00", "completion": "b\\n"}',
        b' \t{"completion": "b", "prompt": "\xc3\xa9 "} \r',
        b"",
    ),
    *(
        b'{"prompt": "a", "completion": "b", "prompt": "a"}',
        b'{"prompt": "a", "completion": "b", "x": {"y": 1, "y": 2}}',
    ),
    *(
        b'{"prompt": "a", "completion": 5}',
        b'{"prompt": "a", "completion": null}',
        b'{"prompt": "a"}',
        b"[1]",
        b"7",
        b"null",
    ),
    *(
        b'{"prompt": "\\ud800", "completion": "b"}',
        b'{"prompt": "\xff", "completion": "b"}',
        b'{"prompt": "a", "completion"',
    ),
    *(b'{"prompt": "a", "completion": "b"} {}', b'\xef\xbb\xbf{"prompt": "a", "completion": "b"}', b'{"prompt": "\t"}'),
    b'{"prompt": "a", "completion": "b", "n": 123456789012345678901234567890, "x": [NaN, 1e999], "y": null}',
]


def test_lines_of_text_are_read_or_left_out_as_json_reads_them(tmp_path, tokenizer):
    def unique(pairs):
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    good, bad = [], []
    for number, line in enumerate(filter(bytes.strip, LINES)):
        try:
            record = json.loads(line.decode(), object_pairs_hook=unique)
            "".join((record["prompt"], record["completion"])).encode()
        except (AssertionError, ValueError, TypeError, KeyError):
            bad.append(number)
        else:
            good.append({name: record[name] for name in ("prompt", "completion")})
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(LINES))
    pack(tmp_path / "rows.jsonl", tmp_path / "out", tokenizer=tokenizer)
    pack(write_lines(tmp_path / "good.jsonl", good), tmp_path / "good", tokenizer=tokenizer)
    assert [record["document"] for record in listed(tmp_path / "out")] == bad
    assert len(good) == 3
    assert list(documents_of(tmp_path / "out").values()) == list(documents_of(tmp_path / "good").values())


def test_a_text_of_a_table_that_is_no_utf8_is_left_out(tmp_path, tokenizer):
    buffers = pa.array([b"fox", b"dogs \xff", b"brown"]).buffers()
    pq.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 3, buffers)}), tmp_path / "rows.parquet")
    assert_left_out(tmp_path / "rows.parquet", tmp_path / "out", {1: "invalid_text"}, tokenizer=tokenizer)


def test_a_file_that_does_not_parse_stays_an_error(tmp_path, tokenizer):
    (tmp_path / "cut.json").write_text('[{"text": "a"}, {"text": ')
    (tmp_path / "cut.csv").write_text('text\n"a\n')
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and nothing else")
    for name in ("cut.json", "cut.csv", "cut.parquet"):
        with pytest.raises(PackerError) as caught:
            pack(tmp_path / name, tmp_path / "out", tokenizer=tokenizer)
        assert REMEDY not in str(caught.value)


# ---- the whole ----


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    records, _ = mixed_up((BAD_LINES | BAD_LISTS).values())
    return write_lines(tmp_path_factory.mktemp("source") / "rows.jsonl", records)


@pytest.fixture(scope="module")
def packed(source, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(source, out)
    return out


def test_bytes_do_not_depend_on_workers_or_pieces(source, packed, tmp_path, small):
    pack(source, tmp_path / "out", workers=4)
    assert hashes(tmp_path / "out") == hashes(packed)


@pytest.mark.parametrize("name", [r"spill/00000-00002\.json$", "data-00000-", r"rejected\.jsonl$"])
def test_an_interrupted_pack_lists_the_same(source, packed, tmp_path, small, monkeypatch, name):
    out = tmp_path / "out"
    with monkeypatch.context() as striking:
        kill(striking, name, after=True)
        with pytest.raises(Killed):
            pack(source, out, workers=1)
    streams = {path: path.stat().st_mtime_ns for path in (out / ".packer").glob("*/spill/*.rejected")}
    assert streams
    if "spill" not in name:  # a list that is damaged is made again
        next(path for path in streams if path.stat().st_size).write_text("[0, 0, 'unreadable', 'x']\n")
    pack(source, out, workers=4)
    assert hashes(out) == hashes(packed)


def test_an_unfinished_pack_is_not_resumed_with_the_other_choice(source, tmp_path, monkeypatch):
    with monkeypatch.context() as striking:
        kill(striking, r"spill/.*\.json$", after=True)
        with pytest.raises(Killed):
            pack(source, tmp_path / "out")
    with pytest.raises(PackerError, match="on_error skip, not error"):
        pack(source, tmp_path / "out", on_error="error")


def test_verify_finds_a_list_or_counts_that_were_changed(source, packed, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(packed, out)
    (out / "rejected.jsonl").write_text((packed / "rejected.jsonl").read_text().replace('"line": 4', '"line": 5'))
    assert list(packer.verify(out)) == ["rejected.jsonl was changed after packing"]
    (out / "rejected.jsonl").unlink()
    assert list(packer.verify(out)) == ["rejected.jsonl is missing"]
    shutil.copy(packed / "rejected.jsonl", out)

    def move(content):  # from one reason to another
        content["totals"]["documents_rejected"]["unreadable"] -= 1
        content["totals"]["documents_rejected"]["wrong_type"] += 1

    edit_manifest(out, move)
    faults = list(packer.verify(out))
    assert faults == [
        "documents_rejected.unreadable is 4 in the manifest, 5 computed from rejected.jsonl",
        "documents_rejected.wrong_type is 2 in the manifest, 1 computed from rejected.jsonl",
    ]


def test_verify_finds_a_source_that_rejects_other_records(source, packed, tmp_path):
    lines = source.read_text().splitlines()
    fixed = next(n for n, line in enumerate(lines) if line == "null")
    lines[fixed] = json.dumps(EMPTY)  # as many documents, tokens and lengths
    other = tmp_path / "rows.jsonl"
    other.write_text("\n".join(lines) + "\n")
    faults = list(packer.verify(packed, other))
    assert "documents_dropped.rejected is 19 in the manifest, 18 computed from the source" in faults


def test_a_list_that_is_not_in_the_manifest_is_found(tmp_path):
    pack(write_lines(tmp_path / "rows.jsonl", GOOD), tmp_path / "out", on_error="error")
    (tmp_path / "out" / "rejected.jsonl").write_text("")
    assert list(packer.verify(tmp_path / "out")) == ["rejected.jsonl is not listed in the manifest"]


def test_without_the_option_nothing_changes(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", GOOD)
    manifest = pack(source, tmp_path / "out", on_error="error").to_dict()
    assert "on_error" not in manifest["options"]
    assert "documents_rejected" not in manifest["totals"]
    assert "rejected" not in manifest["totals"]["documents_dropped"]
    assert set(manifest["files"]) == {"dataset_info.json", "state.json"}
    assert not (tmp_path / "out" / "rejected.jsonl").exists()
    skipping = pack(source, tmp_path / "skipping")
    assert shards(tmp_path / "skipping") == shards(tmp_path / "out")
    assert skipping.totals.documents_rejected == {}
    assert (tmp_path / "skipping" / "rejected.jsonl").read_bytes() == b""
    assert datasets.load_from_disk(str(tmp_path / "skipping")).num_rows == manifest["totals"]["rows"]


def test_errors_about_one_record_name_the_remedy(tmp_path, tokenizer):
    source = write_lines(tmp_path / "rows.jsonl", [*GOOD, {"input_ids": [1, -5], "labels": [1, 2]}])
    table = datasets.Dataset.from_dict({"input_ids": [[1], [2, -5]]})
    texts = write_lines(tmp_path / "texts.jsonl", [{"text": "a"}, {"text": None}])
    for each, options in ((source, {}), (table, {}), (texts, {"tokenizer": tokenizer})):
        with pytest.raises(SourceError) as caught:
            pack(each, tmp_path / "out", on_error="error", **options)
        assert str(caught.value).endswith(f"; {REMEDY}".replace("--on-error skip", "on_error='skip'"))
    good = write_lines(tmp_path / "good.jsonl", GOOD)
    pack(good, tmp_path / "out", on_error="error")
    with pytest.raises(SourceError) as caught:  # which has no such option
        list(packer.verify(tmp_path / "out", write_lines(good, [*GOOD, "nonsense"])))
    assert str(caught.value).endswith("(char 0)")


def test_nothing_left_is_an_error_that_says_why(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", ["nonsense", {"input_ids": [-1]}, {"input_ids": []}])
    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "out")
    assert str(caught.value) == (
        "nothing is left: of 3 records, 2 cannot be used (1 unreadable, 1 invalid_tokens), and the others are empty; "
        "the first is document 0 (rows.jsonl line 1): not valid JSON: Expecting value: line 1 column 1 (char 0)"
    )
    assert not (tmp_path / "out").exists()


def test_records_that_a_template_refuses_are_named_if_nothing_is_trained(tmp_path):
    tokenizer = save_tokenizer(tmp_path / "rewriting", template=REWRITING["think block in the last turn"])
    question, answer = {"role": "user", "content": "fox?"}, {"role": "assistant", "content": "42"}
    chats = [[question], [question, answer, question, answer], [answer, question]]
    source = write_lines(tmp_path / "chats.jsonl", [{"messages": chat} for chat in chats])
    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "out", tokenizer=tokenizer)
    message = str(caught.value)
    assert (
        "packed tokens is trained, and of the records, 2 cannot be used (2 unlocated_spans); the first is document 1 ("
        in message
    )
    assert "(chats.jsonl line 2): the chat template renders the chat up to message 1" in message
    assert message.endswith("; or choose untrained='keep-all'")
    manifest = pack(source, tmp_path / "out", tokenizer=tokenizer, untrained="keep-all")
    assert manifest.totals.documents_rejected == {"unlocated_spans": 2}


@pytest.mark.parametrize("is_unfinished", [False, True])
def test_the_list_of_a_replaced_output_goes_with_it(source, tmp_path, monkeypatch, is_unfinished):
    out = tmp_path / "out"
    with monkeypatch.context() as striking, suppress(Killed):
        if is_unfinished:
            kill(striking, r"rejected\.jsonl$", after=True)
        pack(source, out)
    assert (out / "manifest.json").exists() != is_unfinished
    assert (out / "rejected.jsonl").stat().st_size
    pack(write_lines(tmp_path / "good.jsonl", GOOD), out, on_error="error", overwrite=True)
    assert not list(out.glob("rejected*"))
    assert list(packer.verify(out)) == []


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.parquet", "table"])
def test_a_pair_is_left_out_whole_if_one_answer_cannot_be_used(tmp_path, name):
    records = [{"chosen_input_ids": [n + 1, 2], "rejected_input_ids": [n + 1, 3, 4]} for n in range(8)]
    records = [{**one, "chosen_labels": [-100, 2], "rejected_labels": [-100, 3, 4]} for one in records]
    records[2]["chosen_input_ids"] = [1, -5]
    records[5]["rejected_input_ids"] = None
    source = write_as(tmp_path / name, records)
    options = {"pairs": True, "long": "drop"}
    unlike = write_as(tmp_path / f"other {name}", [{**records[0], "rejected_input_ids": [7, -5, 4]}])
    with pytest.raises(SourceError, match=r"document 0 \(.*: 'rejected_input_ids' holds -5 at position 1"):
        pack(unlike, tmp_path / "no", on_error="error", **options)
    manifest = assert_left_out(source, tmp_path / "out", {2: "invalid_tokens", 5: "missing_value"}, **options)
    assert manifest.totals.documents_dropped == {"empty": 0, "too_long": 0, "rejected": 2}


def test_documents_of_an_indices_mapping_are_listed_where_they_are_selected(tmp_path):
    dataset = datasets.Dataset.from_dict({"input_ids": [[1], None, [2, None], [3, 4], [5]]})
    manifest = pack(dataset.select([3, 2, 0, 2, 4]), tmp_path / "out")
    found = [(one["document"], one["row"], one["reason"]) for one in listed(tmp_path / "out")]
    assert found == [(1, 1, "invalid_tokens"), (3, 3, "invalid_tokens")]
    assert manifest.totals.documents_rejected == {"invalid_tokens": 2}
    assert manifest.totals.documents_packed == 3


def test_tokenize_leaves_records_out_and_packs_the_same_rows(tmp_path, tokenizer):
    records = [{"text": "fox"}, {"text": None}, "nonsense", {"text": "brown dogs"}]
    source = write_lines(tmp_path / "texts.jsonl", records)
    arguments = ["tokenize", str(source), "--tokenizer", tokenizer, "-o", str(tmp_path / "tokens"), "--no-sync"]
    assert refused(*arguments).endswith(REMEDY)
    said = succeeded(*arguments, "--on-error", "skip")
    assert "rejected  2  1 unreadable, 1 missing value" in said
    assert f"Rejected records are listed in {tmp_path / 'tokens' / 'rejected.jsonl'}" in said
    assert [one["document"] for one in listed(tmp_path / "tokens")] == [1, 2]
    content = json.loads(succeeded(*arguments, "--on-error", "skip", "--json"))
    assert content["found_complete"]
    assert content["rejected"] == str(tmp_path / "tokens" / "rejected.jsonl")
    assert datasets.load_from_disk(str(tmp_path / "tokens")).num_rows == 4
    pack(tmp_path / "tokens", tmp_path / "from tokens", on_error="error")
    pack(source, tmp_path / "from text", tokenizer=tokenizer)
    assert shards(tmp_path / "from tokens") == shards(tmp_path / "from text")
    (tmp_path / "tokens" / "rejected.jsonl").unlink()
    assert "rejected.jsonl is missing" in run(*arguments, "--on-error", "skip").stderr


def test_the_command_says_how_many_are_rejected_why_and_where(source, tmp_path):
    out = tmp_path / "out"
    arguments = ["pack", str(source), "--max-len", "16", "--on-error", "skip", "-o", str(out), "--no-sync"]
    said = succeeded(*arguments)
    assert "rejected" in said
    assert "5 unreadable, 2 missing value, 1 wrong type, 5 invalid tokens, 6 invalid labels" in said
    assert f"Rejected records are listed in {out / 'rejected.jsonl'}" in said
    content = json.loads(succeeded(*arguments, "--json"))
    assert content["rejected"] == str(out / "rejected.jsonl")
    assert sum(content["totals"]["documents_rejected"].values()) == 19


def test_statistics_and_comparisons_take_the_option(source):
    for more in ([], ["--algorithm", "all"]):
        done = run("stats", source, *more, "--max-len", 16, "--on-error", "skip", "--json")
        assert done.exit_code == 0, done.output
        (warning,) = done.stderr.splitlines()
        assert warning == (
            "packer: 19 records cannot be used and count as empty documents here (5 unreadable, 2 missing value, "
            "1 wrong type, 5 invalid tokens, 6 invalid labels): `packer pack` lists them"
        )


# ---- properties ----

good_records = st.integers(0, 6).map(lambda n: {"input_ids": [*range(1, n + 1)], "labels": [*range(1, n + 1)]})
bad_records = st.sampled_from([record for record, _ in (BAD_LINES | BAD_LISTS).values()])
some_records = st.lists(
    good_records.map(lambda one: (one, True)) | bad_records.map(lambda one: (one, False)), max_size=30
)


@settings(max_examples=25, deadline=None)
@given(records=some_records, block=st.sampled_from([50, 1 << 20]))
def test_rows_are_those_with_empty_documents_in_place_of_bad_records(tmp_path_factory, records, block):
    folder = tmp_path_factory.mktemp("property")
    records = [({"input_ids": [7, 8], "labels": [7, 8]}, True), *records]  # the first line says what lines have
    source = write_lines(folder / "rows.jsonl", [record for record, _ in records])
    emptied = write_lines(folder / "emptied.jsonl", [record if is_good else EMPTY for record, is_good in records])
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, json_block=block)
        manifest = pack(source, folder / "out", workers=2)
    pack(emptied, folder / "expected", on_error="error", workers=2)
    assert shards(folder / "out") == shards(folder / "expected")
    bad = [number for number, (_, is_good) in enumerate(records) if not is_good]
    assert [one["document"] for one in listed(folder / "out")] == bad
    assert manifest.totals.documents_dropped["rejected"] == len(bad)
