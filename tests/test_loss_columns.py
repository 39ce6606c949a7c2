"""Columns beside tokens that say which of them are trained, under the names that tools give them."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError
from packer.sources.meanings import names
from tests.helpers.commands import succeeded
from tests.helpers.each_answer import documents_in
from tests.helpers.opening import open_source
from tests.helpers.writing import write_as, write_lines

FILES = {"jsonl": "a.jsonl", "parquet": "a.parquet", "arrow": "a.arrow", "saved": "dataset", "memory": "table"}

# What each name says of the tokens of a document. This list is the reference: it shares nothing with packer's table.
LABELS = ["labels", "label", "label_ids"]
SHIFTED = ["targets", "targets_segmentation"]  # of the next token, in rows of MaxText
MASKS = [
    "loss_mask",
    "completion_mask",
    "assistant_masks",
    "assistant_mask",
    "assistant_tokens_mask",
    "response_mask",
    "target_mask",
    "label_mask",
]
INVERSE = ["prompt_mask"]
LENGTHS = ["prompt_length", "answer_start_idx"]
LISTS_OF_WEIGHTS = ["weight", "weights"]
WEIGHTS = ["sample_weight", "loss_weight", "loss_weights", "loss_scale", "loss_multiplier"]
REFUSED = ["mask", "action_mask", "padding_mask"]
NOTHING = {
    "special_tokens_mask": [1, 0, 0],
    "token_type_ids": [0, 0, 1],
    "offset_mapping": [[0, 1], [1, 2], [2, 3]],
    "overflow_to_sample_mapping": 0,
    "length": 3,
    "num_tokens": 3,
    "token_count": 3,
    "context_ids": [1],
    "context_length": 1,
    "answer_ids": [2, 3],
    "label": 1,
    "label_ids": 0.5,
    "target_mask": [[1, 1], [1, 0], [1, 1]],
    "loss_scale": None,
}


def is_trained(name, value, place):
    """Whether a column says that the token at a place is trained."""
    if name in LENGTHS:
        return place >= value
    if not isinstance(value, list):
        return value == 1
    if name in LABELS:
        return value[place] != -100
    return value[place] == (0 if name in INVERSE else 1)


def labels_of(record):
    said = [name for name in record if name != "input_ids"]
    own = next((record[name] for name in said if name in LABELS), record["input_ids"])
    return [
        label if all(is_trained(name, record[name], place) for name in said) else -100
        for place, label in enumerate(own)
    ]


def a_value(draw, name, tokens):
    count = len(tokens)
    if name in LENGTHS:
        return draw(st.integers(0, count))
    if name in WEIGHTS and name[-1] != "s":
        return float(draw(st.integers(0, 1)))
    bits = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    return [token if bit else -100 for token, bit in zip(tokens, bits, strict=True)] if name in LABELS else bits


@st.composite
def records_with(draw, chosen):
    documents = draw(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=8), min_size=1, max_size=12))
    return [{"input_ids": tokens} | {name: a_value(draw, name, tokens) for name in chosen} for tokens in documents]


def assert_trained_as_said(folder, kind, records):
    source = write_as(folder / FILES[kind], records)
    packer.pack(source, folder / "out", max_len=8, untrained="keep-all", sync=False)
    found = documents_in(folder / "out")
    assert set(found) == set(range(len(records)))
    for number, record in enumerate(records):
        tokens, labels, _ = found[number]
        assert tokens == record["input_ids"]
        assert labels[1:] == labels_of(record)[1:]  # the first token of a segment is never trained
    assert list(packer.verify(folder / "out", source)) == []


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", [*LABELS, *MASKS, *INVERSE, *LENGTHS, *WEIGHTS])
def test_a_name_says_what_is_trained_in_every_format(tmp_path_factory, name, kind):
    @settings(deadline=None, max_examples=3)
    @given(records_with([name]))
    def check(records):
        assert_trained_as_said(tmp_path_factory.mktemp("named"), kind, records)

    check()


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from([*FILES]))
def test_of_several_columns_all_must_say_that_a_token_is_trained(tmp_path_factory, data, kind):
    chosen = data.draw(st.lists(st.sampled_from([*MASKS, *INVERSE, *LENGTHS, *WEIGHTS]), max_size=4, unique=True))
    chosen += data.draw(st.sampled_from([[], *([name] for name in LABELS)]))
    assert_trained_as_said(tmp_path_factory.mktemp("several"), kind, data.draw(records_with(chosen)))


def test_the_names_here_are_those_of_the_table():
    for means, expected in {
        "labels": LABELS,
        "mask": MASKS,
        "inverse_mask": INVERSE,
        "prompt_length": LENGTHS,
        "weight": [*WEIGHTS, *LISTS_OF_WEIGHTS],
        "refused": REFUSED,
    }.items():
        found = set(names("tokens", means))
        assert set(expected) == {name for name in found if means != "refused" or "mask" in name}
    assert {name for name in NOTHING if name not in (*LABELS, *MASKS, *WEIGHTS)} <= set(names("tokens", "nothing"))


def test_the_guide_to_masks_names_every_column():
    guide = (Path(__file__).parents[1] / "docs/how-to/masks.md").read_text()
    assert [
        name for name in [*LABELS, *MASKS, *INVERSE, *LENGTHS, *WEIGHTS, *REFUSED] if f"`{name}`" not in guide
    ] == []


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
@pytest.mark.parametrize("name", NOTHING)
def test_columns_that_mean_nothing_for_training_change_nothing(tmp_path, name, kind):
    source = write_as(tmp_path / FILES[kind], [{"input_ids": [1, 2, 3], name: NOTHING[name]}] * 3)
    packer.pack(source, tmp_path / "out", max_len=8)
    assert [found[:2] for found in documents_in(tmp_path / "out").values()] == [([1, 2, 3], [-100, 2, 3])] * 3


ALL_TRAINED = {
    **{name: [1, 1, 1] for name in MASKS},
    **{name: [0, 0, 0] for name in INVERSE},
    **dict.fromkeys(LENGTHS, 0),
    **dict.fromkeys(WEIGHTS, 1.0),
}


@pytest.mark.parametrize("kind", ["arrow", "saved", "memory"])
def test_a_source_stays_mapped_where_every_column_trains_all(tmp_path, kind):
    assert open_source(write_as(tmp_path / FILES[kind], [{"input_ids": [1, 2, 3], **ALL_TRAINED}] * 3)).mapped


@pytest.mark.parametrize("name", [*MASKS, *INVERSE, *LENGTHS, *WEIGHTS])
def test_a_source_that_a_column_masks_is_decoded(tmp_path, name):
    value = [1, 0, 1] if isinstance(ALL_TRAINED[name], list) else 1 if name in LENGTHS else 0
    source = write_as(tmp_path / "a.arrow", [{"input_ids": [1, 2, 3], name: value}] * 3)
    assert not open_source(source).mapped
    with pytest.raises(PackerError, match="an index reads tokens in place"):
        packer.pack(source, tmp_path / "out", max_len=8, index_only=True)


WRONG = {
    "short": ({"response_mask": [0, 1]}, "'response_mask' has 2 values for 3 tokens"),
    "half": ({"response_mask": [0, 0.5, 1]}, "'response_mask' holds 0.5 at position 1: a mask is 0 or 1"),
    "below": ({"prompt_mask": [0, -1, 1]}, "'prompt_mask' holds -1 at position 1: a mask is 0 or 1"),
    "number": ({"loss_mask": 1}, "'loss_mask' holds .* lists? of numbers"),
    "weights": (
        {"loss_scale": [0.0, -2.0, 1.0]},
        "'loss_scale' holds -2.0 at position 1: a weight of the loss is a finite number from 0 on",
    ),
    "weight": (
        {"loss_multiplier": -0.5},
        "'loss_multiplier' holds -0.5 as weight: a weight of the loss is a finite number from 0 on",
    ),
    "text": ({"loss_weight": "high"}, "'loss_weight' holds high as weight"),
    "long prompt": (
        {"prompt_length": 4},
        "'prompt_length' holds 4 for 3 tokens: it is the number of tokens ",
    ),
    "negative prompt": ({"answer_start_idx": -1}, "'answer_start_idx' holds -1 for 3 tokens"),
    "no prompt": ({"prompt_length": None}, "'prompt_length' holds .* for 3 tokens"),
    "a list of prompts": ({"prompt_length": [1, 1, 1]}, "'prompt_length' holds .* for 3 tokens"),
    "two labels": ({"labels": [1, 2, 3], "label": [1, 2, 3]}, "'labels' and 'label' both hold labels: remove one"),
    **{
        name: ({name: [1, 0, 1]}, rf"column '{name}' (has different meanings|is 1 for padding) .*(name it|use an)")
        for name in REFUSED
    },
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(("column", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_refused_by_its_name(tmp_path, column, message, kind):
    source = write_as(tmp_path / FILES[kind], [{"input_ids": [1, 2, 3], **column}] * 2)
    with pytest.raises(PackerError, match=message):
        packer.pack(source, tmp_path / "out", max_len=8)


def test_a_record_with_a_wrong_number_is_left_out(tmp_path):
    good = {"input_ids": [1, 2, 3], "prompt_length": 1, "loss_scale": [1, 0, 1], "loss_multiplier": 1}
    bad = [{**good, "prompt_length": 4}, {**good, "prompt_length": "one"}, {**good, "loss_multiplier": -0.5}]
    bad += [{**good, "loss_scale": [1, 0, -2]}]
    source = write_lines(tmp_path / "a.jsonl", [good, *bad, good])
    packer.pack(source, tmp_path / "out", max_len=8, on_error="skip")
    found = {number: labels for number, (_, labels, _) in documents_in(tmp_path / "out").items()}
    assert found == {0: [-100, -100, 3], 5: [-100, -100, 3]}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("on", [True, 1, 1.0])
def test_a_missing_weight_is_one(tmp_path, kind, on):
    records = [{"input_ids": [1, 2], "loss_multiplier": weight} for weight in (on, None, type(on)(0))]
    packer.pack(write_as(tmp_path / FILES[kind], records), tmp_path / "out", max_len=8)
    found = documents_in(tmp_path / "out")
    assert [found[number][1] for number in range(3)] == [[-100, 2], [-100, 2], [-100, -100]]


def test_weights_are_carried_where_they_are_kept(tmp_path):
    record = {"input_ids": [1, 2, 3], "loss_multiplier": 0.5, "loss_scale": [1.0, 2.0, 1.0]}
    source = write_lines(tmp_path / "a.jsonl", [record])
    packer.pack(source, tmp_path / "out", max_len=8, keep=["loss_multiplier"], keep_tokens=["loss_scale"])
    ((_, labels, kept),) = documents_in(tmp_path / "out").values()
    assert (labels, kept["loss_multiplier"]) == ([-100, 2, 3], 0.5)


@pytest.mark.parametrize("name", [*MASKS, *INVERSE, *LENGTHS])
def test_masks_are_not_kept(tmp_path, name):
    source = write_lines(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3], name: ALL_TRAINED[name]}])
    with pytest.raises(PackerError, match=f"keep '{name}': masks become labels"):
        packer.pack(source, tmp_path / "out", max_len=8, keep=[name])


@pytest.mark.parametrize("kind", ["jsonl", "saved"])
@pytest.mark.parametrize("name", [*LABELS, *MASKS, *INVERSE, *WEIGHTS, *REFUSED])
def test_any_name_is_that_of_labels_if_it_is_given_as_such(tmp_path, name, kind):
    record = {"input_ids": [1, 2, 3], "labels": [1, 1, 1], name: [-100, 2, 3]}
    packer.pack(write_as(tmp_path / FILES[kind], [record]), tmp_path / "out", max_len=8, labels_column=name)
    assert [labels for _, labels, _ in documents_in(tmp_path / "out").values()] == [[-100, 2, 3]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("name", [*LABELS, *MASKS, *INVERSE, *LENGTHS, *WEIGHTS, *REFUSED, *SHIFTED])
def test_a_name_that_only_a_later_file_has_is_refused(tmp_path, name, kind):
    value = ALL_TRAINED.get(name, [1, 1, 1])
    for file, columns in (("a", {"label": 1}), ("b", {"label": 2, name: value})):
        (tmp_path / "data").mkdir(exist_ok=True)
        write_as(tmp_path / "data" / f"{file}.{kind}", [{"input_ids": [1, 2, 3], **columns}])
    with pytest.raises(PackerError, match=rf"b.{kind}.*'{name}'.*(give|first file)"):
        packer.pack(tmp_path / "data", tmp_path / "out", max_len=8)


@pytest.mark.parametrize("name", [*LABELS, *MASKS, *INVERSE, *LENGTHS, *WEIGHTS, *REFUSED, *SHIFTED])
def test_a_name_that_only_a_later_line_has_is_refused(tmp_path, name):
    plain, odd = {"input_ids": [1, 2, 3]}, {"input_ids": [1, 2, 3], name: ALL_TRAINED.get(name, [1, 1, 1])}
    source = write_lines(tmp_path / "a.jsonl", [*[plain] * 3, odd])
    with pytest.raises(PackerError, match=rf"document 3 \(a.jsonl line 4\): .*'{name}'"):
        packer.pack(source, tmp_path / "out", max_len=8)


def test_a_class_of_a_later_line_is_no_label(tmp_path):
    lines = [{"input_ids": [1, 2]}, {"input_ids": [1, 2], "label": 1, "note": '"label": [1]'}]
    assert packer.pack(write_lines(tmp_path / "a.jsonl", lines), tmp_path / "out", max_len=8).totals.documents == 2


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("prefix", ["", "chosen_", "rejected_"])
@pytest.mark.parametrize("name", [*LABELS[1:], *MASKS, *INVERSE, *LENGTHS, *WEIGHTS, *REFUSED])
def test_pairs_refuse_every_name(tmp_path, prefix, name, later):
    sides = {f"{side}_{column}": [1, 2, 3] for side in ("chosen", "rejected") for column in ("input_ids", "labels")}
    odd = {**sides, f"{prefix}{name}": ALL_TRAINED.get(name, [1, 1, 1])}
    source = write_lines(tmp_path / "a.jsonl", [*[sides] * later, odd])
    with pytest.raises(PackerError, match=f"'{prefix}{name}' is not read: set what it masks to -100"):
        packer.pack(source, tmp_path / "out", max_len=16, pairs=True)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("name", [*LABELS[1:], *MASKS, *INVERSE, *LENGTHS, *WEIGHTS, *REFUSED, *SHIFTED])
def test_lists_of_documents_refuse_every_name(tmp_path, name, later):
    plain = {"input_ids": [[1, 2], [1, 3]], "labels": [[1, 2], [1, 3]]}
    value = ALL_TRAINED.get(name, [1, 1])
    odd = {**plain, name: [[1, 1], [1, 1]] if isinstance(value, list) else value}
    source = write_lines(tmp_path / "a.jsonl", [*[plain] * later, odd])
    with pytest.raises(PackerError, match=f"'{name}' is not read: set what it masks to -100"):
        packer.pack(source, tmp_path / "out", max_len=16, share_prefixes=True)


def test_names_of_nested_objects_say_nothing(tmp_path):
    lines = [json.dumps({"input_ids": [1, 2], "meta": {"loss_mask": [1, 0], "weight": 2}})] * 3
    assert packer.pack(write_lines(tmp_path / "a.jsonl", lines), tmp_path / "out", max_len=8).totals.tokens_trained == 3


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", LISTS_OF_WEIGHTS)
def test_a_weight_that_is_a_single_number_may_mean_anything_and_is_named(tmp_path, name, kind):
    source = write_as(tmp_path / FILES[kind], [{"input_ids": [1, 2, 3], name: 0.5}] * 2)
    assert f"Unused fields: {name}" in succeeded("pack", source, "--max-len", 8, "-o", tmp_path / "out")
    source = write_as(tmp_path / f"lists-{FILES[kind]}", [{"input_ids": [1, 2, 3], name: [1, 0, 1]}] * 2)
    packer.pack(source, tmp_path / "lists", max_len=8)
    assert [found[1] for found in documents_in(tmp_path / "lists").values()] == [[-100, -100, 3]] * 2
    source = write_as(tmp_path / f"halves-{FILES[kind]}", [{"input_ids": [1, 2, 3], name: [1.0, -0.5, 1.0]}] * 2)
    with pytest.raises(packer.PackerError, match=f"'{name}' holds -0.5 at position 1: a weight of the loss is"):
        packer.pack(source, tmp_path / "halves", max_len=8)
