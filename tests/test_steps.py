"""Which documents an optimizer step trained on: `BatchSampler.documents` and `packer show --step`."""

import json
from collections import Counter

import datasets
import pytest

import packer
from packer import PackerError
from tests.helpers.commands import run, succeeded
from tests.helpers.order import sampler_at, samplers
from tests.helpers.packed_rows import MAX_LEN, make, segments_of, tokens_of
from tests.helpers.writing import write_lines

LENGTHS = [5, 12, 1, 30, 7, 3, 9, 1, 2, 11, 4, 6, 8, 10, 5, 5, 2, 12, 12, 3, 7]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Rows of several shards; documents are split."""
    return make(tmp_path_factory.mktemp("steps"), LENGTHS, shard_size=12 * 3 * 4 * MAX_LEN)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make(tmp_path_factory.mktemp("other"), [12, 3, 9, 4, 4, 12])


def trained_steps(dataset, layout, epochs, **options):
    """What all ranks train on in each step: the segments of the rows that their batches hold."""
    steps = []
    ranks = samplers(dataset, layout, **options)
    for _ in range(epochs):
        turns = list(zip(*ranks, strict=True))
        for first in range(0, len(turns), ranks[0].accumulation):
            numbers = [
                number for turn in turns[first : first + ranks[0].accumulation] for own in turn for number in own
            ]
            rows = dataset.__getitems__(numbers)
            steps.append(
                Counter(
                    (number, *segment, int(row.get("source", 0)))
                    for number, row in zip(numbers, rows, strict=True)
                    for segment in segments_of(row)
                )
            )
    return steps


LAYOUTS = {
    "two ranks": {},
    "a seed": {"seed": 5},
    "the order on disk": {"seed": None},
    "an incomplete step left out": {"drop_last": True},
    "balanced": {"balance": 1},
    "moved between steps": {"balance": 3},
    "lanes": {"lanes": 2, "window": 1},
}


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize("combined", [False, True])
def test_documents_of_a_step_are_those_that_two_ranks_train_on(packed, other, combined, options):
    dataset = packer.load({packed: 0.7, other: 0.3}, rows=14) if combined else packer.load(packed)
    options, layout = LAYOUTS[options], {"world_size": 2, "rows": 1, "global_batch": 4}
    expected = trained_steps(dataset, layout, 3, **options)
    sampler = packer.BatchSampler(dataset, global_batch=4, **options)
    sampler.set_epoch(9)  # its own position does not matter
    assert len(expected) == 3 * sampler.steps
    for step, documents in enumerate(expected, 1):
        found = sampler.documents(step)
        names = [str(each.path) for each in dataset.datasets]
        assert Counter((*each[:4], names.index(each.packed)) for each in found) == documents
        epoch, before = divmod(step - 1, sampler.steps)
        assert sampler.documents(before + 1, epoch=epoch) == found
        assert all((each.file, each.record) == ("source.arrow", each.doc_id) for each in found)
    assert list(sampler) == list(sampler_at(9, dataset, global_batch=4, **options)), "its position has not moved"


@pytest.mark.parametrize("options", LAYOUTS)
def test_show_finds_the_rows_of_a_step_by_a_saved_state(packed, tmp_path, options):
    dataset, layout = packer.load(packed), {"world_size": 2, "rows": 1, "global_batch": 4}
    expected = trained_steps(dataset, layout, 2, **LAYOUTS[options])
    state = samplers(dataset, layout, **LAYOUTS[options])[1].state_dict(3)
    (tmp_path / "state.json").write_text(json.dumps(state))
    for step in (1, len(expected) // 2 + 1, len(expected)):
        content = json.loads(
            succeeded("show", packed, "--step", step, "--global-batch", tmp_path / "state.json", "--json")
        )
        segments = [(row["row"], each) for row in content["rows"] for each in row["segments"] if each["doc_id"] >= 0]
        names = ("doc_id", "doc_start")
        found = Counter((row, *(each[name] for name in names), len(each["input_ids"]), 0) for row, each in segments)
        assert found == expected[step - 1]
        assert packer.show(packed, step=step, global_batch=state).to_dict() == content


def test_show_prints_the_documents_of_a_step_of_batches(packed):
    every = [
        batch for epoch in range(2) for batch in packer.batches(packed, rows=3, seed=7, epoch=epoch, tensors="numpy")
    ]
    steps = len(every) // 2
    assert steps > 3
    for step in (1, steps, steps + 1, 2 * steps):
        lines = succeeded("show", packed, "--step", step, "--global-batch", 3, "--seed", 7).splitlines()
        epoch, before = divmod(step - 1, steps)
        rows = len({line.split()[0] for line in lines[2:]})
        assert lines[0] == f"step {before + 1} of {steps} in epoch {epoch}: {rows} rows".replace("1 rows", "1 row")
        assert lines[1].split() == ["row", "tokens", "document", "from", "trained", "file", "record", "begins"]
        within = ["--step", before + 1, "--epoch", epoch, "--global-batch", 3, "--seed", 7]
        assert succeeded("show", packed, *within).splitlines() == lines
        documents = [line.split() for line in lines[2:] if "padding" not in line]
        tokens = [
            token
            for _, _, tokens, document, start, *_ in documents
            for token in tokens_of(int(document), int(start) + int(tokens))[int(start) :]
        ]
        assert tokens == every[step - 1]["input_ids"][0].tolist()


def test_show_prints_a_step_of_several_datasets_that_are_mixed(packed, other):
    dataset = packer.load({packed: 0.7, other: 0.3})
    (step,) = (each for at, each in enumerate(packer.batches(dataset, rows=5, tensors="numpy")) if at == 1)
    shown = ["show", f"{packed}:0.7", f"{other}:0.3", "--step", 2, "--global-batch", 5]
    segments = [each for row in json.loads(succeeded(*shown, "--json"))["rows"] for each in row["segments"]]
    assert [token for each in segments for token in each["input_ids"]] == step["input_ids"][0].tolist()
    assert {each["packed"] for each in segments if each["doc_id"] >= 0} == {str(packed), str(other)}
    assert succeeded(*shown).splitlines()[1].split()[5:8] == ["packed", "file", "record"]
    same = packer.show(packer.load({packed: 0.7, other: 0.3}), step=2, global_batch=5)
    assert repr(same) == succeeded(*shown).rstrip("\n")
    row = packer.show({packed: 0.7, other: 0.3}, 1).to_dict()["rows"]
    assert row[0]["row"] == 1


def test_rows_of_a_sampler_of_another_trainer_are_named_by_number(packed):
    dataset = packer.load(packed)
    shown = json.loads(succeeded("show", packed, 3, -1, 0, "--json"))["rows"]
    assert [row["row"] for row in shown] == [3, len(dataset) - 1, 0]
    assert packer.show(packed, [3, -1, 0]).to_dict()["rows"] == shown
    full = succeeded("show", packed, *range(len(dataset)), "--full")
    assert [line for line in full.splitlines() if line[:3] == "row"] == [f"row {row}" for row in range(len(dataset))]
    assert full.count(", file source.arrow, record ") == sum(map(len, map(segments_of, dataset)))
    assert ": padding, " in full


# ---- the file and the record ----


def records_of(folder):
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines() if line] for path in folder.iterdir()
    }


def test_documents_are_found_in_the_files_of_the_source(tmp_path):
    """Blank lines are no records; skipped records keep their number; documents are split and held out."""
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        lines = [{"input_ids": [100 * part + number] * (number % 15)} for number in range(40)]
        lines[4] = {"input_ids": "none"}
        text = "\n\n".join(map(json.dumps, lines))
        (folder / f"part-{part}.jsonl").write_text(text)
    packer.pack(folder, tmp_path / "out", max_len=8, on_error="skip", holdout=0.2)
    records, seen = records_of(folder), Counter()
    for name in ("out", "out-holdout"):
        sampler = packer.BatchSampler(packer.load(tmp_path / name), global_batch=6)
        for step in range(1, sampler.steps + 1):
            shown = packer.show(tmp_path / name, step=step, global_batch=6).to_dict()["rows"]
            segments = [each for row in shown for each in row["segments"] if each["doc_id"] >= 0]
            assert sorted((each["file"], each["record"], each["doc_start"]) for each in segments) == sorted(
                (each.file, each.record, each.start) for each in sampler.documents(step)
            )
            for each in segments:
                tokens = records[each["file"]][each["record"]]["input_ids"]
                assert tokens[each["doc_start"] :][: len(each["input_ids"])] == each["input_ids"]
                seen[each["file"], each["record"]] += len(each["input_ids"])
    assert seen == {
        (file, number): len(record["input_ids"])
        for file, lines in records.items()
        for number, record in enumerate(lines)
        if record["input_ids"] and number != 4
    }
    head = succeeded("show", tmp_path / "out", 0).splitlines()[0]
    assert head.split()[4:6] == ["file", "record"][:2] or head.split()[4:7] == ["trained", "file", "record"]


def test_a_dataset_in_memory_has_records_too(tmp_path):
    packer.pack(datasets.Dataset.from_dict({"input_ids": [[1, 1], [2, 2, 2], [3]]}), tmp_path / "out", max_len=8)
    (sampled,) = [packer.BatchSampler(packer.load(tmp_path / "out"), global_batch=1).documents(1)]
    assert {(each.file, each.record, each.length) for each in sampled} == {
        ("dataset", 0, 2),
        ("dataset", 1, 3),
        ("dataset", 2, 1),
    }


UNKNOWN = "(records may make several documents each, so the number of a document's record is not always known)"


def test_where_a_record_makes_several_documents_it_is_found_by_its_id_or_said_to_be_unknown(tmp_path):
    lists = [{"input_ids": [[n], [n, 1], [n, 2]], "labels": [[n], [-100, 1], [-100, 2]]} for n in range(5)]
    paths = [write_lines(tmp_path / f"{name}.jsonl", lists) for name in "ab"]
    packer.pack(paths[0], tmp_path / "one", max_len=4, share_prefixes=True)
    packer.pack(paths, tmp_path / "two", max_len=4, share_prefixes=True)
    for name in ("one", "two"):
        sampler = packer.BatchSampler(packer.load(tmp_path / name), global_batch=100)
        shown = packer.show(tmp_path / name, step=1, global_batch=100)
        rows = shown.to_dict()["rows"]
        segments = [each for row in rows for each in row["segments"] if each["doc_id"] >= 0]
        found = Counter((each["file"], each["record"]) for each in segments)
        assert Counter((each.file, each.record) for each in sampler.documents(1)) == found
        assert all(each["record"] in (None, each["input_ids"][0]) for each in segments)
        assert {each["file"] for each in segments if each["record"] is None} == (
            {"b.jsonl"} if name == "two" else set()
        )
        assert (UNKNOWN in str(shown)) == (name == "two")


def test_documents_of_rows_that_were_packed_before_have_a_file_and_no_record(tmp_path):
    rows = [{"input_ids": [1, 2, 3, 4], "seq_lengths": [2, 2]}, {"input_ids": [5, 6, 7, 8], "seq_lengths": [1, 3]}]
    packer.pack(write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "out", max_len=8)
    shown = packer.show(tmp_path / "out", step=1, global_batch=9)
    assert UNKNOWN in str(shown)
    (row,) = shown.to_dict()["rows"]
    assert {(each["file"], each["record"]) for each in row["segments"]} == {("rows.jsonl", None)}


def test_a_pair_is_the_record_of_its_number(tmp_path):
    pairs = [
        {
            "chosen_input_ids": [number, 1],
            "rejected_input_ids": [number, 2],
            "chosen_labels": [-100, 1],
            "rejected_labels": [-100, 2],
        }
        for number in range(6)
    ]
    packer.pack(write_lines(tmp_path / "pairs.jsonl", pairs), tmp_path / "out", max_len=6, pairs=True)
    found = packer.show(tmp_path / "out", step=1, global_batch=9).to_dict()["rows"]
    segments = [each for row in found for each in row["segments"] if each["doc_id"] >= 0]
    assert sorted((each["record"], each["input_ids"][0]) for each in segments) == [(n, n) for n in range(6)]


def test_rows_of_lengths_alone_have_documents_too(tmp_path):
    packer.pack(
        write_lines(tmp_path / "l.jsonl", [{"n": 3}, {"n": 5}]), tmp_path / "out", max_len=8, lengths_column="n"
    )
    (first, second) = sorted(
        packer.BatchSampler(packer.load(tmp_path / "out"), global_batch=1).documents(1), key=lambda d: d.doc_id
    )
    assert (first[1:6], second[1:6]) == ((0, 0, 3, "l.jsonl", 0), (1, 0, 5, "l.jsonl", 1))


# ---- refusals ----


REFUSED = {
    "step is 0: the first step is 1, and an epoch has": {"step": 0, "global_batch": 4},
    "step is 99: the first step is 1, and an epoch has": {"step": 99, "global_batch": 4, "epoch": 0},
    "step is 'x': it must be a whole number": {"step": "x", "global_batch": 4},
    "the rows of a step follow from step and global_batch: give both": {"step": 1},
    "the rows of a step follow from step and global_batch": {"epoch": 0},
    "global_batch is 0": {"step": 1, "global_batch": 0},
    "global_batch is no.json: give a number, or the JSON of a state: ": {"step": 1, "global_batch": "no.json"},
    "the sampler's state is [5]": {"step": 1, "global_batch": [5]},
    "row is 'x'": {"row": "x"},
    "row is []": {"row": []},
    "has no row 5000": {"row": [0, 5000]},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_names_no_step_is_refused_in_a_line(packed, message):
    with pytest.raises(PackerError) as caught:
        packer.show(packed, **REFUSED[message])
    assert message in str(caught.value)


def test_a_state_of_other_rows_or_another_seed_is_refused(packed, other):
    state = packer.BatchSampler(packer.load(other), global_batch=2, seed=3).state_dict()
    with pytest.raises(PackerError, match=r"the sampler's state has dataset [0-9a-f]{16}, this sampler"):
        packer.show(packed, step=1, global_batch=state)
    with pytest.raises(PackerError, match="seed is 4, and the state of the sampler has 3: leave it out"):
        packer.show(other, step=1, global_batch=state, seed=4)
    assert "Give one of ROW, --document and --step" in run("show", packed, 0, "--step", 1, "--global-batch", 2).stderr
    assert "is not a valid integer" in run("show", packed, "nothing").stderr
