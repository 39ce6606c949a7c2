"""Every row of the table of bad input, through the command: one line that helps, and nothing left that looks whole."""

import contextlib
import errno
import gzip
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import CliRunner, Result

import packer
from packer.cli import cli
from packer.notes import NotesInFolder
from packer.output.output_folder import OutputFolder
from packer.output.packed_output import PackedOutput
from packer.shards.files import HashingFile
from tests.test_pack import hashes, made_documents, save_arrow

GOOD = [[5, 6, 7], [1], [8, 9], [3, 3, 3, 3], [2]]


def run(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def refused(*arguments: object, words: tuple[str, ...], code: int = 1) -> str:
    """Run a command that must fail in one line holding these words."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("packer: ")
    for word in words:
        assert word in line
    return line


def succeeded(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def write_source(path: Path, documents: list, labels: list | None = None, kind: pa.DataType | None = None) -> Path:
    """Write a table in the format of the path's suffix."""
    columns = {"input_ids": pa.array(documents, kind or pa.list_(pa.int64()))}
    if labels is not None:
        columns["labels"] = pa.array(labels, pa.list_(pa.int64()))
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    elif path.suffix == ".feather":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as stream:
            stream.write_table(table)
    else:
        content = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
        compress = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
        path.write_bytes(compress(content))
    return path


FORMATS = ("rows.arrow", "rows.feather", "rows.parquet", "rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst")


@pytest.mark.parametrize("name", FORMATS)
def test_good_documents_pack_from_every_format(tmp_path, name):
    source = write_source(tmp_path / name, GOOD)
    assert "Packed 5 documents into 3 rows" in succeeded("pack", source, "--max-len", 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows-packed-4", name]


# What is looked for and not found


@pytest.mark.parametrize("command", [("pack", "--max-len", 4), ("stats",)])
def test_a_path_that_is_not_there(tmp_path, command):
    refused(*command, tmp_path / "nowhere.jsonl", words=(str(tmp_path / "nowhere.jsonl"), "no such file or folder"))


@pytest.mark.parametrize("command", [("verify",), ("show",)])
def test_a_packed_dataset_that_is_not_there(tmp_path, command):
    row = (0,) if command == ("show",) else ()
    refused(*command, tmp_path / "nowhere", *row, words=(str(tmp_path / "nowhere"), "no such file or folder"))
    refused(*command, tmp_path, *row, words=(str(tmp_path), "manifest.json", "packer pack"))


def test_an_unknown_format_names_those_there_are(tmp_path):
    (tmp_path / "rows.xml").write_text("1,2,3\n")
    words = ("rows.xml", "unknown format", "1,2,3", ".arrow", ".parquet", ".jsonl")
    refused("pack", tmp_path / "rows.xml", "--max-len", 4, words=words)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.md").write_text("nothing to read")
    refused("pack", tmp_path / "folder", "--max-len", 4, words=("folder", "no file to read", ".jsonl"))
    assert not list(tmp_path.glob("*packed*"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_column_names_those_found(tmp_path, name):
    source = write_source(tmp_path / name, GOOD, labels=GOOD)
    words = (name, "'tokens'", "found: input_ids, labels", "--input-column")
    refused("pack", source, "--max-len", 4, "--input-column", "tokens", words=words)
    words = (str(source), "'targets'", "name one that exists")
    refused("pack", source, "--max-len", 4, "--labels-column", "targets", words=words)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_dataset_is_refused(tmp_path, name):
    source = write_source(tmp_path / name, [])
    refused("pack", source, "--max-len", 4, words=(str(source), "empty dataset", "0 documents"))
    refused("stats", source, "--max-len", 4, words=(str(source), "empty dataset", "0 documents"))
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_left_to_pack_is_refused_with_the_counts(tmp_path, name):
    source = write_source(tmp_path / name, [[], [1, 2, 3], [], [4, 5, 6, 7]])
    words = ("nothing to pack", "4 documents", "2 are empty", "2 longer than max_len 2", "--long drop", "check")
    refused("pack", source, "--max-len", 2, "--long", "drop", words=words)
    refused("stats", source, "--max-len", 2, "--long", "drop", words=words)
    assert list(tmp_path.iterdir()) == [source]


# What is wrong with a document

BAD = 2  # the document that is wrong in all of these
WRONG = {
    "null row": ([[5], [6], None], None, ("'input_ids' is null",)),
    "null token": ([[5], [6], [7, None]], None, ("null", "position 1")),
    "negative token": ([[5], [6], [7, 7, -3]], None, ("input_ids", "-3", "position 2", "2147483647")),
    "token above int32": ([[5], [6], [7, 2**31]], None, ("input_ids", "2147483648", "position 1", "2147483647")),
    "token far above int32": ([[5], [6], [7, 2**40]], None, ("input_ids", str(2**40), "2147483647")),
    "null labels": ([[5], [6], [7]], [[5], [6], None], ("labels",)),
    "null label": ([[5], [6], [7, 7]], [[5], [6], [7, None]], ("labels", "null", "position 1")),
    "label below no loss": ([[5], [6], [7, 7]], [[5], [6], [7, -101]], ("labels", "-101", "position 1", "-100")),
    "label above int32": ([[5], [6], [7, 7]], [[5], [6], [7, 2**31]], ("labels", "2147483648")),
    "fewer labels": ([[5], [6], [7, 7]], [[5], [6], [7]], ("labels", "1 value", "2 in 'input_ids'")),
    "more labels": ([[5], [6], [7, 7]], [[5], [6], [7, 7, 7]], ("labels", "3 values", "2 in 'input_ids'")),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_document_is_named_and_nothing_is_left(tmp_path, name, fault):
    documents, labels, words = WRONG[fault]
    source = write_source(tmp_path / name, [*documents, [9]], labels=[*labels, [9]] if labels else None)
    place = f"document {BAD} ({name} {'line 3' if 'jsonl' in name else 'row 2'})"
    refused("pack", source, "--max-len", 4, words=(place, *words))
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("name", ["rows.arrow", "rows.jsonl"])
def test_a_wrong_token_is_found_behind_a_cut_at_its_place_in_the_document(tmp_path, name):
    source = write_source(tmp_path / name, [[1], [2, 2, 2, 2, 2, 2, 2, -7, 2]])
    refused("pack", source, "--max-len", 3, words=("document 1", "-7", "position 7"))
    source = write_source(tmp_path / name, [[1], [2, 2, 2, 2, 2, 2, 2, -7, 2]])
    succeeded("pack", source, "--max-len", 3, "--long", "truncate")  # nobody reads what is cut off


@pytest.mark.parametrize("name", ["rows.arrow", "rows.parquet"])
def test_columns_of_other_types_are_refused(tmp_path, name):
    for kind, values in ((pa.list_(pa.float32()), [[1.0]]), (pa.string(), ["text"]), (pa.int64(), [1])):
        source = write_source(tmp_path / name, values, kind=kind)
        refused("pack", source, "--max-len", 4, words=(name, "'input_ids'", str(kind).split("<")[0], "integers"))
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("twice", ["input_ids", "labels", "quality"])
def test_a_column_that_is_there_twice_is_refused(tmp_path, twice):
    names = [*dict.fromkeys(["input_ids", "labels", "quality"]), twice]
    table = pa.table([pa.array([[1, 2]])] * 4, names=names)
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    words = ("rows.arrow", f"2 columns are named '{twice}'", "keep one")
    refused("pack", tmp_path / "rows.arrow", "--max-len", 4, "--keep-tokens", "quality", words=words)


def test_what_is_no_document_in_jsonl_names_the_line(tmp_path):
    source = tmp_path / "rows.jsonl"
    lines = {
        '{"input_ids": [1, 2}': "not valid JSON",
        '{"input_ids": "text"}': "list of integers",
        '{"input_ids": [1.5]}': "1.5",
        '{"tokens": [1]}': "no 'input_ids' (found: tokens)",
        "[1, 2]": "an array",
    }
    for line, words in lines.items():
        source.write_text(f'{{"input_ids": [1]}}\n\n{line}\n')
        refused("pack", source, "--max-len", 4, words=("document 1 (rows.jsonl line 3)", words))
    assert list(tmp_path.iterdir()) == [source]


def test_the_index_of_a_document_counts_through_the_files_of_a_folder(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    write_source(folder / "a.arrow", GOOD)
    write_source(folder / "b.jsonl", [[1], [2, -5]])
    refused("pack", folder, "--max-len", 4, words=("document 6 (b.jsonl line 2)", "-5", "position 1"))
    assert list(tmp_path.iterdir()) == [folder]


def test_empty_documents_are_dropped_and_counted(tmp_path):
    source = write_source(tmp_path / "rows.jsonl", [[], *GOOD, []])
    totals = json.loads(succeeded("pack", source, "--max-len", 4, "--json"))["totals"]
    assert totals["documents"] == 7
    assert totals["documents_dropped"] == {"empty": 2, "too_long": 0}
    assert totals["tokens_packed"] == totals["tokens"] == 11


@pytest.mark.parametrize(
    ("long", "counts"),
    [
        ("split", {"documents_split": 2, "segments": 8, "tokens_packed": 14}),
        ("truncate", {"documents_truncated": 2, "segments": 5, "tokens_packed": 8, "tokens_truncated": 6}),
        ("drop", {"segments": 3, "tokens_packed": 4, "tokens_truncated": 0}),
    ],
)
def test_long_documents_are_counted_under_every_policy(tmp_path, long, counts):
    source = write_source(tmp_path / "rows.arrow", [[1], [2] * 4, [3, 3], [4] * 6, [5]])
    content = json.loads(succeeded("pack", source, "--max-len", 2, "--long", long, "--json"))
    totals = content["totals"]
    expected = {"documents": 5, "tokens": 14, "documents_split": 0, "documents_truncated": 0, "tokens_truncated": 0}
    assert {name: totals[name] for name in expected | counts} == expected | counts
    too_long = 2 if long == "drop" else 0
    assert totals["documents_dropped"] == {"empty": 0, "too_long": too_long}
    assert totals["tokens_dropped"] == {"too_long": 10 if long == "drop" else 0}
    assert succeeded("verify", content["output"], "--source", source)


def test_a_long_document_is_an_error_when_asked_and_the_next_command_is_free(tmp_path):
    source = write_source(tmp_path / "rows.arrow", GOOD)
    words = ("document 3", "4 tokens", "max_len is 3", "--long split, truncate or drop")
    refused("pack", source, "--max-len", 3, "--long", "error", words=words)
    assert list(tmp_path.iterdir()) == [source]
    succeeded("pack", source, "--max-len", 3, "--long", "split")


# Files that are truncated or corrupt


def size_of(path: Path) -> int:
    return path.stat().st_size


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("name", FORMATS)
def test_a_truncated_file_is_named(tmp_path, name, share):
    source = write_source(tmp_path / name, made_documents(2000))
    os.truncate(source, int(size_of(source) * share))
    refused("pack", source, "--max-len", 64, words=(name,))
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_noise_is_named(tmp_path, name):
    source = tmp_path / name
    source.write_bytes(bytes(range(256)) * 20)
    refused("pack", source, "--max-len", 64, words=(name,))
    assert list(tmp_path.iterdir()) == [source]


def test_one_truncated_file_of_a_folder_is_named(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in FORMATS:
        write_source(folder / name, made_documents(100))
    os.truncate(folder / "rows.parquet", 500)
    assert "rows.jsonl" not in refused("pack", folder, "--max-len", 64, words=("rows.parquet",))
    assert list(tmp_path.iterdir()) == [folder]


# What is at OUT


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_arrow(tmp_path / "source.arrow", made_documents(300))


def pack_command(source: Path, out: Path, *more: object) -> tuple[object, ...]:
    """A command of about 14 shards."""
    return ("pack", source, "-o", out, "--max-len", 64, "--shard-size", "6KB", "--workers", 1, *more)


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything by which a rewritten file gives itself away; a lock is opened by whoever asks."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def interrupt_after(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """Make the next pack stop when so many shards are committed."""
    commit, count = PackedOutput.commit, iter(range(10**6))

    def limited(self, temporary, entry):
        if next(count) >= shards:
            raise KeyboardInterrupt
        commit(self, temporary, entry)

    monkeypatch.setattr(PackedOutput, "commit", limited)


@contextlib.contextmanager
def interrupted(shards: int):
    with pytest.MonkeyPatch.context() as monkeypatch:
        interrupt_after(monkeypatch, shards)
        yield


@pytest.fixture
def unfinished(tmp_path: Path, source: Path) -> Path:
    out = tmp_path / "out"
    with interrupted(3):
        refused(*pack_command(source, out), words=("interrupted", "the same command"), code=130)
    assert len(list(out.glob("data-*.arrow"))) == 3
    return out


@pytest.fixture
def complete(tmp_path: Path, source: Path) -> Path:
    succeeded(*pack_command(source, tmp_path / "out"))
    return tmp_path / "out"


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_file_or_a_folder_of_others_is_never_touched(tmp_path, source, more):
    file, folder, named_alike = tmp_path / "file", tmp_path / "folder", tmp_path / "alike"
    file.write_text("mine")
    for mine, name in ((folder, "thesis.tex"), (named_alike, "manifest.json")):
        mine.mkdir()
        (mine / name).write_text('{"mine": 1}')
    before = state_of(tmp_path)
    refused(*pack_command(source, file, *more), words=(str(file), "not a folder", "another --output"))
    refused(*pack_command(source, folder, *more), words=(str(folder), "not a packed dataset", "another --output"))
    refused(
        *pack_command(source, named_alike, *more),
        words=(str(named_alike), "was not written by packer", "another folder"),
    )
    refused(
        *pack_command(source, file / "below", *more), words=(str(file / "below"), "Not a directory", "another folder")
    )
    assert state_of(tmp_path) == before


def test_an_empty_folder_is_taken(tmp_path, source):
    (tmp_path / "out").mkdir()
    succeeded(*pack_command(source, tmp_path / "out"))


@pytest.mark.parametrize("out", [".", "..", "", "/"])
def test_folders_without_a_name_of_their_own_are_refused(tmp_path, source, monkeypatch, out):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    refused(*pack_command(source, Path(out)), words=("not a packed dataset", "--output"))
    assert len(list(tmp_path.iterdir())) == 2


def test_an_output_inside_the_source_is_refused(tmp_path, source):
    folder = tmp_path / "rows"
    folder.mkdir()
    source.rename(folder / "source.arrow")
    refused(*pack_command(folder, folder / "out"), words=(str(folder / "out"), "inside the source", "--output"))
    assert list(folder.iterdir()) == [folder / "source.arrow"]


def test_the_same_command_on_a_complete_dataset_says_so_and_touches_nothing(source, complete):
    before = state_of(complete)
    assert "is complete" in succeeded(*pack_command(source, complete))
    assert json.loads(succeeded(*pack_command(source, complete, "--json")))["found_complete"] is True
    assert state_of(complete) == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--max-len", 32), ("max_len 64, not 32",)),
        (("--algorithm", "ffd"), ("algorithm auto, not ffd",)),
        (("--seed", 7), ("seed 0, not 7",)),
        (("--long", "drop"), ("long split, not drop",)),
        (("--no-labels",), ("labels True, not False",)),
        (("--max-segments", 2), ("max_segments None, not 2",)),
    ],
)
def test_other_options_are_refused_with_both_values(source, complete, more, words):
    before = state_of(complete)
    refused(*pack_command(source, complete, *more), words=(str(complete), *words, "--output", "--overwrite"))
    assert state_of(complete) == before


@pytest.mark.parametrize("more", [("--max-len", 32), ("--seed", 7)])
def test_an_unfinished_pack_of_other_options_is_refused_with_both_values(source, unfinished, more):
    before = state_of(unfinished)
    word = f"{more[0][2:].replace('-', '_')} {64 if more[1] == 32 else 0}, not {more[1]}"
    words = (str(unfinished), "unfinished", word, "repeat that command", "--overwrite")
    refused(*pack_command(source, unfinished, *more), words=words)
    assert state_of(unfinished) == before
    succeeded(*pack_command(source, unfinished))


def test_an_unfinished_pack_is_no_source(source, unfinished):
    words = (str(unfinished), "unfinished", "give the dataset it is packed from")
    refused("pack", unfinished, "--max-len", 64, words=words)
    refused("stats", unfinished, words=words)


@pytest.mark.parametrize("name", FORMATS)
def test_another_or_a_changed_source_is_refused(tmp_path, name):
    documents = made_documents(50)
    source, out = write_source(tmp_path / name, documents), tmp_path / "out"
    succeeded("pack", source, "-o", out, "--max-len", 64)
    before = state_of(out)
    other = write_source(tmp_path / f"other-{name}", documents)
    refused("pack", other, "-o", out, "--max-len", 64, words=("other source files", "--overwrite"))
    write_source(source, documents[:-1])
    refused("pack", source, "-o", out, "--max-len", 64, words=("has changed since", "--overwrite"))
    assert state_of(out) == before
    succeeded("pack", source, "-o", out, "--max-len", 64, "--overwrite")
    assert "is verified" in succeeded("verify", out, "--source", source)


def test_lengths_that_change_within_a_file_of_the_same_size_are_noticed(tmp_path, complete):
    documents = made_documents(300)
    source = save_arrow(tmp_path / "source.arrow", [*documents[100:200], *documents[:100], *documents[200:]])
    refused(*pack_command(source, complete), words=("has changed since", "--overwrite"))


def test_so_they_are_before_an_unfinished_pack_goes_on(source, unfinished):
    documents, before = made_documents(300), source.stat()
    save_arrow(source, [*documents[100:200], *documents[:100], *documents[200:]])
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(*pack_command(source, unfinished), words=("started from a source that has changed since", "--overwrite"))


@contextlib.contextmanager
def held(lock: Path):
    """Hold a lock in another process."""
    code = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print('held'); input()"
    other = subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield
    finally:
        other.communicate("\n")


@pytest.mark.parametrize("more", [(), ("--overwrite",), ("--max-len", 32, "--overwrite")])
def test_an_output_in_use_by_another_process_is_refused(source, unfinished, more):
    before = state_of(unfinished)
    with held(unfinished / ".packer" / "lock"):
        words = (str(unfinished), "in use by another packer", "--output")
        refused(*pack_command(source, unfinished, *more), words=words)
        assert state_of(unfinished) == before
    succeeded(*pack_command(source, unfinished))


def test_overwrite_replaces_a_complete_dataset_and_an_unfinished_one(tmp_path, source, complete):
    fresh = tmp_path / "fresh"
    succeeded(*pack_command(source, fresh, "--seed", 1))
    succeeded(*pack_command(source, complete, "--seed", 1, "--overwrite"))
    assert hashes(complete) == hashes(fresh)
    with interrupted(2):
        refused(*pack_command(source, tmp_path / "half", "--shard-size", "9KB"), words=("interrupted",), code=130)
    succeeded(*pack_command(source, tmp_path / "half", "--seed", 1, "--overwrite"))
    assert hashes(tmp_path / "half") == hashes(fresh)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "half", "out", "source.arrow"]


def test_a_source_error_during_overwrite_leaves_the_complete_dataset(tmp_path, source, complete):
    before = state_of(complete)
    bad = write_source(tmp_path / "bad.jsonl", [[1], [-1]])
    refused("pack", bad, "-o", complete, "--max-len", 64, "--overwrite", words=("document 1", "-1"))
    assert state_of(complete) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "out", "source.arrow"]


def test_a_bad_source_leaves_the_unfinished_pack_of_a_good_one(source, unfinished):
    before, whole = state_of(unfinished), source.read_bytes()
    times = source.stat()
    source.write_bytes(whole[: len(whole) // 2])
    refused(*pack_command(source, unfinished), words=("source.arrow", "truncated"))
    save_arrow(source, made_documents(299))
    refused(*pack_command(source, unfinished), words=("unfinished", "source that has changed since", "--overwrite"))
    assert state_of(unfinished) == before
    source.write_bytes(whole)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    succeeded(*pack_command(source, unfinished))
    after = state_of(unfinished)
    shards = {path for path in before if Path(path).name.startswith("data-") and path.endswith(".arrow")}
    assert all(after[path] == before[path] for path in shards)


def test_a_wrong_token_met_on_resuming_removes_what_was_begun(tmp_path):
    documents = made_documents(300)
    documents[250] = [4, -4]
    source, out = save_arrow(tmp_path / "source.arrow", documents), tmp_path / "out"
    with interrupted(1):
        refused(*pack_command(source, out), words=("interrupted",), code=130)
    assert len(list(out.glob("data-*.arrow"))) == 1
    refused(*pack_command(source, out), words=("document 250 (source.arrow row 250)", "-4", "position 1"))
    assert list(tmp_path.iterdir()) == [source]


# What the system refuses


def failing(number: int):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


REFUSALS = {
    errno.ENOSPC: ("No space left on device", "free some space", "resumes where it stopped"),
    errno.EACCES: ("Permission denied", "another folder"),
    errno.EIO: ("Input/output error", "resumes where it stopped"),
}
SEAMS = {
    "a shard": (HashingFile, "write", 5),
    "a shard's sync": (HashingFile, "sync", 2),
    "a small file": (OutputFolder, "write_file", 3),
    "the request": (OutputFolder, "write_file", 0),
    "a note": (NotesInFolder, "save", 2),
    "a commit": (PackedOutput, "commit", 2),
    "the end": (OutputFolder, "finish", 0),
}


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("seam", SEAMS)
def test_a_refusal_of_the_system_is_one_line_and_the_rerun_resumes(tmp_path, source, seam, number):
    out = tmp_path / "out"
    owner, name, allowed = SEAMS[seam]
    usual, calls = getattr(owner, name), iter(range(10**6))

    def sometimes(*arguments, **options):
        return (usual if next(calls) < allowed else failing(number))(*arguments, **options)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(owner, name, sometimes)
        refused(*pack_command(source, out), words=(str(out), *REFUSALS[number]))
    assert not (out / "manifest.json").exists()
    refused("verify", out, words=(str(out), "unfinished"))
    with pytest.raises(packer.PackerError, match="unfinished"):
        packer.load(out)
    succeeded(*pack_command(source, out))
    succeeded(*pack_command(source, tmp_path / "undisturbed"))
    assert hashes(out) == hashes(tmp_path / "undisturbed")


def test_a_full_disk_while_decoding_is_one_line_and_the_rerun_resumes(tmp_path, monkeypatch):
    source = write_source(tmp_path / "rows.jsonl", made_documents(100))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(errno.ENOSPC))
        refused("pack", source, "--max-len", 64, words=("No space left on device", "free"))
    assert not (tmp_path / "rows-packed-64" / "manifest.json").exists()
    succeeded("pack", source, "--max-len", 64)
    assert "is verified" in succeeded("verify", tmp_path / "rows-packed-64", "--source", source)


def test_a_lack_of_memory_is_one_line(source, tmp_path, monkeypatch):
    def allocate(*arguments, **options):
        raise MemoryError("Unable to allocate 16.0 GiB")

    monkeypatch.setattr(importlib.import_module("packer.pipeline.packing"), "plan_documents", allocate)
    refused(*pack_command(source, tmp_path / "out"), words=("out of memory", "16.0 GiB", "--max-len"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(tmp_path, source):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    refused(*pack_command(source, closed / "out"), words=(str(closed), "Permission denied", "another folder"))


@pytest.fixture
def mounted(tmp_path: Path):
    """Mount a file system of some size and mode; skips where that is not allowed."""
    mounts = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mount-{len(mounts)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this process may not mount")
        mounts.append(folder)
        return folder

    yield mount
    for folder in mounts:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a plan may still be mapped


def test_a_disk_that_is_really_full(tmp_path, source, mounted):
    disk = mounted("size=200k")
    refused(*pack_command(source, disk / "out"), words=(str(disk), "free some space", "repeat the same command"))
    assert not (disk / "out" / "manifest.json").exists()
    subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
    before = {path.name: path.stat().st_ino for path in (disk / "out").glob("data-*.arrow")}
    succeeded(*pack_command(source, disk / "out"))
    assert before.items() <= {path.name: path.stat().st_ino for path in (disk / "out").iterdir()}.items()
    succeeded(*pack_command(source, tmp_path / "elsewhere"))
    assert hashes(disk / "out") == hashes(tmp_path / "elsewhere")


def test_a_file_system_that_is_really_read_only(source, mounted):
    disk = mounted("size=1m,ro")
    refused(*pack_command(source, disk / "out"), words=(str(disk), "Read-only file system", "another folder"))


# A shard that was changed after packing


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", ["data-00001", "manifest.json", "state.json", "dataset_info.json"])
def test_verify_names_the_file_that_has_a_flipped_byte(source, complete, name, share):
    (path,) = complete.glob(f"{name}*")
    flip(path, int((size_of(path) - 1) * share))
    code = 1 if name == "manifest.json" else 3  # 1: no manifest that can be read, so nothing to check
    refused("verify", complete, words=(str(complete), path.name), code=code)
    refused("verify", complete, "--source", source, words=(str(complete), path.name), code=code)


def test_verify_names_every_changed_shard(complete):
    for name in ("data-00001", "data-00003"):
        (path,) = complete.glob(f"{name}*")
        flip(path, size_of(path) // 2)
    result = run("verify", complete)
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 2
    faults = json.loads(run("verify", complete, "--json").stdout)["faults"]
    assert [fault[:10] for fault in faults] == ["data-00001", "data-00003"]


def test_verify_names_a_file_that_does_not_belong(complete):
    (complete / "data-00099-of-00100.arrow").write_bytes(b"")
    refused("verify", complete, words=("data-00099-of-00100.arrow", "not listed in the manifest"), code=3)


def test_a_truncated_grown_or_missing_shard_is_named_by_loader_and_verify(complete):
    path = min(complete.glob("data-*.arrow"))
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(content)
        words = (path.name, f"{len(content):,} bytes", f"{len(whole):,}", "changed after packing")
        refused("verify", complete, words=words, code=3)
        refused("show", complete, 0, words=words)
        refused("stats", complete, words=words)
    path.unlink()
    refused("verify", complete, words=(path.name, "missing", "pack again"), code=3)
    refused("show", complete, 0, words=(path.name, "missing", "pack again"))


def test_a_shard_in_the_place_of_another_is_named(complete):
    one, other = sorted(complete.glob("data-*.arrow"))[:2]
    one.write_bytes(other.read_bytes())
    refused("verify", complete, words=(one.name,), code=3)


def test_a_shard_of_other_rows_than_the_manifest_says_is_refused(complete):
    manifest = complete / "manifest.json"
    content = json.loads(manifest.read_bytes())
    rows = content["shards"][1]["rows"]
    content["shards"][1]["rows"] += 1
    manifest.write_text(json.dumps(content))
    refused("show", complete, 0, words=(content["shards"][1]["file"], f"{rows} rows", f"says {rows + 1}"))
    refused("verify", complete, words=("manifest.json", "checksum"), code=3)


def test_a_manifest_of_another_version_or_without_what_readers_need_is_refused(source, complete):
    manifest = complete / "manifest.json"
    content = json.loads(manifest.read_bytes())
    for broken, words in (
        (content | {"format_version": 4}, ("version 4", "reads 5", "upgrade packer")),
        ({**content, "generations": [{}]}, ("damaged", "source")),
        ({**content, "shards": None}, ("damaged",)),
        ([], ("damaged",)),
    ):
        manifest.write_text(json.dumps(broken))
        for command in (("verify", complete), ("show", complete, 0), ("stats", complete)):
            refused(*command, words=(str(manifest), *words))
        refused(*pack_command(source, complete, "--overwrite"), words=(str(manifest), *words))
