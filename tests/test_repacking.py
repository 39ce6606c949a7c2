"""A packed dataset as a source: its documents, in rows of another length."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_ranks import run_ranks

import packer
from packer.cli import cli
from packer.errors import PackerError, SourceError
from packer.pipeline import packing
from tests.opening import open_source
from tests.packings import packings
from tests.small import shrink
from tests.test_untrusted_datasets import edit_manifest
from tests.writing import write_ipc

KEPT = {"keep": ["url"], "keep_tokens": ["reward"]}


def made_columns(count=400, seed=0, longest=60) -> dict[str, list]:
    """Documents of distinct tokens, some of them long and some empty, with labels and two more columns."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest, count)
    lengths[::37] = 10 * longest
    lengths[::50] = 0
    ends = np.cumsum(lengths)
    tokens = [list(range(end - length, end)) for length, end in zip(lengths.tolist(), ends.tolist(), strict=True)]
    return {
        "input_ids": tokens,
        "labels": [[token if random.random() < 0.6 else -100 for token in ids] for ids in tokens],
        "url": [None if number % 9 == 0 else f"page-{number}" for number in range(count)],
        "reward": [[token / 4 for token in ids] for ids in tokens],
    }


TYPES = {"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32()), "reward": pa.list_(pa.float32())}


def save(path: Path, columns: dict[str, list]) -> Path:
    table = pa.table({name: pa.array(values, TYPES.get(name)) for name, values in columns.items()})
    write_ipc(path, table, rows=50)
    return path


def hashes(manifest: packer.Manifest) -> list[str]:
    return [shard.xxh3_128 for shard in manifest.shards]


def pack(source: Path, out: Path, **options) -> packer.Manifest:
    return packer.pack(source, out, **{"sync": False, "workers": 2, "shard_size": 40_000, **options})


def documents_of(folder: Path) -> dict[int, list[list]]:
    """The slow twin: documents put together from rows, one [token, label] at a time."""
    found: dict[int, dict[int, list]] = {}
    rows = packer.load(folder)
    for row in (rows[number] for number in range(len(rows))):
        sizes, place = row.get("seq_tokens", row["seq_lengths"]), 0
        for segment, document in enumerate(row["doc_ids"].tolist()):
            if document >= 0:
                tokens = found.setdefault(document, {})
                start = int(row["doc_starts"][segment])
                for at in range(int(sizes[segment])):
                    values = [row[name][place + at].item() for name in ("input_ids", "labels")]
                    before = tokens.get(start + at)
                    if before is None or before[1] == -100:  # a repeated token has its label where it is trained
                        tokens[start + at] = values
            place += int(row["seq_lengths"][segment])
    return {document: [tokens[at] for at in sorted(tokens)] for document, tokens in found.items()}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("repacking") / "documents.arrow", made_columns())


@pytest.fixture(scope="module")
def packed(source) -> Path:
    """The source in rows of 128 tokens; its long documents are split."""
    out = source.with_name("packed")
    pack(source, out, max_len=128, align=4, **KEPT)
    return out


@pytest.fixture
def few_bytes(monkeypatch) -> None:
    """Cut sources into many pieces, and sort segments in many runs."""
    shrink(monkeypatch, piece=5_000, segment_run=3_000)


# the same rows as from the source


@pytest.mark.parametrize("options", [{"seed": 3}, {"algorithm": "wrapped"}, {"align": 8, "seed": 1}])
@pytest.mark.parametrize("max_len", [64, 1024])
def test_rows_of_another_length_are_those_of_the_source(source, packed, tmp_path, few_bytes, options, max_len):
    expected = pack(source, tmp_path / "expected", max_len=max_len, **KEPT, **options)
    found = pack(packed, tmp_path / "found", max_len=max_len, **KEPT, **options)
    assert hashes(found) == hashes(expected)
    assert len(expected.shards) > 1
    assert found.totals == expected.totals
    assert found.source.lengths_xxh3_128 == expected.source.lengths_xxh3_128
    assert list(packer.verify(tmp_path / "found", packed)) == []


def test_rows_that_were_packed_again_and_back_are_the_first_rows(source, tmp_path):
    first = pack(source, tmp_path / "first", max_len=96)
    pack(tmp_path / "first", tmp_path / "there", max_len=700)
    back = pack(tmp_path / "there", tmp_path / "back", max_len=96)
    assert hashes(back) == hashes(first)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(packings(mixtures=False, pairs=False), st.integers(1, 8), st.data())
