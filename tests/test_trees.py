"""Documents of a record as a tree: each is a path of it and trained once, and no shared token is stored twice."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer.gather.prefix_trees import build_trees

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


def paths_of(nodes):
    """Tokens from the root to the end of each node."""
    paths = []
    for tokens, _, parent, _ in nodes:
        paths.append([*(paths[parent] if parent >= 0 else []), *tokens])
    return paths


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
