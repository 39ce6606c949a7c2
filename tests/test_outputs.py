"""What may lie where an output is written, and what each command answers: a table of (state, command, answer).

Whatever is refused is refused in one line, and nothing is touched. What is not packer's own is always refused.
"""

import contextlib
import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datasets
import pytest

import packer
from packer.cli import writing_commands
from packer.output import replace_folder
from packer.stores import local_files
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.kills import kill
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.refusals import save, table
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines

DOCUMENTS = made_documents(300)
EDITED = [[token % 9 + 1 for token in tokens] for tokens in DOCUMENTS]  # of the same lengths
SHORTER, REORDERED = DOCUMENTS[:-1], [*DOCUMENTS[100:200], *DOCUMENTS[:100], *DOCUMENTS[200:]]
KINDS = ("source.arrow", "source.parquet", "source.jsonl", "source.jsonl.gz")


def write_source(path: Path, documents: list = DOCUMENTS, *, keeps_time: bool = False) -> Path:
    before = path.stat() if path.exists() else None
    save(path, table(path.name, documents))
    if before is not None and keeps_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path


def pack(folder: Path, *more: object) -> tuple[object, ...]:
    """A command of about 14 shards."""
    source = next(path for path in folder.iterdir() if path.name.startswith("source."))
    return ("pack", source, "-o", folder / "out", "--max-len", 64, "--shard-size", "6KB", "--workers", 1, *more)


def tokenize(folder: Path, *more: object) -> tuple[object, ...]:
    return ("tokenize", folder / "texts.jsonl", "-o", folder / "out", "--tokenizer", folder.parent / "tokenizer", *more)


def export(folder: Path, *more: object) -> tuple[object, ...]:
    return ("export", folder / "packed", "--to", "parquet", "-o", folder / "out", *more)


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything by which a rewritten file gives itself away, except locks and requests, which are opened."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in ("lock", "request.json")]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in files}


# States: functions that make a source and OUT in a folder


def nothing(folder: Path, name: str = "source.arrow") -> None:
    folder.mkdir(exist_ok=True)
    write_source(folder / name)


def holding(files: dict[str, str], folder: Path) -> None:
    """OUT has files of a user."""
    nothing(folder)
    for name, content in files.items():
        (folder / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "out" / name).write_text(content)


def a_file(folder: Path) -> None:
    nothing(folder)
    (folder / "out").write_text("mine")


def complete(folder: Path, name: str = "source.arrow") -> None:
    nothing(folder, name)
    succeeded(*pack(folder))


@contextlib.contextmanager
def interrupted(shards: int):
    with pytest.MonkeyPatch.context() as monkeypatch:
        kill(monkeypatch, f"data-{shards:05d}-", error=KeyboardInterrupt)
        yield


def unfinished(folder: Path, shards: int = 3) -> None:
    nothing(folder)
    with interrupted(shards):
        refused(*pack(folder), words=("interrupted", "the same command"), code=130)
    assert len(list((folder / "out").glob("data-*.arrow"))) == shards


def tokenized(folder: Path) -> None:
    nothing(folder)
    write_lines(folder / "texts.jsonl", [{"text": f"The quick fox {number}"} for number in range(9)])
    succeeded(*tokenize(folder))


def exported(folder: Path) -> None:
    nothing(folder)
    packer.pack(folder / "source.arrow", folder / "packed", max_len=64)
    succeeded(*export(folder))


def then(make: Callable[[Path], object], *changes: Callable[[Path], object]) -> Callable[[Path], None]:
    """A state, and what happens to it afterwards."""

    def state(folder: Path) -> None:
        make(folder)
        for change in changes:
            change(folder)

    return state


def edit(name: str, documents: list, *, keeps_time: bool = False) -> Callable[[Path], object]:
    return lambda folder: write_source(folder / name, documents, keeps_time=keeps_time)


def rename_source(folder: Path) -> None:
    (folder / "source.arrow").rename(folder / "source.other.arrow")