def test_any_packed_documents_are_those_of_the_slow_twin(tmp_path_factory, packing, times, data):
    """Documents joined from rows are those that the rows spell; rows of them are those of the same documents saved."""
    folder = tmp_path_factory.mktemp("any")
    manifest = packing.pack(packing.write(folder), folder / "packed")
    assume(manifest is not None)
    kept = [name for name in packing.options.get("keep", ()) if name == "source"]
    options = {"max_len": packing.options["align"] * times if "align" in packing.options else times, "keep": kept}
    options |= {"seed": data.draw(st.integers(0, 2)), "allow_nothing_trained": True, "shard_size": 100}
    twin = documents_of(folder / "packed")
    try:
        found = pack(folder / "packed", folder / "found", **options)
    except SourceError as error:
        if packing.options["untrained"] != "drop" or "were left out by" not in str(error):
            raise
        return
    columns = {"input_ids": [], "labels": []}
    for document in range(manifest.totals.documents):
        values = twin.get(document, [])
        for number, name in enumerate(columns):
            columns[name].append([value[number] for value in values])
    if kept:
        columns["source"] = kept_values(folder / "packed", manifest.totals.documents)
    expected = pack(save(folder / "twin.arrow", columns), folder / "expected", **options)
    assert hashes(found) == hashes(expected)
    assert list(packer.verify(folder / "found", folder / "packed")) == []


def kept_values(folder: Path, documents: int) -> list:
    """The value of column "source" of each document, from the rows."""
    values = [None] * documents
    for shard in sorted(folder.glob("*.arrow")):
        table = pa.ipc.open_stream(shard.read_bytes()).read_all()
        for ids, row in zip(table["doc_ids"].to_pylist(), table["source"].to_pylist(), strict=True):
            for document, value in zip(ids, row, strict=True):
                if document >= 0:
                    values[document] = value
    return values


def test_documents_are_joined_with_their_columns(packed):
    """By value, for a reader: what a source of packed rows yields is what was packed."""
    made = made_columns()
    (table,) = open_source(packed, keep=("url",), keep_tokens=("reward",)).tables()
    for document, tokens in enumerate(made["input_ids"]):
        assert table.input_ids.list_at(document).to_pylist() == tokens
        labels = made["labels"][document]
        assert table.labels.list_at(document).to_pylist()[1:] == labels[1:]  # no row has the label of a first token
    urls = [url if tokens else None for url, tokens in zip(made["url"], made["input_ids"], strict=True)]
    assert table.extra["url"].at(np.arange(len(urls))).to_pylist() == urls
    assert table.extra["reward"].at(np.arange(len(urls))).to_pylist() == made["reward"]


def test_preference_pairs_are_packed_again(tmp_path, few_bytes):
    columns = {}
    for role, seed in (("chosen", 1), ("rejected", 2)):
        made = made_columns(300, seed)
        columns |= {f"{role}_input_ids": made["input_ids"], f"{role}_labels": made["labels"]}
    columns["url"] = made["url"]
    TYPES.update({name: pa.list_(pa.int32()) for name in columns if name != "url"})
    source, options = save(tmp_path / "pairs.arrow", columns), {"pairs": True, "keep": ["url"]}
    pack(source, tmp_path / "packed", max_len=2048, long="drop", **options)
    expected = pack(source, tmp_path / "expected", max_len=1400, long="truncate", **options)
    found = pack(tmp_path / "packed", tmp_path / "found", max_len=1400, long="truncate", **options)
    assert hashes(found) == hashes(expected)
    assert list(packer.verify(tmp_path / "found", tmp_path / "packed")) == []


def test_turns_of_kept_chats_are_split_where_they_begin(tmp_path):
    made = made_columns()
    made["turn_starts"] = [list(range(0, len(tokens), 10)) for tokens in made["input_ids"]]
    source = save(tmp_path / "chats.arrow", {name: made[name] for name in ("input_ids", "turn_starts")})
    pack(source, tmp_path / "packed", max_len=400, keep=["turn_starts"])
    expected = pack(source, tmp_path / "expected", max_len=64, split_at="turns")
    assert hashes(pack(tmp_path / "packed", tmp_path / "found", max_len=64, split_at="turns")) == hashes(expected)


def test_a_packed_dataset_may_be_one_source_of_a_mixture(source, packed, tmp_path):
    mixtures = [[(path, 0.5), (source.with_name("other.arrow"), 1)] for path in (source, packed)]
    save(source.with_name("other.arrow"), {name: made_columns(90, 4)[name] for name in ("input_ids", "labels")})
    expected, found = (
        packer.pack(mixture, tmp_path / name, max_len=256, mix_unit="epochs", sync=False)
        for mixture, name in zip(mixtures, ("expected", "found"), strict=True)
    )
    assert hashes(found) == hashes(expected)


# what rows do not hold


