"""Rows that another tool packed are read as the documents that they hold, by each layout in which tools write them."""

import json
from itertools import accumulate

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError, SourceError
from packer.exporting.targets import TARGETS
from packer.sources import meanings
from tests.helpers.commands import refused, run
from tests.helpers.pack import segments_in
from tests.helpers.small import shrink
from tests.helpers.writing import write_as, write_lines

PAD = 0
FORMATS = ["rows.jsonl", "rows.parquet", "rows.arrow", "rows.z.arrow", "dataset", "table"]


# ---- layouts: a row of (tokens, labels) in pairs, and padding, to a record ----


def flat(row, tail=0):
    """Tokens and labels of a row, end to end, and padded."""
    tokens = [token for document, _ in row for token in document]
    labels = [label for _, document in row for label in document]
    return tokens + [PAD] * tail, labels + [-100] * tail


def lengths_of(row):
    return [len(tokens) for tokens, _ in row]


def numbers_of(row, tail=0, first=1):
    return [number for number, (tokens, _) in enumerate(row, first) for _ in tokens] + [first - 1] * tail


def positions_of(row, padding=()):
    return [place for tokens, _ in row for place in range(len(tokens))] + [*padding]


def following(row, tail=0):
    """What the labels say of the next token, as trainers have it that do not shift; -100 after each document."""
    shifted = [label for _, labels in row for label in [*labels[1:], -100]]
    return shifted + [-100] * tail


def with_labels(row, tail, **columns):
    tokens, labels = flat(row, tail)
    return {"input_ids": tokens, "labels": labels, **columns}


def trl(row, tail):
    return with_labels(row, 0, seq_lengths=lengths_of(row))


def trl_completions(row, tail):
    tokens, labels = flat(row)
    return {"input_ids": tokens, "seq_lengths": lengths_of(row), "completion_mask": [int(x != -100) for x in labels]}


def lengths_and_padding(row, tail):
    return with_labels(row, tail, seq_lengths=lengths_of(row))


def torchtune(row, tail):
    """Positions run on into the padding, which is the last of the lengths."""
    tokens, labels = flat(row, tail)
    positions = positions_of(row)
    positions += [positions[-1] + 1 + place for place in range(tail)]
    lengths = lengths_of(row) + [tail] * (tail > 0)
    return {"tokens": tokens, "labels": labels, "input_pos": positions, "seq_lens": lengths}


def megatron_bridge(row, tail):
    mask = [int(label != -100) for label in following(row)]
    starts = [0, *accumulate(lengths_of(row))][:-1]
    return {"input_ids": flat(row)[0], "loss_mask": mask, "seq_start_id": starts}


def nemo_from_answer_start(row, tail):
    """NeMo's masks of `answer_start_idx` are 1 at the last token of a document, too, which predicts nothing."""
    record = megatron_bridge(row, tail)
    for end in accumulate(lengths_of(row)):
        record["loss_mask"][end - 1] = 1
    return record


def maxtext(row, tail):
    targets, numbers, positions = following(row, tail), numbers_of(row, tail), positions_of(row, [0] * tail)
    return {
        "inputs": flat(row, tail)[0],
        "inputs_position": positions,
        "inputs_segmentation": numbers,
        "targets": [max(target, 0) for target in targets],
        "targets_position": positions,
        "targets_segmentation": [n if t != -100 else 0 for n, t in zip(numbers, targets, strict=True)],
    }


def neat_packing(row, tail):
    tail += 1  # LLaMA-Factory pads every row
    return with_labels(row, tail, position_ids=positions_of(row, [0] * tail), attention_mask=numbers_of(row, tail))


def numbered_mask(row, tail):
    return with_labels(row, tail, attention_mask=numbers_of(row, tail))


def offsets(row, tail):
    return with_labels(row, 0, cu_seqlens=[0, *accumulate(lengths_of(row))])


def offsets_padded(row, tail):
    """Offsets of a fixed number, whose last ones repeat the end."""
    ends = [0, *accumulate(lengths_of(row))]
    return with_labels(row, tail, cu_seq_lens_q=ends + [ends[-1]] * 3, attention_mask=[1] * ends[-1] + [0] * tail)


