"""Text from CSV files, text files and JSON arrays: the same documents as from JSON lines."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

import packer
from packer.errors import PackerError
from tests.helpers.commands import run
from tests.helpers.from_text import documents_of
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines

TEXTS = ["one, two", 'a "quoted" word', "two\nlines", "", "Zoë's naïve café 中文 😀", "last"]


def packed(source: Path, tokenizer: Path, out: str = "packed", **options) -> list[list[int]]:
    """The documents of a source as tokens, in order."""
    packer.pack(
        source, source.parent / out, max_len=64, tokenizer=tokenizer, algorithm="sequential", sync=False, **options
    )
    return [tokens for _, (tokens, _) in sorted(documents_of(source.parent / out).items())]


def write_csv(path: Path, texts: list[str], header: str = "text", end: str = "\r\n") -> Path:
    lines = [header, *('"' + text.replace('"', '""') + '"' for text in texts)]
    path.write_bytes(("".join(line + end for line in lines)).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_csv_holds_the_same_documents_as_json_lines(tmp_path, tokenizer, end, start, monkeypatch):
    shrink(monkeypatch, record_block=10)
    source = write_csv(tmp_path / "rows.csv", TEXTS, end=end)
    source.write_bytes(start + source.read_bytes())
    expected = packed(write_lines(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS]), tokenizer, "expected")
    assert packed(source, tokenizer) == expected
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(source.read_bytes()))
    assert packed(tmp_path / "rows.csv.gz", tokenizer, "compressed") == expected
    assert not list(packer.verify(tmp_path / "packed", source, tokenizer=tokenizer))


def test_columns_of_csv_are_kept_as_strings_and_alpaca_is_recognized(tmp_path, tokenizer):
    path = tmp_path / "rows.csv"
    path.write_text("instruction,input,output,score\nAdd,2 and 2,4,0.5\nGreet,,Hello!,1\n")
    records = [
        {"instruction": "Add", "input": "2 and 2", "output": "4"},
        {"instruction": "Greet", "input": "", "output": "Hello!"},
    ]
    expected = packed(write_lines(tmp_path / "rows.jsonl", records), tokenizer, "expected")
    assert packed(path, tokenizer, keep=["score"]) == expected
    assert [value for row in packer.load(tmp_path / "packed") for value in row["score"] if value] == ["0.5", "1"]


def test_each_text_file_of_a_folder_is_a_document(tmp_path, tokenizer):
    folder = tmp_path / "books"
    (folder / "more").mkdir(parents=True)
    for name, text in zip(("a.txt", "b.txt", "more/c.txt"), TEXTS, strict=False):
        (folder / name).write_text(text)
    expected = packed(
        write_lines(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS[:3]]), tokenizer, "expected"
    )
    assert packed(folder, tokenizer) == expected


def test_notes_beside_data_are_left_out(tmp_path, tokenizer, caplog):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "LICENSE.txt").write_text("All rights reserved.")
    write_csv(folder / "rows.csv", TEXTS)
    assert len(packed(folder, tokenizer)) == 5  # one is empty
    write_lines(folder / "rows.jsonl", [{"text": "word"}])
    with caplog.at_level("INFO", logger="packer"):
        assert len(packed(folder, tokenizer, "lines")) == 1
    assert "2 of 3 files are left out, because CSV and text are read only where there is nothing else" in caplog.text


RECORDS = [{"text": text, "topic": number} for number, text in enumerate(TEXTS)]


def spaced(records: list[dict], space: str) -> str:
    return f"{space}[{space}" + f"{space},{space}".join(map(json.dumps, records)) + f"{space}]{space}"


@pytest.mark.parametrize("space", ["", " \n"])
def test_an_array_is_packed_as_lines_are(tmp_path, tokenizer, space):
    path = tmp_path / "rows.json"
    path.write_text(spaced(RECORDS, space))
    expected = packed(write_lines(tmp_path / "rows.jsonl", RECORDS), tokenizer, "expected", keep=["topic"])
    assert packed(path, tokenizer, keep=["topic"]) == expected
    (tmp_path / "rows.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert packed(tmp_path / "rows.json.gz", tokenizer, "compressed", keep=["topic"]) == expected
    assert not list(packer.verify(tmp_path / "packed", path, tokenizer=tokenizer))


LIMIT = "the record has more than {:,} {}, the limit; split it into several, or remove it"


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "many fields.csv", "many lines.csv"])
def test_a_record_above_the_limit_is_refused(tmp_path, tokenizer, monkeypatch, name, ending):
    shrink(monkeypatch, record=5 << 20)
    size = 11 << 20
    records = [{"text": "short"}, {"text": "a" * size}, {"text": "short"}]
    text = {
        "rows.jsonl": "".join(json.dumps(record) + "\n" for record in records),
        "rows.json": json.dumps(records),
        "rows.csv": "text\nshort\n" + "a" * size + "\nshort\n",
        "many fields.csv": "text\nshort\n" + "," * size + "\nshort\n",
        "many lines.csv": 'text\nshort\n"' + "a\n" * (size // 2) + '"\nshort\n',
    }[name]
    path = tmp_path / (name + ending)
    path.write_bytes(gzip.compress(text.encode(), 1) if ending else text.encode())
    message = LIMIT.format(5 << 20, "characters" if name.endswith("csv") else "bytes")
    for options in ({}, {"on_error": "skip"}):
        with pytest.raises(PackerError) as raised:
            packed(path, tokenizer, **options)
        assert message in str(raised.value)
        assert path.name in str(raised.value)
        assert ("line 2" if name == "rows.jsonl" else "document 1") in str(raised.value)
    assert not (tmp_path / "packed" / "manifest.json").exists()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_text_file_above_the_limit_is_refused(tmp_path, tokenizer, monkeypatch, ending):
    shrink(monkeypatch, record=5 << 20)
    path = tmp_path / f"long.txt{ending}"
    with pa.output_stream(str(path), compression={"": None, ".gz": "gzip", ".zst": "zstd"}[ending]) as file:
        for _ in range(11):
            file.write(b"a" * (1 << 20))
    for options in ({}, {"on_error": "skip"}):
        with pytest.raises(PackerError, match=LIMIT.format(5 << 20, "bytes")) as raised:
            packed(path, tokenizer, **options)
        assert path.name in str(raised.value)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_list_of_tokens_above_the_limit_is_refused_with_its_line(tmp_path, monkeypatch, name):
    shrink(monkeypatch, record=5 << 20)
    lines = b'{"input_ids": [1, 2]}\n\n' * 1000 + b'{"input_ids": [' + b"1," * (6 << 20) + b"1]}\n"
    (tmp_path / name).write_bytes(gzip.compress(lines, 1) if name.endswith("gz") else lines)
    done = run("pack", str(tmp_path / name), "--max-len", "64", "-o", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert f"{name} line 2001: {LIMIT.format(5 << 20, 'bytes')}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