def test_the_first_tokens_of_pieces_stay_without_loss(source, tmp_path, caplog):
    first = pack(source, tmp_path / "first", max_len=96)
    pack(tmp_path / "first", tmp_path / "again", max_len=1024)
    joints = first.totals.segments - first.totals.documents_packed
    assert f"first: tokens at which pieces of documents begin stay without loss ({joints})" in caplog.text
    made, lost = made_columns(), 0
    for document, tokens in documents_of(tmp_path / "again").items():
        for at, (token, label) in enumerate(tokens):
            expected = made["labels"][document][at] if at else -100
            assert token == made["input_ids"][document][at]
            assert label in (expected, -100)
            lost += label != expected
    assert 0 < lost <= joints


def test_truncated_documents_stay_so_and_dropped_ones_are_empty(source, tmp_path, caplog):
    truncated = pack(source, tmp_path / "truncated", max_len=96, long="truncate")
    again = pack(tmp_path / "truncated", tmp_path / "again", max_len=128)
    count = truncated.totals.documents_truncated
    assert f"truncated: truncated documents stay truncated ({count})" in caplog.text
    assert again.totals.tokens_packed == truncated.totals.tokens_packed
    dropped = pack(source, tmp_path / "dropped", max_len=96, long="drop")
    again = pack(tmp_path / "dropped", tmp_path / "dropped-again", max_len=128)
    assert f"dropped documents are empty now, so doc_ids stay the same ({count} too long)" in caplog.text
    assert again.totals.documents_dropped["empty"] == dropped.totals.documents - dropped.totals.documents_packed
    assert documents_of(tmp_path / "dropped-again") == documents_of(tmp_path / "dropped")


def test_last_pieces_without_trained_tokens_are_missing_with_a_warning(tmp_path, caplog):
    columns = {"input_ids": [list(range(25))], "labels": [[*range(10), *[-100] * 15]]}
    pack(save(tmp_path / "source.arrow", columns), tmp_path / "packed", max_len=10, untrained="drop")
    assert pack(tmp_path / "packed", tmp_path / "again", max_len=20).totals.tokens_packed == 10
    assert "packed: tokens that --untrained drop left out are missing (15)" in caplog.text


def test_a_document_with_a_hole_is_refused(tmp_path):
    labels = [list(range(30)), [*range(10), *[-100] * 10, *range(20, 30)]]
    columns = {"input_ids": [list(range(30))] * 2, "labels": labels}
    pack(save(tmp_path / "source.arrow", columns), tmp_path / "packed", max_len=10, untrained="drop")
    message = r"^document 1 \(.*document 1\): its tokens 10 to 19 were left out by untrained drop"
    with pytest.raises(SourceError, match=message):
        pack(tmp_path / "packed", tmp_path / "again", max_len=20)
    assert not (tmp_path / "again").exists()


# refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["nothing"]}, "no column 'nothing' with a value per document (kept columns: url, reward)"),
        ({"keep": ["reward"]}, "no column 'reward' with a value per document"),
        ({"keep_tokens": ["url"]}, "no column 'url' with a value per token"),
        ({"group_by": "name"}, "no column 'name'"),
        ({"split": "train"}, "is packed without splits; leave --split out"),
        ({"input_column": "ids"}, "no column 'ids' (it is packed, into 'input_ids')"),
        ({"labels_column": "targets"}, "no column 'targets' (it is packed, into 'labels')"),
        ({"pairs": True, "long": "drop"}, "holds no preference pairs: leave --pairs out"),
        ({"index_only": True}, "is packed, and an index reads documents in place: leave index_only out"),
        ({"tokenizer": "tokenizer"}, "is already packed; to pack its documents again give it alone, without"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(packed, tmp_path, options, message):
    with pytest.raises(PackerError) as error:
        pack(packed, tmp_path / "out", max_len=64, **options)
    assert message.replace("--", "") in str(error.value).replace("--", "")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_restored_is_refused(source, tmp_path, bucket):
    mixture = [(source, 1), (shutil.copy(source, tmp_path / "other.arrow"), 1)]
    packer.pack(mixture, tmp_path / "mixture", max_len=64, sync=False)
    made = made_columns()["input_ids"]
    pairs = save(tmp_path / "pairs.arrow", {"chosen_input_ids": made, "rejected_input_ids": made})
    pack(pairs, tmp_path / "pairs", max_len=64, pairs=True, long="drop")
    packer.pack(source, bucket / "stored", max_len=64)
    pack(source, tmp_path / "index", max_len=64, index_only=True)
    np.save(tmp_path / "lengths.npy", np.arange(1, 60))
    packer.pack(tmp_path / "lengths.npy", tmp_path / "lengths", max_len=64)
    messages = {
        tmp_path / "index": "is an index, which has no tokens: pack its source, or write them first with `packer mat",
        tmp_path / "lengths": "was packed from lengths alone",
        tmp_path / "mixture": "is a mixture of 2 sources (documents.arrow, other.arrow)",
        tmp_path / "pairs": "holds preference pairs: pack it again with pairs",
        bucket / "stored": "to pack its documents again copy it to a local disk",
    }
    for folder, message in messages.items():
        with pytest.raises(PackerError) as error:
            packer.pack(str(folder), tmp_path / "out", max_len=32)
        assert message in str(error.value)


def first_shard(folder: Path) -> Path:
    return min(folder.glob("data-*"))


def rewritten(shard: Path, name: str, new: int) -> None:
    """Replace the first value in a column of a shard, and equal ones, and the hash of the shard in the manifest."""
    table = pa.ipc.open_stream(shard.read_bytes()).read_all()
    arrays = []
    for batch in table.to_batches():
        values = np.array(batch[name].values)
        values[values == values[0]] = new
        kind, offsets = batch[name].type, getattr(batch[name], "offsets", None)
        column = (
            pa.FixedSizeListArray.from_arrays(pa.array(values), kind.list_size)
            if offsets is None
            else pa.ListArray.from_arrays(offsets, pa.array(values))
        )
        arrays.append(batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), column))
    size = shard.stat().st_size
    with pa.ipc.new_stream(str(shard), table.schema) as stream:
        for batch in arrays:
            stream.write_batch(batch)
    assert shard.stat().st_size == size
    digest = xxhash.xxh3_128_hexdigest(shard.read_bytes())
    edit_manifest(shard.parent, lambda content: content["shards"][0].update(xxh3_128=digest))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