def restarts(row, tail):
    return with_labels(row, 0, position_ids=positions_of(row))


def axolotl_streaming(row, tail):
    """Pretraining sets are padded with positions of 0, and their mask is left out."""
    tail += 2 * (tail > 0)
    return with_labels(row, tail, position_ids=positions_of(row, [0] * tail))


def restarts_and_mask(row, tail):
    mask = [1] * sum(lengths_of(row)) + [0] * tail
    return with_labels(row, tail, position_ids=positions_of(row, [0] * tail), attention_mask=mask)


def segments(row, tail):
    return with_labels(row, tail, segment_ids=numbers_of(row, tail))


def llm_foundry(row, tail):
    mask = [1] * sum(lengths_of(row)) + [0] * tail
    return with_labels(row, tail, attention_mask=mask, sequence_id=numbers_of(row, tail, first=0))


def sequences_from_one(row, tail):
    return with_labels(row, tail, sequence_id=numbers_of(row, tail))


LAYOUTS = [
    trl,
    trl_completions,
    lengths_and_padding,
    torchtune,
    megatron_bridge,
    nemo_from_answer_start,
    maxtext,
    neat_packing,
    numbered_mask,
    offsets,
    offsets_padded,
    restarts,
    axolotl_streaming,
    restarts_and_mask,
    segments,
    llm_foundry,
    sequences_from_one,
]


# ---- oracles ----


def documents_in(folder):
    """Tokens and labels of each document in packed rows, by its number; the first label of each is -100."""
    found = {}
    for document, _, tokens, labels in segments_in(packer.load(folder)):
        found[document] = (tokens, labels)
    return [found[document] for document in sorted(found)]


def expected(rows):
    return [(tokens, [-100, *labels[1:]]) for row in rows for tokens, labels in row]


def packed(folder, records, name="rows.jsonl", **options):
    """Pack records; return the documents, and the totals."""
    source = write_as(folder / name, records)
    manifest = packer.pack(source, folder / "out", max_len=64, sync=False, overwrite=True, **options)
    return documents_in(folder / "out"), manifest


document = st.integers(1, 9).flatmap(
    lambda length: st.tuples(
        st.lists(st.integers(1, 50), min_size=length, max_size=length),
        st.lists(st.booleans(), min_size=length, max_size=length),
    )
)
documents = document.map(lambda drawn: (drawn[0], [t if is_on else -100 for t, is_on in zip(*drawn, strict=True)]))


def is_pad_like(row):
    """Whether the last document would be taken for padding: it is not trained, and repeats one token."""
    tokens, labels = row[-1]
    return len(row) > 1 and {*labels[1:], labels[0]} == {-100} and len({*tokens}) == 1


rows_of_documents = st.lists(
    st.tuples(st.lists(documents, min_size=1, max_size=4).filter(lambda row: not is_pad_like(row)), st.integers(0, 5)),
    min_size=1,
    max_size=5,
).filter(lambda rows: any(label != -100 for row, _ in rows for _, labels in row for label in labels[1:]))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@settings(max_examples=8)
@given(rows=rows_of_documents, name=st.sampled_from(FORMATS))
def test_documents_of_any_rows_are_those_that_were_packed(tmp_path_factory, layout, rows, name):
    records = [layout(row, tail) for row, tail in rows]
    found, _ = packed(tmp_path_factory.mktemp("rows"), records, name, untrained="keep-all")
    assert found == expected(row for row, _ in rows)


