"""Pack real and synthetic corpora: counts, content, determinism, and the bytes of the format."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer.plan.segments import cut_documents
from packer.sources.source import read_documents
from tests.helpers import naive
from tests.helpers.opening import open_source
from tests.helpers.pack import hashes, made_documents, save_arrow, segments_in
from tests.helpers.small import shrink
from tests.helpers.writing import write_ipc


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(
    ("name", "documents", "max_len"),
    [("t0_train_50k.parquet", 55_185, 4096), ("gsm8k", 8_792, 2048), ("python_peps.arrow", 740, 2048)],
)
def test_real_corpora_pack_like_naive_best_fit_and_verify(shared_data, tmp_path, name, documents, max_len):
    source = shared_data / "tokenized" / name
    out = tmp_path / "packed"
    manifest = packer.pack(source, out, max_len=max_len, algorithm="bfd", shard_size="5MB")
    assert manifest.totals.documents == documents
    assert list(packer.verify(out, source)) == []

    lengths = read_documents(open_source(source, split=None), hold_lengths=True).lengths
    assert manifest.rows == naive_packs(lengths, max_len)
    one_shard = packer.pack(source, tmp_path / "one", max_len=max_len, algorithm="bfd", shard_size="4GB")
    assert len(one_shard.shards) == 1 < len(manifest.shards)
    assert one_shard.rows == manifest.rows

    import datasets

    opened = datasets.load_from_disk(str(out))
    assert len(opened) == len(packer.load(out)) == manifest.rows
    assert opened.cache_files[0]["filename"].startswith(str(out))
    last = opened[len(opened) - 1]
    assert last["input_ids"] == packer.load(out)[-1]["input_ids"].tolist()


def naive_packs(lengths, max_len: int) -> int:
    cut = cut_documents(lengths, max_len, "split")
    whole = int(cut.histogram[max_len])
    rest = np.repeat(np.arange(max_len), cut.histogram[:max_len]).tolist()
    return whole + naive.best_fit_packs(rest, max_len)


@pytest.mark.parametrize("labels", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("algorithm", ["bfd", "sequential"])
@pytest.mark.parametrize(
    "options",
    [
        {"long": "split"},
        {"long": "truncate"},
        {"long": "truncate", "align": 4},
        {"long": "drop", "align": 2},
        {"long": "split", "align": 5},
    ],
    ids=str,
)
def test_every_token_is_where_the_row_says_it_is(tmp_path, options, algorithm, labels):
    documents = made_documents(500)
    source_labels = [[-100 if token % 3 else token for token in tokens] for tokens in documents] if labels else None
    source = save_arrow(tmp_path / "source.arrow", documents, source_labels)
    out = tmp_path / "out"
    manifest = packer.pack(source, out, max_len=40, algorithm=algorithm, shard_size="8KB", pad_id=7, **options)
    cut = naive.cut_documents([len(tokens) for tokens in documents], 40, options["long"])
    expected = []
    for document, start, length in cut:
        tokens = documents[document][start : start + length]
        trained = source_labels[document][start : start + length] if source_labels else tokens
        expected.append((document, start, tokens, [-100, *trained[1:]]))
    dataset = packer.load(out)
    found = list(segments_in(dataset))
    assert sorted(found) == expected
    if algorithm == "sequential":
        assert found == expected
    for row in dataset:
        assert row["seq_lengths"].sum() == 40
        if "align" in options:
            lengths = row["seq_tokens"][row["doc_ids"] >= 0]
            extents = row["seq_lengths"][row["doc_ids"] >= 0]
            assert extents.tolist() == [-(-length // options["align"]) * options["align"] for length in lengths]
        else:
            assert "seq_tokens" not in row
    totals = manifest.totals
    assert totals.tokens_packed == sum(len(tokens) for _, _, tokens, _ in found)
    lost = totals.tokens_truncated + sum(totals.tokens_dropped.values())
    assert totals.tokens_packed + lost == totals.tokens == sum(map(len, documents))
    assert totals.documents_dropped["empty"] == documents.count([])
    assert len(manifest.shards) > 3
    assert list(packer.verify(out, source)) == []


def test_bytes_do_not_depend_on_workers_threads_locale_or_time_zone(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    save_arrow(source / "data.arrow", made_documents(2000))
    state = {"_data_files": [{"filename": "data.arrow"}], "_split": "entraînement"}
    (source / "state.json").write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = []
    for workers, settings in ((1, {}), (2, {**ascii_only, "TZ": "Asia/Tokyo"}), (7, {"NUMBA_NUM_THREADS": "1"})):
        out = tmp_path / f"out-{workers}"
        command = [sys.executable, "-m", "packer", "pack", str(source), "--max-len", "64", "--shard-size", "20KB"]
        subprocess.run([*command, "-o", str(out), "--workers", str(workers)], check=True, env=os.environ | settings)
        found.append(hashes(out))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 10


@pytest.mark.parametrize(
    "options", [{"align": 8}, {"algorithm": "wrapped", "labels": False}, {"index_only": True, "balance_ranks": 2}]
)
def test_shards_have_the_same_bytes_if_a_task_writes_several_of_them(tmp_path, monkeypatch, options):
    documents = made_documents(300)
    labels = [[token if place % 3 else -100 for place, token in enumerate(tokens)] for tokens in documents]
    columns = {"input_ids": documents, "labels": labels, "name": [f"document {i}" for i in range(len(documents))]}
    if options.get("labels", True) is False:
        del columns["labels"]
    write_ipc(tmp_path / "source.arrow", pa.table(columns), rows=50)
    options = {"max_len": 64, "shard_size": "2KB", "keep": ["name"], "add_column": ["position_ids"], **options}
    packer.pack(tmp_path / "source.arrow", tmp_path / "alone", **options)
    shrink(monkeypatch, shard_tasks=5)
    manifest = packer.pack(tmp_path / "source.arrow", tmp_path / "together", **options)
    assert len(manifest.shards) > 20
    assert hashes(tmp_path / "together") == hashes(tmp_path / "alone")
    assert list(packer.verify(tmp_path / "together", tmp_path / "source.arrow")) == []


@pytest.mark.parametrize("algorithm", ["auto", "bfd", "optimal", "sequential", "wrapped"])
def test_no_row_holds_more_than_max_segments(tmp_path, algorithm):
    source = save_arrow(tmp_path / "source.arrow", made_documents(300, longest=20))
    packer.pack(source, tmp_path / "out", max_len=64, max_segments=3, algorithm=algorithm, sync=False)
    depths = [int((row["doc_ids"] >= 0).sum()) for row in packer.load(tmp_path / "out")]
    assert max(depths) == 3


def test_a_wrong_token_beyond_the_first_record_batch_is_named(tmp_path, monkeypatch):
    shrink(monkeypatch, batch=4096)
    documents = made_documents(1500)
    documents[777][0] = -3
    with pytest.raises(packer.PackerError, match=r"document 777 .* holds -3 at position 0"):
        packer.pack(save_arrow(tmp_path / "source.arrow", documents), tmp_path / "packed", max_len=64)


@pytest.mark.parametrize("algorithm", ["auto", "bfd"])
def test_another_seed_gives_other_rows_and_as_many(tmp_path, algorithm):
    source = save_arrow(tmp_path / "source.arrow", made_documents(500))
    for seed in (1, 2):
        packer.pack(source, tmp_path / str(seed), max_len=64, seed=seed, algorithm=algorithm)
    one, other = (packer.load(tmp_path / str(seed)) for seed in (1, 2))
    assert len(one) == len(other)
    assert sorted(segments_in(one)) == sorted(segments_in(other))
    together = [{frozenset(row["doc_ids"].tolist()) for row in rows} for rows in (one, other)]
    assert len(together[0] & together[1]) < len(one) / 3


def test_progress_counts_tokens_to_the_end(tmp_path):
    steps = []
    source = save_arrow(tmp_path / "source.arrow", made_documents(300))
    manifest = packer.pack(source, tmp_path / "out", max_len=64, progress=lambda *step: steps.append(step))
    assert steps[-1] == ("write", manifest.rows * 64, manifest.rows * 64)


def test_progress_moves_within_a_shard_that_is_written_verified_and_compared(tmp_path, monkeypatch):
    shrink(monkeypatch, batch=1 << 10)
    source, steps = save_arrow(tmp_path / "source.arrow", made_documents(300)), []
    packer.pack(source, tmp_path / "out", max_len=64, progress=lambda *step: steps.append(step))
    assert packer.verify(tmp_path / "out", source, progress=lambda *step: steps.append(step))
    for name in ("write", "verify", "compare"):
        moved = [done for stage, done, _ in steps if stage == name]
        assert moved == sorted(moved)
        assert len({*moved}) > 3, name
    assert len([*(tmp_path / "out").glob("data-*")]) == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_without_a_cache_folder_kernels_are_compiled_again(tmp_path):
    package = Path(packer.__file__).parent
    shutil.copytree(package, tmp_path / "packer", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [path for path in (tmp_path / "packer").rglob("*") if path.is_dir()]:
        (folder / "__pycache__").write_text("a file where a folder should go")
    code = """
import numpy as np
from packer.algorithms.permute import mixed
assert mixed.compiled(np.uint64(5)) == mixed.function(np.uint64(5))
assert mixed.compiled.signatures
"""
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "NUMBA_CACHE_DIR": f"{os.devnull}/cache"}
    nowhere["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | nowhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
