"""A source that changes while it is packed is named and leaves no output; a bus error is explained."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import packer
from packer.cli.printing import shrunken_files
from packer.errors import SourceError
from packer.output.job import Job
from packer.pipeline import packing, write_shards
from packer.pipeline import tokenizing as tokenizing_module
from packer.sources.arrow_files import map_file
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.kept import write
from tests.helpers.pack import made_documents

ROOT = Path(__file__).parent.parent


def appended(path):
    with path.open("ab") as file:
        file.write(b" ")


def touched(path):
    os.utime(path, ns=(1, 1))


def replaced(path):
    copy, stat = path.with_name("copy"), path.stat()
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    copy.replace(path)


CHANGES = {
    appended: "the file changed from",
    touched: "the file changed or was replaced",
    replaced: "the file changed or was replaced",
    Path.unlink: "the file disappeared",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shard", [0, 2])
def test_a_mapped_source_that_changes_between_shards_is_named(tmp_path, monkeypatch, change, shard):
    source = write(tmp_path, "arrow", {"input_ids": made_documents(300)})
    parts = write_shards.ShardMaker.parts_of

    def changing(maker, shards):
        if shard in shards:
            change(source)
        return parts(maker, shards)

    monkeypatch.setattr(write_shards.ShardMaker, "parts_of", changing)
    with pytest.raises(SourceError, match=rf"^{source.name}: {CHANGES[change]}"):
        packer.pack(source, tmp_path / "out", max_len=64, shard_size=30_000, workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_source_may_change_after_it_is_decoded_but_not_before(tmp_path, monkeypatch, kind):
    source = write(tmp_path, kind, {"input_ids": made_documents(100)})
    parts, spill = write_shards.ShardMaker.parts_of, packing.spill_source
    monkeypatch.setattr(write_shards.ShardMaker, "parts_of", lambda *args: touched(source) or parts(*args))
    packer.pack(source, tmp_path / "out", max_len=64)

    def changing(opened, *args, **options):
        spilled = spill(opened, *args, **options)
        appended(source)
        return spilled

    monkeypatch.setattr(packing, "spill_source", changing)
    with pytest.raises(SourceError, match="changed from"):
        packer.pack(source, tmp_path / "out2", max_len=64)
    assert not (tmp_path / "out2").exists()


def test_text_that_changes_while_it_is_tokenized_is_named(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from packer.options import ReadOptions

    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    source = tmp_path / "a.jsonl"
    source.write_text(json.dumps({"text": "hello"}) + "\n")
    spill = tokenizing_module.spill_source
    monkeypatch.setattr(
        tokenizing_module, "spill_source", lambda *args, **rest: appended(source) or spill(*args, **rest)
    )
    options = ReadOptions(tokenizer=str(tokenizer))
    with pytest.raises(SourceError, match=r"a\.jsonl: the file changed from"):
        tokenizing_module.tokenize(source, options=options, job=Job(output=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_files_truncated_below_their_mapping_are_found(tmp_path):
    for name in ("cut", "cut within a page", "whole", "removed"):
        (tmp_path / name).write_bytes(bytes(10_000))
    mapped = [map_file(path) for path in sorted(tmp_path.iterdir())]
    os.truncate(tmp_path / "cut", 4_096)
    os.truncate(tmp_path / "cut within a page", 9_000)
    (tmp_path / "removed").unlink()
    assert shrunken_files() == [str(tmp_path / "cut")]
    assert len(mapped) == 4


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("where", ["shard", "plan"])
def test_a_source_truncated_while_it_is_read_gives_a_one_line_error(tmp_path, where):
    documents = [np.full(5_000, number).tolist() for number in range(1, 200)]
    source = write(tmp_path, "arrow", {"input_ids": documents})
    code = f"""
        import os, sys
        from packer.pipeline import packing, write_shards
        from packer.cli import main
        owner, name = (write_shards.ShardMaker, "parts_of") if {where!r} != "plan" else (packing, "read_documents")
        whole = getattr(owner, name)
        def cut(*args, **options):
            os.truncate({str(source)!r}, 8192)
            return whole(*args, **options)
        setattr(owner, name, cut)
        sys.argv = ["packer", "pack", {str(source)!r}, "--max-len", "4096"]
        main()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr == (
        f"packer: {source}: cannot be read: truncated while it was read, or its disk failed; restore it and repeat\n"
    )