DAMAGES = {
    "manifest.json is damaged": lambda folder: cut_off(folder / "manifest.json"),
    "holds packed rows, not documents": lambda folder: (folder / "manifest.json").unlink(),
    "is missing, but listed in the manifest": lambda folder: first_shard(folder).unlink(),
    "bytes, the manifest says": lambda folder: cut_off(first_shard(folder)),
    "document 99,999 is not of the source": lambda folder: rewritten(first_shard(folder), "doc_ids", 99_999),
    "it is in the rows more than once": lambda folder: rewritten(first_shard(folder), "doc_ids", 1),
    "its tokens 0 to 8 are in no row": lambda folder: rewritten(first_shard(folder), "doc_starts", 9),
    "of the rows holds a value that is not a token": lambda folder: rewritten(first_shard(folder), "input_ids", -5),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_dataset_is_refused_in_one_line(packed, tmp_path, message):
    folder = Path(shutil.copytree(packed, tmp_path / "damaged"))
    DAMAGES[message](folder)
    with pytest.raises(PackerError) as error:
        pack(folder, tmp_path / "out", max_len=64)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["shard", "manifest"])
def test_a_dataset_that_changes_while_it_is_read_is_named(packed, tmp_path, monkeypatch, kind):
    folder = Path(shutil.copytree(packed, tmp_path / "changing"))
    changed = folder / "manifest.json" if kind == "manifest" else sorted(folder.glob("data-*"))[-1]
    spill = packing.spill_corpus

    def changing(opened, *arguments, **options):
        spilled = spill(opened, *arguments, **options)
        os.utime(changed, ns=(1, 1))
        return spilled

    monkeypatch.setattr(packing, "spill_corpus", changing)
    with pytest.raises(SourceError, match=f"^{changed.name}: the file changed or was replaced"):
        pack(folder, tmp_path / "out", max_len=64)
    assert not (tmp_path / "out").exists()


# who does the work


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_write_the_bytes_of_one_process(packed, tmp_path, few_bytes, monkeypatch, count):
    shrink(monkeypatch, heartbeat=0.05)
    options = {"max_len": 64, "shard_size": 20_000, **KEPT}
    expected = packer.pack(packed, tmp_path / "expected", **options)
    assert run_ranks(packed, tmp_path / "out", count, options=options) == [expected] * count


def test_rows_are_written_to_a_store(packed, tmp_path, few_bytes, bucket):
    expected = pack(packed, tmp_path / "expected", max_len=64)
    assert packer.pack(packed, bucket / "out", max_len=64, shard_size=40_000) == expected


def test_the_command_says_what_it_did(packed, tmp_path):
    done = CliRunner().invoke(cli, ["pack", str(packed), "--max-len", "256", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "rows of 256 tokens" in done.stdout
    for command in (["stats", str(packed)], ["compare", str(packed), "--max-len", "256", "--algorithm", "bfd"]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
