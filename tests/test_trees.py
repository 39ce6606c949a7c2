"""Documents of a record as a tree: each is a path of it and trained once, and no shared token is stored twice."""

import json
import re
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.token_memory.prefix_trees import build_trees
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.commands import succeeded
from tests.helpers.each_answer import RECORDS, THOUGHTS, documents_in, packed
from tests.helpers.packed_rows import rewrite_shards, rows_on_disk
from tests.helpers.packed_trees import answers_in, paths_of, trees_in
from tests.helpers.small import shrink
from tests.helpers.writing import write_as, write_lines

NO_LOSS = -100


def built(records, max_len=1 << 20):
    """Trees of records of (tokens, trained): [(record, first document, [(tokens, labels, parent, document)])]."""
    documents = [document for record in records for document in record]
    ids = np.array([token for tokens, _ in documents for token in tokens], np.int32)
    trained = np.array([flag for _, flags in documents for flag in flags], np.bool_)
    bounds = np.cumsum([0, *(len(tokens) for tokens, _ in documents)])
    firsts = np.cumsum([0, *map(len, records)])
    found = build_trees(ids, np.where(trained, ids, NO_LOSS).astype(np.int32), bounds, firsts, max_len)
    trees, place, node = [], 0, 0
    for end, node_end, document in zip(found.ends, found.node_ends, found.documents, strict=True):
        nodes = []
        for length, parent, of in found.nodes[node:node_end].tolist():
            tokens, labels = (array[place : place + length].tolist() for array in (found.input_ids, found.labels))
            nodes.append((tokens, labels, parent, of))
            place += length
        assert place == end
        node = node_end
        record = int(np.searchsorted(firsts, document, side="right")) - 1
        trees.append((record, int(document - firsts[record]), nodes))
    return trees, found.repeated


def least_tokens(documents):
    """Tokens of the smallest tree: those of a prefix tree, and one more for each further branch after a token."""
    beginnings = {tuple(tokens[:count]) for tokens, _ in documents for count in range(1, len(tokens) + 1)}
    branches = [prefix[:-1] for prefix in beginnings if len(prefix) > 1]
    return len(beginnings) + len(branches) - len(set(branches))