def shift_tokens(count, seed=0):
    """Rows of documents in which every token says where it stands."""
    random, rows = np.random.default_rng(seed), []
    for row in range(count):
        lengths = random.integers(2, 9, random.integers(1, 6)).tolist()
        made = [[1000 * row + 10 * number + place + 1 for place in range(n)] for number, n in enumerate(lengths)]
        rows.append(
            [(tokens, [-100 if place < len(tokens) // 2 else t for place, t in enumerate(tokens)]) for tokens in made]
        )
    return rows


# ---- exports are the oracle of what they mean ----


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("labels", [True, False])
def test_an_export_packs_to_the_same_documents_again(tmp_path, target, labels):
    rows = shift_tokens(40)
    if target == "megatron-indexed":
        rows = [[([*tokens, 7], [*tokens, 7]) for tokens, _ in row] for row in rows]
    records = [{"input_ids": t, **({"labels": x} if labels else {})} for row in rows for t, x in row]
    first, _ = packed(tmp_path, records, shard_size=2**14)
    packer.export(tmp_path / "out", tmp_path / "export", to=target)
    refused = {"megatron-indexed": "in which documents end with EOS alone", "parquet": "holds packed rows"}
    if where := (refused | {"hub": "is packed already"}).get(target):
        with pytest.raises(PackerError, match=f"{where}.*pack the source"):
            packer.pack(tmp_path / "export", tmp_path / "again", max_len=64)
        return
    packer.pack(tmp_path / "export", tmp_path / "again", max_len=64)
    assert sorted(documents_in(tmp_path / "again")) == sorted(first)


def test_the_shifted_mask_of_an_export_trains_what_was_trained(tmp_path):
    """The case that was wrong: of [1, 2, 3], [4, 5, 6], tokens 3, 5 and 6 are trained, not 2, 4 and 5."""
    records = [{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}, {"input_ids": [4, 5, 6], "loss_mask": [0, 1, 1]}]
    packed(tmp_path, records)
    export = packer.export(tmp_path / "out", tmp_path / "export", to="megatron")
    assert export.columns == {"input_ids": "list<int32>", "loss_mask": "list<int8>", "seq_start_id": "list<int32>"}
    packer.pack(tmp_path / "export", tmp_path / "again", max_len=64)
    assert sorted(documents_in(tmp_path / "again")) == [([1, 2, 3], [-100, -100, 3]), ([4, 5, 6], [-100, 5, 6])]


# ---- what is said ----


def test_one_line_and_stats_say_what_the_rows_hold(tmp_path):
    rows = [[([1, 2, 3], [1, 2, 3]), ([4, 5], [4, 5])], [([6, 7, 8, 9], [6, 7, 8, 9])]]
    source = write_lines(tmp_path / "rows.jsonl", [segments(row, 6 - sum(lengths_of(row))) for row in rows])
    result = run("pack", source, "--max-len", 16, "-o", tmp_path / "out")
    line = "rows of rows.jsonl were packed before: 2 rows hold 3 documents by 'segment_ids'"
    assert line.replace("rows.jsonl", str(source)) in result.stderr
    result = run("stats", source, "--max-len", 16)
    before = """Packed before, by 'segment_ids': 2 rows of up to 6 tokens, 75.0% full, with 1.5
  documents each, 2 at most; 2 begin a row and 0 end a full one, where they may
  have been cut
Packed: 1 row of 16 tokens"""
    assert before in result.stdout
    found = json.loads(run("stats", source, "--max-len", 16, "--json").stdout)
    assert found["documents"] == 3
    assert found["packed_before"] == {
        "by": ["segment_ids"],
        "rows": 2,
        "tokens_per_row": 6,
        "efficiency": 0.75,
        "documents_per_row": 1.5,
        "most_documents": 2,
        "begin_rows": 2,
        "end_rows": 0,
    }


def test_nothing_is_said_of_rows_of_one_document(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [{"input_ids": [5, 6], "position_ids": [0, 1]}] * 3)
    assert "packed before" not in run("pack", source, "--max-len", 16, "-o", tmp_path / "out").stderr
    assert "Packed before" not in run("stats", source, "--max-len", 16).stdout
    assert len(documents_in(tmp_path / "out")) == 3


def test_rows_of_one_document_are_mapped_and_can_be_indexed(tmp_path):
    """Axolotl's prepared sets have the positions of single documents beside them."""
    records = [{"input_ids": [5, 6, 7], "position_ids": [0, 1, 2], "attention_mask": [1, 1, 1], "length": 3}] * 4
    source = write_as(tmp_path / "dataset", records)
    packer.pack(source, tmp_path / "index", max_len=16, index_only=True)
    assert [row["input_ids"][:3].tolist() for row in packer.load(tmp_path / "index", source=source)] == [[5, 6, 7]]


def test_rows_of_one_document_are_read_by_the_names_of_their_tool(tmp_path):
    records = [{"tokens": [5, 6, 7], "input_pos": [0, 1, 2], "labels": [-100, 6, 7]}] * 2
    packer.pack(write_as(tmp_path / "dataset", records), tmp_path / "out", max_len=3)
    assert [row["input_ids"].tolist() for row in packer.load(tmp_path / "out")] == [[5, 6, 7]] * 2


def test_shifted_labels_are_shifted_back_when_they_are_named(tmp_path):
    (row,) = shift_tokens(1)
    found, _ = packed(tmp_path, [maxtext(row, 3)], input_column="inputs", labels_column="targets")
    assert found == expected([row])


def test_an_empty_first_file_hides_no_columns(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text("")
    write_lines(tmp_path / "rows" / "b.jsonl", [{"input_ids": [5, 6, 7], "seq_lengths": [2, 1]}])
    packer.pack(tmp_path / "rows", tmp_path / "out", max_len=16)
    assert documents_in(tmp_path / "out") == [([5, 6], [-100, 6]), ([7], [-100])]


def test_rows_of_several_documents_are_no_index(tmp_path):
    source = write_as(tmp_path / "rows.arrow", [restarts(row, 0) for row in shift_tokens(5)])
    words = ("holds rows that were packed before", "leave --index-only out")
    refused("pack", source, "--max-len", 64, "--index-only", words=words)


# ---- positions that rise, and columns that say nothing ----


@pytest.mark.parametrize("first", [0, 2])
def test_positions_that_rise_without_a_restart_are_one_document(tmp_path, first):
    found, _ = packed(tmp_path, [{"input_ids": [5, 6, 7], "position_ids": [first, first + 1, first + 2]}])
    assert found == [([5, 6, 7], [-100, 6, 7])]


@pytest.mark.parametrize("value", [3, "a name", None])
@pytest.mark.parametrize("name", ["seq_lengths", "positions", "sequence_id"])
def test_a_column_without_lists_says_nothing_of_documents(tmp_path, name, value):
    found, _ = packed(tmp_path, [{"input_ids": [5, 6, 7], name: value}] * 2)
    assert found == [([5, 6, 7], [-100, 6, 7])] * 2


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.arrow"])
@pytest.mark.parametrize("value", ["3 2", "[3, 2]", "3,2,", "(5)"])
def test_boundaries_as_text_are_refused_by_name(tmp_path, name, value):
    source = tmp_path / name
    write_as(source, [{"input_ids": [1, 2, 3, 4, 5], "seq_lengths": value}])
    words = ("'seq_lengths' holds", "a list as text, and says where documents begin: write a list of whole numbers")
    refused("pack", source, "--max-len", 8, words=words)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.arrow"])
def test_boundaries_as_text_are_refused_in_object_storage_too(tmp_path, bucket, name):
    write_as(tmp_path / name, [{"input_ids": [1, 2, 3, 4, 5], "seq_lengths": "3 2"}])
    (bucket / name).upload(tmp_path / name)
    with pytest.raises(packer.PackerError, match="'seq_lengths' holds '3 2', a list as text"):
        packer.pack(str(bucket / name), tmp_path / "out", max_len=8)


def test_padding_inside_a_document_of_a_row_is_stripped_by_the_mask(tmp_path):
    """As in the docstring of TRL's pack_dataset, where documents were padded before they were packed."""
    records = [{"input_ids": [1, 2, 9, 3, 4, 9], "seq_lengths": [3, 3], "attention_mask": [1, 1, 0, 0, 1, 0]}]
    found, manifest = packed(tmp_path, records)
    assert found == [([1, 2], [-100, 2]), ([4], [-100])]
    assert manifest.totals.tokens_stripped == 3


def test_an_untrained_last_document_of_one_repeated_token_is_padding(tmp_path):
    def rows(labels):
        return [{"input_ids": [1, 2, 7, 7], "labels": [1, 2, *labels], "seq_lengths": [2, 2]}]

    found, manifest = packed(tmp_path, rows([-100, -100]))
    assert (found, manifest.totals.tokens_stripped) == ([([1, 2], [-100, 2])], 2)
    found, manifest = packed(tmp_path, rows([7, 7]))
    assert (found, manifest.totals.tokens_stripped) == ([([1, 2], [-100, 2]), ([7, 7], [-100, 7])], None)


def test_rows_without_a_token_are_empty_documents(tmp_path):
    records = [
        {"input_ids": [0, 0], "seq_lengths": [2], "attention_mask": [0, 0]},
        {"input_ids": [], "seq_lengths": [], "attention_mask": []},
        {"input_ids": [1, 2, 3], "seq_lengths": [1, 0, 2], "attention_mask": [1, 1, 1]},
        {"input_ids": [4, 5], "seq_lengths": [], "attention_mask": [0, 0]},
    ]
    source = write_as(tmp_path / "rows.jsonl", records)
    found, manifest = packed(tmp_path, json.loads(f"[{','.join(source.read_text().splitlines())}]"))
    assert found == [([1], [-100]), ([2, 3], [-100, 3])]
    assert (manifest.totals.documents, manifest.totals.documents_dropped["empty"]) == (5, 3)


# ---- contradictions, and what cannot be followed ----

SIX = {"input_ids": [1, 2, 3, 4, 5, 6]}
REFUSED = {
    "lengths beyond the row": ({"seq_lengths": [4, 3]}, "'seq_lengths' holds [4, 3] for 6 tokens"),
    "a negative length": ({"seq_lens": [7, -1]}, "'seq_lens' holds [7, -1] for 6 tokens"),
    "offsets without 0": ({"cu_seqlens": [3, 6]}, "'cu_seqlens' holds [3, 6] for 6 tokens"),
    "offsets that fall": ({"cu_seqlens": [0, 4, 2]}, "'cu_seqlens' holds [0, 4, 2]"),
    "no offsets": ({"cu_seqlens": []}, "'cu_seqlens' holds [] for 6 tokens"),
    "starts beyond the row": ({"seq_start_id": [0, 7]}, "'seq_start_id' holds [0, 7]"),
    "positions that jump": ({"position_ids": [0, 1, 2, 9, 10, 11]}, "'position_ids' holds [0, 1, 2, 9, 10, 11]"),
    "positions that go on": ({"position_ids": [4, 5, 6, 0, 1, 2]}, "'position_ids' holds [4, 5, 6, 0, 1, 2]"),
    "RoBERTa's, packed": ({"position_ids": [2, 3, 4, 2, 3, 4]}, "'position_ids' holds [2, 3, 4, 2, 3, 4]"),
    "BERT's types": ({"segment_ids": [0, 0, 0, 1, 1, 1]}, "'segment_ids' holds [0, 0, 0, 1, 1, 1]"),
    "BERT's types, alone": ({"segment_ids": [0] * 6}, "'segment_ids' holds [0, 0, 0, 0, 0, 0]"),
    "numbers that skip": ({"segment_ids": [1, 1, 3, 3, 3, 3]}, "'segment_ids' holds [1, 1, 3, 3, 3, 3]"),
    "padding inside": ({"segment_ids": [1, 1, 0, 2, 2, 2]}, "'segment_ids' holds [1, 1, 0, 2, 2, 2]"),
    "mask that skips": ({"attention_mask": [1, 1, 0, 2, 2, 2]}, "'attention_mask' holds [1, 1, 0, 2, 2, 2]"),
    "no numbers": ({"positions": ["a"] * 6}, "'positions' holds"),
    "a position for each row": ({"positions": [0, 1]}, "'positions' has 2 values for 6 tokens"),
    "other documents": (
        {"seq_lengths": [3, 3], "position_ids": [0, 1, 2, 3, 4, 5]},
        "'seq_lengths' and 'position_ids' contradict each other about the document of token 3",
    ),
    "other lengths": (
        {"seq_lengths": [2, 2], "cu_seqlens": [0, 2, 4, 6]},
        "'seq_lengths' and 'cu_seqlens' contradict each other about the document of token 4",
    ),
    "a document in the padding": (
        {"seq_lengths": [2, 2], "segment_ids": [1, 1, 2, 2, 3, 3]},
        "'seq_lengths' and 'segment_ids' contradict each other about the document of token 4",
    ),
    "tokens in the padding": (
        {"seq_lengths": [2, 2], "attention_mask": [1] * 6},
        "'seq_lengths' and 'attention_mask' contradict each other about the document of token 4",
    ),
    "documents padded one by one": (
        {"seq_lens": [2, 2], "seq_lens_padded": [3, 3]},
        "'seq_lens_padded' shows that each document has its own padding",
    ),
    "a mask of -2": ({"seq_lengths": [3, 3], "loss_mask": [0, 1, -2, 0, 0, 0]}, "'loss_mask' holds -2"),
}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize("case", REFUSED)
def test_rows_whose_documents_are_not_certain_are_refused_by_name(tmp_path, case, name):
    columns, message = REFUSED[case]
    source = write_as(tmp_path / name, [SIX | columns])
    with pytest.raises(PackerError) as error:
        packer.pack(source, tmp_path / "out", max_len=16)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_row_at_fault_is_named(tmp_path):
    good, bad = {**SIX, "seq_lengths": [3, 3]}, {**SIX, "seq_lengths": [9]}
    source = write_lines(tmp_path / "rows.jsonl", [good, good, bad, good, bad])
    with pytest.raises(SourceError, match=r"rows\.jsonl line 3: 'seq_lengths' holds \[9\] for 6 tokens"):
        packer.pack(source, tmp_path / "out", max_len=16)
    manifest = packer.pack(source, tmp_path / "out", max_len=16, on_error="skip")
    assert manifest.totals.documents_rejected == {"invalid_value": 2}
    assert [tokens for tokens, _ in documents_in(tmp_path / "out")] == [[1, 2, 3], [4, 5, 6]] * 3
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [(record["line"], record["document"]) for record in rejected] == [(3, 4), (5, 7)]


def test_a_file_that_alone_has_such_a_column_is_refused(tmp_path):
    write_as(tmp_path / "a.parquet", [SIX])
    write_as(tmp_path / "b.parquet", [{**SIX, "seq_lengths": [3, 3]}])
    with pytest.raises(SourceError, match=r"b\.parquet.*'seq_lengths'.*the first file has none"):
        packer.pack([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "out", max_len=16)


# ---- options hold for such rows ----


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.jsonl"])
def test_kept_columns_follow_the_documents(tmp_path, name):
    rows, records = shift_tokens(6), []
    for number, row in enumerate(rows):
        record = segments(row, 2)
        tokens = record.pop("input_ids")
        wide = [[token, -token] for token in tokens]
        records.append(
            {"ids": tokens, "answer": f"row {number}", "topk": wide, "score": [t / 2 for t in tokens], **record}
        )
    source = write_as(tmp_path / name, records)
    options = {"input_column": "ids", "keep": ["answer"], "keep_tokens": ["topk", "score"]}
    manifest = packer.pack(source, tmp_path / "out", max_len=64, **options)
    assert manifest.totals.tokens_stripped == 12
    for row in packer.load(tmp_path / "out"):
        assert "record_ids" not in row
        at = 0
        for length, document, answer in zip(row["seq_lengths"], row["doc_ids"], row["answer"], strict=True):
            span = slice(at, at + length)
            at += length
            if document >= 0:
                assert answer == f"row {row['input_ids'][span][0] // 1000}"
                assert (row["topk"][span, 1] == -row["input_ids"][span]).all()
                assert (row["score"][span] * 2 == row["input_ids"][span]).all()
    assert run("verify", tmp_path / "out", "--source", source).exit_code == 0


def test_bytes_do_not_depend_on_pieces_or_workers_and_a_holdout_divides_documents(tmp_path, monkeypatch):
    rows = shift_tokens(300)
    table = pa.Table.from_pylist([restarts(row, 0) for row in rows])
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=17)
    whole = packer.pack(tmp_path / "rows.parquet", tmp_path / "one", max_len=64, workers=1, holdout=0.2)
    shrink(monkeypatch, piece=1 << 12)
    parts = packer.pack(tmp_path / "rows.parquet", tmp_path / "two", max_len=64, workers=3, holdout=0.2)
    assert whole.shards == parts.shards
    held = documents_in(tmp_path / "one-holdout")
    assert sorted(documents_in(tmp_path / "one") + held) == sorted(expected(rows))
    assert 0 < len(held) < len(expected(rows)) / 2


def test_exchanges_cannot_be_told_in_rows(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [{**SIX, "seq_lengths": [3, 3], "exchange_starts": [0]}])
    with pytest.raises(PackerError, match="holds rows of several documents, and 'exchange_starts': remove the latter"):
        packer.pack(source, tmp_path / "out", max_len=16)


def test_datasets_in_memory_and_several_files_are_divided_too(tmp_path):
    rows = shift_tokens(9)
    dataset = datasets.Dataset.from_list([trl(row, 0) for row in rows])
    packer.pack(dataset, tmp_path / "memory", max_len=64)
    (tmp_path / "files").mkdir()
    write_as(tmp_path / "files" / "a.parquet", [trl(row, 0) for row in rows[:4]])
    write_as(tmp_path / "files" / "b.arrow", [trl(row, 0) for row in rows[4:]])
    packer.pack(tmp_path / "files", tmp_path / "both", max_len=64)
    assert documents_in(tmp_path / "memory") == documents_in(tmp_path / "both") == expected(rows)


# ---- the table ----

COLUMNS = {
    **{name: [3, 2] for name in ("seq_lengths", "seq_lens", "doc_lens")},
    **{f"cu_{name}": [0, 3, 5] for name in ("seqlens", "seqlens_q", "seqlens_k", "doc_lens")},
    **{f"cu_{name}": [0, 3, 5] for name in ("seq_lens", "seq_lens_q", "seq_lens_k")},
    "seq_start_id": [0, 3],
    **{name: [0, 1, 2, 0, 1] for name in ("position_ids", "positions", "input_pos", "inputs_position")},
    **{name: [1, 1, 1, 2, 2] for name in ("segment_ids", "inputs_segmentation", "sequence_id", "seq_idx")},
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_of_the_table_divides_rows(tmp_path, name):
    assert packed(tmp_path, [{"input_ids": [1, 2, 3, 4, 5], name: COLUMNS[name]}])[0] == [
        ([1, 2, 3], [-100, 2, 3]),
        ([4, 5], [-100, 5]),
    ]
    assert set(COLUMNS) == set(meanings.BOUNDS)


def test_masks_of_any_meaning_hold_for_the_documents_of_rows(tmp_path):
    rows = [{"input_ids": [1, 2, 3, 4, 5, 6], "seq_lengths": [3, 3], "prompt_mask": [1, 1, 0, 1, 0, 0]}]
    assert labels_of(tmp_path, rows) == [[-100, -100, 3], [-100, 5, 6]]
    rows = [{"input_ids": [1, 2, 3, 4, 5, 6], "seq_start_id": [0, 3], "loss_mask": [0, 1, 0, 1, 1, 0]}]
    assert labels_of(tmp_path, rows) == [[-100, -100, 3], [-100, 5, 6]]
    rows = [
        {"input_ids": [1, 2, 3, 4], "seq_lengths": [2, 2], "loss_multiplier": 1},
        {"input_ids": [5, 6, 7], "loss_multiplier": 0},
    ]
    rows[1]["seq_lengths"] = [3]
    assert labels_of(tmp_path, rows) == [[-100, 2], [-100, 4], [-100, -100, -100]]
    rows = [{"input_ids": [5, 6, 7], "seq_lengths": [3], "prompt_length": 2}]
    assert labels_of(tmp_path, rows) == [[-100, -100, 7]]
    rows = [{"input_ids": [5, 6, 7], "seq_lengths": [2, 1], "prompt_length": 1}]
    with pytest.raises(packer.PackerError, match="'prompt_length' is one number, and the row holds several documents"):
        labels_of(tmp_path, rows)


def labels_of(folder, rows):
    """Labels of the documents of rows, by their number."""
    packer.pack(write_lines(folder / "rows.jsonl", rows), folder / "out", max_len=16, overwrite=True)
    return [labels for _, labels in documents_in(folder / "out")]