def damage(pattern: str, change: Callable[[bytes], bytes] | None, keeps_time: bool = False):
    def state(folder: Path) -> None:
        (path,) = folder.glob(pattern)
        before = path.stat()
        path.write_bytes(change(path.read_bytes())) if change else path.unlink()
        if keeps_time:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return state


def record(change: Callable[[dict], object], name: str = "manifest.json") -> Callable[[Path], None]:
    def edited(content: bytes) -> bytes:
        found = json.loads(content)
        return json.dumps(change(found) or found).encode()

    return damage(f"out/**/{name}", edited)


DAMAGES = {
    "missing": (None, False),
    "shorter": (lambda content: content[:-1], False),
    "of other bytes": (lambda content: content[:-9] + b"!" + content[-8:], False),
    "of other bytes and its old time": (lambda content: content[:-9] + b"!" + content[-8:], True),
}
WORKS = {
    "an empty work folder": {".packer/ranks/0": ""},
    "a work folder with a file": {".packer/x": ""},
    "an empty lock": {".packer/lock": ""},
    "checkpoints": {".packer/checkpoints/0": "mine", ".packer/ranks/0": "mine"},
}
NOT_OURS = "not a packed dataset", "another --output"
NOT_WRITTEN = "was not written by packer", "another folder"
FOREIGN = {
    "a file": (pack, a_file, ("not a folder", "another --output")),
    "a folder with a thesis": (pack, partial(holding, {"thesis.tex": "mine"}), NOT_OURS),
    **{
        f"a folder with {name} and {work}": (pack, partial(holding, {name: "mine", **files}), NOT_OURS)
        for name in ("rejected.jsonl", "data-00000-of-00001.arrow")
        for work, files in WORKS.items()
    },
    **{
        f"a manifest {manifest}": (
            pack,
            partial(holding, {"manifest.json": manifest, "data-00000-of-00001.arrow": "mine"}),
            NOT_WRITTEN,
        )
        for manifest in ('{"name": "an app", "shards": []}', "[]", "no JSON", "")
    },
    "a manifest and a work folder": (
        pack,
        partial(holding, {"manifest.json": '{"name": "an app"}', ".packer/notes.txt": "mine"}),
        ("another folder",),
    ),
    **{
        f"a record {content}": (export, then(exported, record(lambda _, of=content: of, "_export.json")), ("another",))
        for content in ({"name": "an app", "files": []}, [5])
    },
    **{
        f"a manifest {what}": (pack, then(complete, record(change)), ("manifest.json", *words))
        for what, change, words in (
            ("of a newer version", lambda found: found | {"format_version": 4}, ("version 4", "reads 2: upgrade")),
            ("without files", lambda found: {**found, "source": {}}, ("damaged", "files")),
            ("without shards", lambda found: {**found, "shards": None}, ("damaged",)),
        )
    },
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_packer_did_not_write_is_never_touched(tmp_path, name):
    command, state, words = FOREIGN[name]
    state(tmp_path)
    before = state_of(tmp_path)
    for more in ((), ("--overwrite",)):
        if command is pack or more:
            refused(*command(tmp_path, *more), words=words)
            assert state_of(tmp_path) == before


REPLACEABLE = {
    **{
        f"a dataset whose {pattern} is {name}": (pack, then(complete, damage(f"out/{pattern}", *how)), (pattern[:10],))
        for pattern in ("data-00001-of-*", "state.json")
        for name, how in DAMAGES.items()
    },
    **{
        f"a dataset of {' '.join(map(str, more))}": (partial(pack), complete, (words, "--output"), more)
        for more, words in (
            (("--max-len", 32), "max_len 64, not 32"),
            (("--algorithm", "bfd"), "algorithm auto, not bfd"),
            (("--seed", 7), "seed 0, not 7"),
            (("--long", "drop"), "long split, not drop"),
            (("--no-labels",), "labels True, not False"),
            (("--max-segments", 2), "max_segments None, not 2"),
        )
    },
    **{
        f"an unfinished pack of {' '.join(map(str, more))}": (pack, unfinished, ("unfinished", words, "repeat"), more)
        for more, words in ((("--max-len", 32), "max_len 64, not 32"), (("--seed", 7), "seed 0, not 7"))
    },
    "a dataset of a source that is shorter now": (
        pack,
        then(complete, edit("source.arrow", SHORTER)),
        ("has changed since",),
    ),
    **{
        f"a dataset of {name} that was edited in its old time": (
            pack,
            then(partial(complete, name=name), edit(name, EDITED, keeps_time=True)),
            ("has changed since",),
        )
        for name in KINDS
    },
    "a dataset of a source in another order": (
        pack,
        then(complete, edit("source.arrow", REORDERED)),
        ("changed since",),
    ),
    "an unfinished pack of a source in another order": (
        pack,
        then(unfinished, edit("source.arrow", REORDERED, keeps_time=True)),
        ("started from a source that has changed since",),
    ),
    "a dataset of another source": (pack, then(complete, rename_source), ("other source files",)),
    "an unfinished pack of another version": (
        pack,
        then(unfinished, record(lambda found: found["options"].pop("plan_version") and None, "request.json")),
        ("of another version of packer, which places",),
    ),
    **{
        f"a tokenized dataset whose shard is {name}": (
            tokenize,
            then(tokenized, damage("out/data-*", change)),
            ("data-00000-of-00001.arrow",),
        )
        for name, change in (("missing", None), ("of other bytes", lambda content: bytes(len(content))))
    },
    "a tokenized dataset of an edited source": (
        tokenize,
        then(tokenized, damage("texts.jsonl", lambda content: content.replace(b"quick", b"kciuq"))),
        ("texts.jsonl",),
    ),
}


@pytest.mark.nightly(after=7)
@pytest.mark.parametrize("name", [*list(REPLACEABLE)[::2], *list(REPLACEABLE)[1::2]])  # every second one of each kind
def test_another_output_is_refused_in_one_line_and_replaced_on_request(tmp_path, request, name):
    command, state, words, *more = REPLACEABLE[name]
    folder, fresh = tmp_path / "made", tmp_path / "fresh"
    if command is tokenize:
        shutil.copytree(request.getfixturevalue("tokenizer"), tmp_path / "tokenizer")
    folder.mkdir()
    state(folder)
    before = state_of(folder)
    line = refused_at_last(*command(folder, *more[0] if more else ()))
    assert all(word in line for word in (*words, "--overwrite")), line
    assert state_of(folder) == before
    succeeded(*command(folder, *more[0] if more else (), "--overwrite"))
    shutil.copytree(folder, fresh)
    shutil.rmtree(fresh / "out")
    succeeded(*command(fresh, *more[0] if more else ()))
    assert hashes(folder / "out") == hashes(fresh / "out")
    assert {path.name for path in folder.iterdir()} == {path.name for path in fresh.iterdir()}


def refused_at_last(*arguments: object) -> str:
    """Run a command that must fail; return its last line, before which it may say that it compares every token."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    *others, line = result.stderr.splitlines()
    assert all("comparing every token" in other for other in others)
    return line


TAKEN = {
    "an empty folder": lambda folder: (nothing(folder), (folder / "out").mkdir()),
    "an empty work folder": lambda folder: (nothing(folder), (folder / "out/.packer").mkdir(parents=True)),
    "an unfinished pack": unfinished,
    "an unfinished pack whose removal was interrupted": then(unfinished, damage("out/.packer/request.json", None)),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_pack_left_is_finished(tmp_path, name):
    (tmp_path / "fresh").mkdir()
    complete(tmp_path / "fresh")
    TAKEN[name](tmp_path)
    succeeded(*pack(tmp_path))
    assert hashes(tmp_path / "out") == hashes(tmp_path / "fresh/out")


# Complete outputs


def test_the_same_command_on_a_complete_dataset_says_so_and_touches_nothing(tmp_path):
    complete(tmp_path)
    before = state_of(tmp_path)
    said = "nothing to do (its shards have the recorded sizes, and no source file was written since)"
    assert said in succeeded(*pack(tmp_path))
    assert json.loads(succeeded(*pack(tmp_path, "--json")))["found_complete"] is True
    os.utime(tmp_path / "source.arrow")
    said = "nothing to do (its shards have the recorded sizes, and hold every token of the source)"
    assert said in succeeded(*pack(tmp_path))
    after = state_of(tmp_path)
    assert all(after[path] == before[path] for path in before if "source" not in path)


def test_a_source_without_file_times_is_compared_by_its_tokens(tmp_path):
    in_memory = partial(datasets.Dataset.from_dict, {"input_ids": DOCUMENTS})
    manifest = packer.pack(in_memory(), tmp_path / "out", max_len=64)
    assert packer.pack(in_memory(), tmp_path / "out", max_len=64) == manifest
    with pytest.raises(packer.PackerError, match="a source that has changed since"):
        packer.pack(datasets.Dataset.from_dict({"input_ids": EDITED}), tmp_path / "out", max_len=64)


def test_a_source_error_during_overwrite_leaves_the_complete_dataset(tmp_path):
    complete(tmp_path)
    bad = write_source(tmp_path / "bad.jsonl", [[1], [-1]])
    before = state_of(tmp_path)
    refused("pack", bad, "-o", tmp_path / "out", "--max-len", 64, "--overwrite", words=("document 1", "-1"))
    assert state_of(tmp_path) == before


def test_an_output_behind_a_link_is_replaced_in_place(tmp_path):
    complete(tmp_path)
    (tmp_path / "link").symlink_to("out")
    succeeded("pack", tmp_path / "source.arrow", "-o", tmp_path / "link", "--max-len", 64, "--overwrite")
    assert (tmp_path / "link").is_symlink()
    assert len(packer.load(tmp_path / "out").manifest.shards) == 1


def test_a_dataset_of_an_older_format_version_is_replaced_with_overwrite_only(tmp_path):
    complete(tmp_path)
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format_version": 1}))
    refused(*pack(tmp_path), words=("has format version 1", "pack again to another folder"))
    succeeded(*pack(tmp_path, "--overwrite"))
    assert packer.verify(tmp_path / "out", tmp_path / "source.arrow") == []


def test_a_file_of_a_user_with_the_name_of_a_new_shard_is_kept_under_another_name(tmp_path):
    complete(tmp_path)
    out = tmp_path / "out"
    (out / "data-00000-of-00001.arrow").write_text("mine")
    (out / "data-00000-of-00001.arrow.old").write_text("older")
    packer.pack(tmp_path / "source.arrow", out, max_len=64, overwrite=True)
    assert (out / "data-00000-of-00001.arrow.old").read_text() == "older"
    assert (out / "data-00000-of-00001.arrow.old2").read_text() == "mine"
    assert [fault for fault in packer.verify(out, tmp_path / "source.arrow") if "not named" not in fault] == []


def test_caches_of_replaced_rows_are_not_reused(tmp_path):
    """`datasets` finds caches by a fingerprint of the lengths, which does not change."""
    source, out = save_arrow(tmp_path / "source.arrow", made_documents(60)), tmp_path / "out"

    def first_tokens() -> list[int]:
        return datasets.load_from_disk(str(out)).map(lambda row: {"first": row["input_ids"][0]})["first"]

    packer.pack(source, out, max_len=64)
    before = first_tokens()
    packer.pack(source, out, max_len=64, seed=1, overwrite=True)
    assert first_tokens() == [row["input_ids"][0] for row in packer.load(out)] != before
    assert len(list(out.glob("cache-*.arrow.old"))) == 1


def test_an_old_output_is_kept_while_its_files_cannot_be_moved(tmp_path):
    """The command is killed between two renames; then a user creates a folder of the same name."""
    complete(tmp_path)
    out, before = tmp_path / "out", hashes(tmp_path / "out")
    out.rename(tmp_path / ".out.packer-old")
    out.mkdir()
    (out / "other").write_text("")
    refused(*pack(tmp_path, "--overwrite"), words=NOT_OURS)
    assert hashes(tmp_path / ".out.packer-old") == before
    (out / "other").unlink()
    succeeded(*pack(tmp_path))
    assert hashes(out) == before


# Unfinished outputs


def test_an_unfinished_pack_is_no_source(tmp_path):
    unfinished(tmp_path)
    words = (str(tmp_path / "out"), "unfinished", "give the dataset it is packed from")
    refused("pack", tmp_path / "out", "--max-len", 64, words=words)
    refused("stats", tmp_path / "out", words=words)


def test_a_bad_source_leaves_the_unfinished_pack_of_a_good_one(tmp_path):
    unfinished(tmp_path)
    source, before = tmp_path / "source.arrow", state_of(tmp_path / "out")
    whole, times = source.read_bytes(), source.stat()
    source.write_bytes(whole[: len(whole) // 2])
    refused(*pack(tmp_path), words=("source.arrow", "truncated"))
    assert state_of(tmp_path / "out") == before
    source.write_bytes(whole)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    succeeded(*pack(tmp_path))


def test_a_wrong_token_met_on_resuming_removes_what_was_begun(tmp_path):
    write_source(tmp_path / "source.arrow", [*DOCUMENTS[:250], [4, -4], *DOCUMENTS[250:]])
    with interrupted(1):
        refused(*pack(tmp_path), words=("interrupted",), code=130)
    assert len(list((tmp_path / "out").glob("data-*.arrow"))) == 1
    refused(*pack(tmp_path), words=("document 250 (source.arrow row 250)", "-4", "position 1"))
    assert [path.name for path in tmp_path.iterdir()] == ["source.arrow"]


@contextlib.contextmanager
def held(lock: Path):
    """Hold a lock in another process."""
    code = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print('held'); input()"
    command = [sys.executable, "-u", "-c", code, str(lock)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    yield
    other.communicate("\n")


@pytest.mark.parametrize("command", ["tokenize", "pack"])
def test_an_output_that_another_process_has_taken_over_ends_the_work_at_once(tmp_path, monkeypatch, command):
    """It is not decoded to the end first."""
    shrink(monkeypatch, record_block=2000, json_block=2000)
    record = {"text": "fox " * 50} if command == "tokenize" else {"input_ids": [1] * 50}
    write_lines(tmp_path / "source.jsonl", [record] * 1000)
    tokenizer, out, told = save_tokenizer(tmp_path / "tokenizer"), tmp_path / "out", []

    def take_over(stage: str, done: int, total: int) -> None:
        told.append(done)
        for folder in (*tmp_path.glob(".out*"), out):
            shutil.rmtree(folder, ignore_errors=True)

    options = {"tokenizer": tokenizer} if command == "tokenize" else {"max_len": 64}
    with pytest.raises(packer.PackerError, match="out was finished, removed or started again by another packer"):
        getattr(packer, command)(tmp_path / "source.jsonl", out, workers=1, progress=take_over, **options)
    assert len(told) == 1
    assert told[0] < 900


def test_an_output_in_use_by_another_process_is_refused(tmp_path):
    unfinished(tmp_path)
    before = state_of(tmp_path)
    with held(tmp_path / "out/.packer/lock"):
        for more in ((), ("--overwrite",), ("--max-len", 32, "--overwrite")):
            refused(*pack(tmp_path, *more), words=(str(tmp_path / "out"), "in use by another packer", "--output"))
            assert state_of(tmp_path) == before
    succeeded(*pack(tmp_path))


# Reports and demos


@pytest.mark.parametrize("content", ["<!doctype html>\n<title>Mine</title>\n", "", "<meta name=generator content=x>"])
def test_a_report_replaces_an_earlier_report_but_no_page_of_a_user(tmp_path, content):
    nothing(tmp_path)
    page = tmp_path / "page.html"
    page.write_text(content)
    words = ("stats", tmp_path / "source.arrow", "--max-len", 64)
    refused(*words, "--report", page, words=(str(page), "not a report"))
    assert page.read_text() == content
    page.unlink()
    for _ in range(2):
        succeeded(*words, "--report", page)
    assert "--max-len 64" in page.read_text()


def test_the_demo_replaces_only_what_it_wrote_itself(tmp_path, monkeypatch):
    texts = [f"import this, that{number}\n" * 40 for number in range(30)]
    monkeypatch.setattr(writing_commands, "standard_library_texts", lambda: iter(texts))
    names = ("tokenizer.json", "tokenizer_config.json", "config.json")
    for state in (partial(holding, dict.fromkeys(names, "{}")), partial(holding, {"notes.txt": "mine"}), complete):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        state(folder)
        before = state_of(folder)
        refused("demo", "-o", folder / "out", words=(str(folder / "out"), "choose another --output"))
        assert state_of(folder) == before
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new", tmp_path / "empty"):
        assert "Unused fields" not in succeeded("demo", "-o", out, "--max-len", 128)
        (out / "stdlib.arrow").write_bytes(b"damaged")
        assert "is verified" in succeeded("demo", "-o", out, "--max-len", 128)


# Places


@pytest.mark.parametrize("out", [".", "..", "", "/"])
def test_folders_without_a_name_of_their_own_are_refused(tmp_path, monkeypatch, out):
    nothing(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    refused("pack", tmp_path / "source.arrow", "-o", Path(out), "--max-len", 64, words=("not a packed dataset",))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_below_a_file_is_refused(tmp_path):
    a_file(tmp_path)
    below = tmp_path / "out" / "below"
    refused(
        "pack", tmp_path / "source.arrow", "-o", below, "--max-len", 64, words=("Not a directory", "another folder")
    )


def mounts(monkeypatch, table: Path, *points: Path) -> None:
    lines = (f"36 35 98:0 / {str(point).replace(' ', chr(92) + '040')} rw - ext4 /dev/a rw\n" for point in points)
    table.write_text("".join(lines))
    monkeypatch.setattr(replace_folder, "_MOUNTS", table)


@pytest.mark.parametrize("below", [".", "runs", "with space/deeper"])
@pytest.mark.parametrize(("state", "command"), [(complete, pack), (exported, export)])
def test_an_output_that_cannot_be_renamed_is_refused_before_any_work(tmp_path, monkeypatch, state, command, below):
    state(tmp_path)
    (tmp_path / "out" / below).mkdir(parents=True, exist_ok=True)
    mounts(monkeypatch, tmp_path / "mounts", tmp_path / "out2", tmp_path / "out" / below)
    before = state_of(tmp_path)
    refused(*command(tmp_path, "--overwrite"), words=("mount point", "output"))
    assert state_of(tmp_path) == before


def test_an_empty_mount_point_is_taken_by_pack_only(tmp_path, monkeypatch):
    exported(tmp_path)
    for name in ("out", "other"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        (tmp_path / name).mkdir()
    mounts(monkeypatch, tmp_path / "mounts", tmp_path / "out", tmp_path / "other")
    succeeded(*pack(tmp_path))
    refused("export", tmp_path / "packed", "--to", "parquet", "-o", tmp_path / "other",
            words=("other is a mount point", "choose a folder inside it"))  # fmt: skip
    assert list((tmp_path / "other").iterdir()) == []


# What the system refuses


def test_a_lack_of_memory_is_one_line(tmp_path, monkeypatch):
    def allocate(*arguments, **options):
        raise MemoryError("Unable to allocate 16.0 GiB")

    nothing(tmp_path)
    monkeypatch.setattr(importlib.import_module("packer.pipeline.packing"), "plan_documents", allocate)
    refused(*pack(tmp_path), words=("out of memory", "16.0 GiB", "--max-len"))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
@pytest.mark.parametrize("command", ["pack", "export"])
def test_a_file_system_without_locks_is_named_with_the_remedy(tmp_path, monkeypatch, command, number):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    complete(tmp_path)
    export = ("export", tmp_path / "out", "--to", "torchtune", "-o", tmp_path / "exported")
    called = (*pack(tmp_path), "-o", tmp_path / "new") if command == "pack" else export
    monkeypatch.setattr(local_files.fcntl, "flock", refuse)
    refused(*called, words=("cannot be locked", os.strerror(number), "flock for Lustre", "another one"))


def test_nothing_is_synced_without_sync(tmp_path, monkeypatch):
    complete(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: 1 / 0)
    succeeded(*pack(tmp_path, "--seed", 1, "--no-sync", "--overwrite"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    nothing(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    words = (str(tmp_path / "closed"), "Permission denied", "another folder")
    refused("pack", tmp_path / "source.arrow", "-o", tmp_path / "closed/out", "--max-len", 64, words=words)


@pytest.fixture
def mounted(tmp_path: Path):
    """Mount a file system at OUT; skips where that is not allowed."""

    def mount(options: str) -> Path:
        nothing(tmp_path)
        (tmp_path / "out").mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path / "out")]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this process may not mount")
        return tmp_path / "out"

    yield mount
    if os.path.ismount(tmp_path / "out"):
        subprocess.run(["umount", "--lazy", str(tmp_path / "out")], check=True)  # a plan may still be mapped


def test_a_disk_that_is_really_full(tmp_path, mounted):
    disk = mounted("size=150k")
    refused(*pack(tmp_path), words=(str(disk), "free some space", "repeat the same command"))
    assert not (disk / "manifest.json").exists()
    subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
    before = {path.name: path.stat().st_ino for path in disk.glob("data-*.arrow")}
    succeeded(*pack(tmp_path))
    assert before.items() <= {path.name: path.stat().st_ino for path in disk.iterdir()}.items()
    (tmp_path / "fresh").mkdir()
    complete(tmp_path / "fresh")
    assert hashes(disk) == hashes(tmp_path / "fresh/out")


def test_a_file_system_that_is_really_read_only(tmp_path, mounted):
    disk = mounted("size=1m,ro")
    refused(*pack(tmp_path), words=(str(disk), "Read-only file system", "another folder"))


# Datasets that were changed after packing


def test_a_truncated_grown_or_missing_shard_is_named_by_loader_and_verify(tmp_path):
    complete(tmp_path)
    path = min((tmp_path / "out").glob("data-*.arrow"))
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(content)
        words = (path.name, f"{len(content):,} bytes", f"{len(whole):,}", "changed after packing")
        refused("verify", tmp_path / "out", words=words, code=3)
        refused("show", tmp_path / "out", 0, words=words)
        refused("stats", tmp_path / "out", words=words)
    path.unlink()
    refused("verify", tmp_path / "out", words=(path.name, "missing", "pack again"), code=3)
    refused("show", tmp_path / "out", 0, words=(path.name, "missing", "pack again"))


def test_a_shard_of_other_rows_than_the_manifest_says_is_refused(tmp_path):
    complete(tmp_path)
    rows = packer.load(tmp_path / "out").manifest.shards[1].rows
    record(lambda found: found["shards"]["rows"].__setitem__(1, rows + 1))(tmp_path)
    refused("show", tmp_path / "out", 0, words=("data-00001", f"{rows} rows", f"says {rows + 1}"))
    refused("verify", tmp_path / "out", words=("manifest.json", "checksum"), code=3)


def test_verify_names_a_file_that_does_not_belong(tmp_path):
    complete(tmp_path)
    (tmp_path / "out" / "data-00099-of-00100.arrow").write_bytes(b"")
    refused("verify", tmp_path / "out", words=("data-00099-of-00100.arrow", "not listed in the manifest"), code=3)