@st.composite
def records(draw):
    """Documents of few different tokens, each of which may continue another; only the last part of each is trained."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        documents = []
        for _ in range(draw(st.integers(1, 6))):
            before = draw(st.sampled_from([[], *(tokens for tokens, _ in documents)]))
            cut = draw(st.integers(0, len(before)))
            tokens = [*before[:cut], *draw(st.lists(st.integers(1, 3), max_size=5))]
            trained = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
            documents.append((tokens, trained))
        made.append(documents)
    return made


@given(records(), st.integers(1, 30))
def test_every_document_is_a_path_and_trained_once(made, max_len):
    for limit in (1 << 20, max_len):
        trees, _ = built(made, limit)
        assert [record for record, *_ in trees] == sorted(record for record, *_ in trees)
        for number, (record, first, nodes) in enumerate(trees):
            last = len(made[record])
            if number + 1 < len(trees) and trees[number + 1][0] == record:
                last = trees[number + 1][1]
            documents = made[record][first:last]
            size = sum(len(tokens) for tokens, *_ in nodes)
            assert size <= limit or len(documents) == 1
            paths = paths_of(nodes)
            for tokens, _ in documents:
                assert any(path[: len(tokens)] == tokens for path in [*paths, []])
            check_training(nodes, paths, documents, first)
            check_order(nodes)


def check_training(nodes, paths, documents, first):
    """Each trained token of each document, and nothing else, is the target of the token stored before it."""
    found, before = [], None
    for (tokens, labels, _, document), path in zip(nodes, paths, strict=True):
        for at, (token, label) in enumerate(zip(tokens, labels, strict=True)):
            context = path[: len(path) - len(tokens) + at]
            if label != NO_LOSS:
                assert label == token
                assert context == before
                found.append((document, tuple(context), token))
            before = [*context, token]
    wanted = [
        (first + number, tuple(tokens[:at]), tokens[at])
        for number, (tokens, trained) in enumerate(documents)
        for at in range(1, len(tokens))
        if trained[at]
    ]
    assert sorted(found) == sorted(wanted)


def check_order(nodes):
    """A parent comes before its nodes, and what continues a node follows it without a gap."""
    above = []
    for number, (tokens, _, parent, _) in enumerate(nodes):
        assert tokens
        assert -1 <= parent < number
        while above and above[-1] != parent:
            above.pop()
        assert parent == -1 or above
        above.append(number)


@given(records())
def test_no_shared_token_is_stored_twice(made):
    context = [[(tokens, [False] * len(tokens)) for tokens, _ in documents] for documents in made]
    trees, repeated = built(context)
    sizes = [sum(len(tokens) for tokens, *_ in nodes) for *_, nodes in trees]
    assert sizes == [least_tokens(documents) for documents in context]
    distinct = sum(
        len({tuple(tokens[:count]) for tokens, _ in documents for count in range(1, len(tokens) + 1)})
        for documents in context
    )
    assert repeated == sum(len(tokens) for documents in context for tokens, _ in documents) - distinct


def test_the_last_shared_token_begins_each_branch():
    (tree,), repeated = built([[([1, 2, 3, 4], [0, 0, 0, 1]), ([1, 2, 3, 7, 8], [0, 0, 0, 1, 1])]])
    assert tree[2] == [
        ([1, 2], [NO_LOSS, NO_LOSS], -1, 0),
        ([3, 4], [NO_LOSS, 4], 0, 0),
        ([3, 7, 8], [NO_LOSS, 7, 8], 0, 1),
    ]
    assert repeated == 3


def test_a_token_that_two_documents_train_is_not_shared():
    (tree,), repeated = built([[([1, 2, 3], [0, 1, 1]), ([1, 2, 3], [0, 1, 1])]])
    assert [tokens for tokens, *_ in tree[2]] == [[1, 2, 3], [1, 2, 3]]
    assert repeated == 1


# ---- packed ----


def separate(out):
    """Documents of the rows, without the columns of records: {(record, tokens): trained (place, token)}."""
    return sorted((kept["record_ids"], ids, trained_of(labels)) for ids, labels, kept in documents_in(out).values())


def trained_of(labels):
    return [(at, label) for at, label in enumerate(labels) if label != NO_LOSS]


@pytest.mark.parametrize("max_len", [256, 110, 80])
def test_trees_of_chats_train_what_their_answers_train_alone(tmp_path, max_len, monkeypatch):
    shrink(monkeypatch, fast_characters=1)  # gigatoken counts documents, of which there are more than trees
    folder = save_tokenizer(tmp_path / "tokenizer", template=THOUGHTS)
    source = write_lines(tmp_path / "chats.jsonl", RECORDS)
    packed(source, tmp_path / "separate", folder, max_len=max_len, long="drop")
    manifest = packed(source, tmp_path / "trees", folder, max_len=max_len, long="drop", share_prefixes=True)
    assert list(packer.verify(tmp_path / "trees", source, tokenizer=str(folder))) == []
    expected = [(record, ids[: places[-1][0] + 1], places) for record, ids, places in separate(tmp_path / "separate")]
    assert answers_in(tmp_path / "trees") == expected
    assert expected
    assert all(entry.rows for entry in manifest.shards)


def pair(number):
    random = np.random.default_rng(number)
    prompt, *sides = (random.integers(1, 50, random.integers(1, 12)).tolist() for _ in range(3))
    values = {"topic": f"t{number % 3}"}
    for role, side in zip(("chosen", "rejected"), sides, strict=True):
        values[f"{role}_input_ids"] = [*prompt, *side]
        values[f"{role}_labels"] = [NO_LOSS] * len(prompt) + side
    return values


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_both_answers_of_a_pair_are_one_tree(tmp_path, kind):
    pairs = [pair(number) for number in range(40)]
    source = write_as(tmp_path / f"pairs.{kind}", pairs)
    manifest = packer.pack(source, tmp_path / "out", max_len=64, pairs=True, keep=["topic"])
    assert list(packer.verify(tmp_path / "out", source)) == []
    assert manifest.totals.documents == len(pairs)
    answers = [(ids, places) for _, ids, places in answers_in(tmp_path / "out")]
    expected = [
        (values[f"{role}_input_ids"], trained_of(values[f"{role}_labels"]))
        for values in pairs
        for role in ("chosen", "rejected")
    ]
    assert sorted(answers) == sorted(expected)
    for _, nodes in trees_in(tmp_path / "out"):
        assert {document for *_, document in nodes} == {0, 1}
    options = {"--max-len": 64, "--long": "drop"}
    counted = json.loads(succeeded("stats", source, "--pairs", "--json", *chain(*options.items())))["shared_beginnings"]
    assert counted["saved_tokens"] == manifest.totals.tokens_shared
    assert counted["stored_once"]
    bare = [{name: ids for name, ids in values.items() if name.endswith("input_ids")} for values in pairs]
    source = write_as(tmp_path / f"bare.{kind}", bare)
    with pytest.raises(packer.PackerError, match="pairs need the columns chosen_labels and rejected_labels"):
        packer.pack(source, tmp_path / "bare", max_len=64, pairs=True)


@pytest.mark.parametrize("kind", ["memory", "saved"])
def test_pairs_of_a_shuffled_dataset_are_packed_and_verified(tmp_path, kind):
    datasets = pytest.importorskip("datasets")
    pairs = [pair(number) for number in range(40)]
    source = datasets.Dataset.from_list(pairs).shuffle(seed=3)
    order = source["topic"][:]
    if kind == "saved":
        source.save_to_disk(tmp_path / "saved")
        source = tmp_path / "saved"
    packer.pack(source, tmp_path / "out", max_len=64, pairs=True, keep=["topic"])
    assert list(packer.verify(tmp_path / "out", source)) == []
    found = documents_in(tmp_path / "out")
    assert [found[number][2]["topic"] for number in range(40)] == order
    expected = [values[f"{role}_input_ids"] for values in pairs for role in ("chosen", "rejected")]
    assert sorted(ids for _, ids, _ in answers_in(tmp_path / "out")) == sorted(expected)


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_with_an_empty_answer_is_refused_or_left_out_whole(tmp_path, side):
    pairs = [pair(number) for number in range(8)]
    pairs[3] |= {f"{side}_input_ids": [], f"{side}_labels": []}
    source = write_lines(tmp_path / "pairs.jsonl", pairs)
    message = rf"^document 3 \(pairs.jsonl line 4\): '{side}_input_ids' is empty, and the other answer is not; drop"
    with pytest.raises(packer.PackerError, match=message):
        packer.pack(source, tmp_path / "out", max_len=64, pairs=True)
    manifest = packer.pack(source, tmp_path / "out", max_len=64, pairs=True, on_error="skip")
    assert manifest.totals.documents_rejected == {"missing_value": 1}
    assert len(answers_in(tmp_path / "out")) == 2 * 7
    assert list(packer.verify(tmp_path / "out", source)) == []


REFUSED_OF_PAIRS = {
    "truncated": ({"long": "truncate"}, "the tree of a pair cannot be truncated"),
    "an index": ({"index_only": True}, "does not go with pairs"),
    "no labels": ({"labels": False}, "does not go with pairs"),
    "wrapped": ({"algorithm": "wrapped"}, "wrapped cuts documents"),
    "exchanges": ({"split_at": "exchanges"}, "does not go with pairs"),
    "kept tokens": ({"keep_tokens": ["kind"]}, "pairs cannot keep columns of tokens"),
    "a named column": ({"input_column": "ids"}, "pairs are read from chosen_input_ids and rejected_input_ids"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED_OF_PAIRS.values(), ids=REFUSED_OF_PAIRS)
def test_options_that_do_not_go_with_pairs_are_refused(tmp_path, options, message):
    source = write_lines(tmp_path / "pairs.jsonl", [pair(number) for number in range(4)])
    with pytest.raises(packer.PackerError, match=message):
        packer.pack(source, tmp_path / "out", max_len=64, pairs=True, **options)


def samples(number):
    random = np.random.default_rng(number)
    prompt = random.integers(1, 50, random.integers(1, 12)).tolist()
    documents = [random.integers(1, 50, random.integers(1, 12)).tolist() for _ in range(random.integers(0, 5))]
    labels = [[NO_LOSS] * len(prompt) + document for document in documents]
    return {"input_ids": [prompt + document for document in documents], "labels": labels, "score": float(number)}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "memory"])
def test_records_of_token_lists_are_trees(tmp_path, kind):
    records = [samples(number) for number in range(40)]
    if kind == "memory":
        source = pytest.importorskip("datasets").Dataset.from_list(records).select(range(39, -1, -1))
        records = records[::-1]
    else:
        source = write_as(tmp_path / f"samples.{kind}", records)
    packer.pack(source, tmp_path / "out", max_len=48, share_prefixes=True, keep=["score"])
    assert list(packer.verify(tmp_path / "out", source)) == []
    expected = [
        (number, ids, trained_of(labels))
        for number, record in enumerate(records)
        for ids, labels in zip(record["input_ids"], record["labels"], strict=True)
    ]
    assert answers_in(tmp_path / "out") == sorted(expected)
    for _, _, kept in documents_in(tmp_path / "out").values():
        assert kept["score"] == records[kept["record_ids"]]["score"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [[1]]}, "'labels' has 1 lists for 3 in 'input_ids'; both need the same number"),
        ({"input_ids": None}, "'input_ids' is null; drop the row or give it a list"),
        ({"input_ids": [[1, 2], [1, -3], [1, 4]]}, "'input_ids' holds -3 at position 1: a token id is from 0"),
        ({"input_ids": [[1, 2], None, [1, 4]]}, "'input_ids' is null"),
        ({"input_ids": [[1, 2], [1], [1, 4]]}, "'labels' has 2 values for 1 in 'input_ids'"),
        ({"input_ids": "text"}, "'input_ids' holds no lists of lists of integers"),
    ],
)
def test_a_record_of_lists_that_cannot_be_used_is_named_and_left_out(tmp_path, change, message):
    good = {"input_ids": [[1, 2], [1, 3], [1, 4]], "labels": [[-100, 2], [-100, 3], [-100, 4]]}
    source = write_lines(tmp_path / "samples.jsonl", [good, good, {**good, **change}, good])
    with pytest.raises(packer.PackerError, match=r"^samples\.jsonl line 3: " + re.escape(message)):
        packer.pack(source, tmp_path / "out", max_len=8, share_prefixes=True)
    manifest = packer.pack(source, tmp_path / "out", max_len=8, share_prefixes=True, on_error="skip")
    assert sum(manifest.totals.documents_rejected.values()) == 1
    assert {record for record, *_ in answers_in(tmp_path / "out")} == {0, 1, 3}
    assert list(packer.verify(tmp_path / "out", source)) == []


REFUSED = {
    "one list per record": (
        [{"input_ids": [1, 2], "labels": [1, 2]}],
        {},
        "needs records of several documents, and 'input_ids' holds one list per record",
    ),
    "no labels": ([{"input_ids": [[1, 2]]}], {}, "no column 'labels', only input_ids"),
    "a mask": (
        [{"input_ids": [[1]], "labels": [[1]], "loss_mask": [[1]]}],
        {},
        "'loss_mask' is not read: set what",
    ),
    "texts": ([{"text": "a"}], {"tokenizer": True}, "needs records of several documents, and a record of"),
    "all trained": ([], {"tokenizer": True, "train_on": "all"}, "every document trains its beginning"),
    "positions": ([], {"add_column": ["position_ids"]}, "does not go with share_prefixes"),
    "an index": ([], {"index_only": True}, "does not go with share_prefixes"),
    "wrapped": ([], {"algorithm": "wrapped"}, "wrapped cuts documents"),
    "pairs": ([], {"pairs": True}, "pairs stores prompts once already: leave it out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shared_is_refused(tmp_path, name):
    records, options, message = REFUSED[name]
    if "tokenizer" in options:
        options = {**options, "tokenizer": str(save_tokenizer(tmp_path / "tokenizer", template=THOUGHTS))}
    source = write_lines(tmp_path / "source.jsonl", records or RECORDS)
    with pytest.raises(packer.PackerError, match=message) as raised:
        packer.pack(source, tmp_path / "out", max_len=64, share_prefixes=True, **options)
    assert "\n" not in str(raised.value)


def test_a_pair_that_is_longer_than_a_row_is_refused_or_dropped(tmp_path):
    source = write_lines(tmp_path / "pairs.jsonl", [pair(number) for number in range(40)])
    options = {"max_len": 20, "pairs": True}
    with pytest.raises(packer.PackerError, match=r"^pair \d+ takes \d+ tokens and max_len is 20 .*choose long='drop'$"):
        packer.pack(source, tmp_path / "out", **options)
    manifest = packer.pack(source, tmp_path / "out", long="drop", **options)
    assert manifest.totals.documents_dropped["too_long"] > 0
    assert list(packer.verify(tmp_path / "out", source)) == []


# ---- checked, and read ----


@pytest.fixture
def made(tmp_path):
    """(source, packed) records of token lists with several documents each."""
    source = write_lines(tmp_path / "samples.jsonl", [samples(number) for number in range(40)])
    packer.pack(source, tmp_path / "out", max_len=48, share_prefixes=True)
    return source, tmp_path / "out"


def changed_tree(table, change):
    """The table with the numbers of its first tree changed."""
    rows = table.column("tree").to_pylist()
    row, at = next((row, at) for row, trees in enumerate(rows) for at, tree in enumerate(trees) if tree)
    change(rows[row][at])
    return table.set_column(
        table.schema.get_field_index("tree"), "tree", pa.array(rows, table.schema.field("tree").type)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.__setitem__(0, tree[0] + 1),
        lambda tree: tree.__setitem__(1, 0),
        lambda tree: tree.__setitem__(-2, len(tree)),
        lambda tree: tree.__setitem__(2, -1),
        lambda tree: tree.append(1),
    ],
)
def test_nodes_that_are_no_tree_are_found(made, change):
    _, out = made
    rewrite_shards(out, lambda table: changed_tree(table, change))
    (fault,) = packer.verify(out)
    assert re.search(r"row \d+ holds document \d+, whose tree does not fit its tokens$", fault)


def test_another_tree_than_that_of_the_source_is_found(made):
    source, out = made
    rewrite_shards(out, lambda table: changed_tree(table, lambda tree: tree.__setitem__(-1, tree[-1] + 1)))
    assert list(packer.verify(out)) == []
    (fault,) = packer.verify(out, source)
    assert ": tree is " in fault


def seen_in(nodes, first):
    """{place: places that it sees} of the nodes of a tree whose first token is at `first`."""
    places, found, at = [], {}, first
    for tokens, _, parent, _ in nodes:
        before = places[parent] if parent >= 0 else []
        own = list(range(at, at + len(tokens)))
        for number, place in enumerate(own):
            found[place] = {*before, *own[: number + 1]}
        places.append([*before, *own])
        at += len(tokens)
    return found


@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_says_what_each_token_sees(made, rows):
    _, out = made
    trees = list(trees_in(out))
    place = 0
    for batch in packer.batches(packer.load(out), rows=rows, seed=None, format="tree", tensors="numpy"):
        until, positions = batch["tree"]
        count = batch["input_ids"].shape[1]
        assert np.array_equal(batch["position_ids"][0], positions)
        begin = 0
        while begin < count:
            _, nodes = trees[place]
            for query, keys in seen_in(nodes, begin).items():
                assert {key for key in range(query + 1) if query < until[key]} == keys
                assert positions[query] == len(keys) - 1
            tokens = [token for tokens, *_ in nodes for token in tokens]
            assert batch["input_ids"][0, begin : begin + len(tokens)].tolist() == tokens
            begin += len(tokens)
            place += 1
    assert place == len(trees)


@pytest.mark.parametrize("long", ["drop", "split"])
def test_documents_of_a_divided_record_keep_their_numbers(tmp_path, long):
    """Also if a document is alone in its tree, or cut because it is longer than a row."""
    beginning = [1, 2, 3]
    record = [beginning + own for own in ([4, 5], [6, 7, 8], list(range(20, 26)), list(range(40, 50)), [9])]
    lists = {"input_ids": record, "labels": record}
    issue = [[1, 2, 3, 4, 5, 6], [1, 2, 7, 8, 9, 10]]
    source = write_lines(tmp_path / "samples.jsonl", [lists, {"input_ids": issue, "labels": issue}])
    packer.pack(source, tmp_path / "out", max_len=9, share_prefixes=True, long=long)
    found = {}
    for batch in packer.batches(packer.load(tmp_path / "out"), rows=2, format="tree", keep=["record_ids", "answer"]):
        segments, tokens = batch["segments"], batch["input_ids"][0]
        for token, segment, answer in zip(
            tokens.tolist(), segments["segment_of_token"].tolist(), segments["answer_of_token"].tolist(), strict=True
        ):
            if answer >= 0:
                found.setdefault((int(segments["record_ids"][segment]), token), set()).add(answer)
    expected = {}
    for number, documents in enumerate((record, issue)):
        for answer, document in enumerate(documents):
            if len(document) <= 9 or long == "split":
                for token in document:
                    expected.setdefault((number, token), set()).add(answer)
    own = {name: answers for name, answers in expected.items() if len(answers) == 1}
    assert {name: found[name] for name in own} == own
    last = max(max(row["doc_ids"]) for row in rows_on_disk(tmp_path / "out"))
    shown = json.loads(succeeded("show", tmp_path / "out", "--document", last, "--json"))
    assert [segment["kept"]["answer"] for segment in shown["rows"][0]["segments"]] == [1]


def test_each_answer_weighs_as_much_as_alone(made):
    _, out = made
    answers = answers_in(out)
    total = 0
    for batch in packer.batches(
        packer.load(out), rows=2, format="tree", loss_weights="document", keep=[], tensors="numpy"
    ):
        weights, labels = batch["loss_weights"][0], batch["labels"][0]
        assert ((weights > 0) == (labels != NO_LOSS)).all()
        segments = batch["segments"]
        documents = list(zip(segments["segment_of_token"], segments["answer_of_token"], strict=True))
        for document in set(documents):
            of_document = np.array([each == document for each in documents])
            trained = (labels[of_document] != NO_LOSS).sum()
            assert np.allclose(weights[of_document][labels[of_document] != NO_LOSS], 1 / max(trained, 1))
            total += trained > 0
    assert total == len(answers)


def test_ordinary_documents_are_trees_of_one_node(tmp_path):
    source = write_lines(tmp_path / "plain.jsonl", [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}])
    packer.pack(source, tmp_path / "out", max_len=8)
    (batch,) = packer.batches(packer.load(tmp_path / "out"), rows=1, format="tree", tensors="numpy")
    ends, positions = batch["tree"].tolist()
    assert positions == batch["position_ids"][0].tolist()
    assert (ends, positions) in (([3, 3, 3, 5, 5], [0, 1, 2, 0, 1]), ([2, 2, 5, 5, 5], [0, 1, 0, 1, 2]))


LATER_ANSWER = {
    "samples": (
        {"input_ids": [[5, 6], [5, 6]], "labels": [[-100, -100], [-100, 6]]},
        {"share_prefixes": True},
    ),
    "a pair": (
        {
            "chosen_input_ids": [5, 6],
            "chosen_labels": [-100, -100],
            "rejected_input_ids": [5, 6],
            "rejected_labels": [-100, 6],
        },
        {"pairs": True},
    ),
}


@pytest.mark.parametrize("kind", LATER_ANSWER)
def test_equal_answers_are_trained_as_the_one_that_trains_them(tmp_path, kind):
    record, options = LATER_ANSWER[kind]
    source = write_lines(tmp_path / "samples.jsonl", [record])
    packer.pack(source, tmp_path / "out", max_len=8, **options)
    assert list(packer.verify(tmp_path / "out", source)) == []
    (batch,) = packer.batches(packer.load(tmp_path / "out"), rows=1, format="tree", keep=[], tensors="numpy")
    assert batch["input_ids"].ravel().tolist() == [5, 6]
    assert batch["segments"]["answer_of_token"].ravel().tolist() == [1, 1]


def test_a_static_shape_and_padding_see_nothing_else(made):
    _, out = made
    dataset = packer.load(out)
    static = packer.static_shape(dataset, rows=2)
    for batch in packer.batches(dataset, rows=2, format="tree", static=static, tensors="numpy"):
        assert batch["tree"].shape == (2, static.tokens)
        assert (batch["tree"][0] > np.arange(static.tokens)).all()


def test_trees_are_refused_where_their_branches_would_see_each_other(made, tmp_path):
    _, out = made
    rows = [packer.load(out)[0]]
    for name in ("hf", "hf_rows", "encoder", "trl", "torchtitan", "torchtune", "megatron", "segment_ids"):
        with pytest.raises(packer.PackerError, match="would see each other in any other format: choose format tree"):
            packer.collate(rows, format=name)
    with pytest.raises(packer.PackerError, match=r"holds trees .*, whose branches would see each other"):
        packer.export(out, tmp_path / "export", to="torchtune")


def collators():
    """What trainers make batches with that know no trees."""
    transformers = pytest.importorskip("transformers")
    trl = pytest.importorskip("trl.trainer.sft_trainer")
    yield transformers.DataCollatorWithFlattening()
    yield trl.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    for name in ("hf", "torchtitan"):
        yield lambda rows, name=name: packer.collate(rows, format=name)


@pytest.mark.parametrize("without", [(), ("tree",)])
def test_trainers_that_do_not_know_trees_fail_on_them(made, without):
    """Also if they drop the column that has the branches, as TRL does: they miss the tokens."""
    _, out = made
    datasets = pytest.importorskip("datasets")
    opened = datasets.load_from_disk(str(out))
    assert "input_ids" not in opened.column_names
    for rows in (opened, packer.load(out)):
        row = {name: values for name, values in rows[0].items() if name not in without}
        for collate in collators():
            with pytest.raises((KeyError, ValueError, packer.PackerError), match=r"input_ids|see each other"):
                collate([row])
    assert packer.collate([packer.load(out)[0]], format="tree")["input_ids"].shape[0] == 1


def test_packing_trees_says_how_to_train_on_them(tmp_path):
    source = write_lines(tmp_path / "samples.jsonl", [{"input_ids": [[1, 2, 3], [1, 2, 4]], "labels": [[1, 2, 3]] * 2}])
    for options, says in ((["--share-prefixes"], True), ([], False)):
        name = source if says else write_lines(tmp_path / "plain.jsonl", [{"input_ids": [1, 2, 3]}])
        found = succeeded("pack", name, "--max-len", 8, "-o", tmp_path / f"out{says}", *options)
        assert ('train only with format="tree"' in found) == says


def test_a_tree_is_shown_branch_by_branch(tmp_path):
    record = {"input_ids": [[1, 2, 3, 4], [1, 2, 3, 7, 8]], "labels": [[-100, -100, -100, 4], [-100] * 3 + [7, 8]]}
    source = write_lines(tmp_path / "samples.jsonl", [record, {"input_ids": [[9]], "labels": [[9]]}])
    packer.pack(source, tmp_path / "out", max_len=16, share_prefixes=True)
    lines = [line.split() for line in succeeded("show", tmp_path / "out", 0).splitlines()]
    tree = next(at for at, line in enumerate(lines) if line[1] == "7")
    assert [" ".join(line) for line in lines[tree + 1 : tree + 4]] == [
        ".0 2 answer 0 0 0 1 2",
        ".1 2 answer 0 2 1 · 3 4",
        ".2 3 answer 1 2 2 · 3 7 8",
    ]
    full = succeeded("show", tmp_path / "out", 0, "--full").splitlines()
    at = full.index("node 2, after 0, answer 1:")
    assert full[at + 1] == "3 [[7 8]]"
    (row,) = json.loads(succeeded("show", tmp_path / "out", 0, "--json"))["rows"]
    (nodes,) = [segment["nodes"] for segment in row["segments"] if segment.get("nodes")]
    assert [(node["tokens"], node["parent"], node["answer"]) for node in nodes] == [(2, -1, 0), (2, 0, 0), (3, 0, 1)]
    page = tmp_path / "page.html"
    succeeded("stats", tmp_path / "out", "--report", page)
    assert "branches of trees are lower" in page.read_text()
