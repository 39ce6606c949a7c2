"""Trees of a packed dataset: their nodes, and what each of their answers trains."""

import numpy as np

from tests.helpers.each_answer import documents_in

NO_LOSS = -100


def paths_of(nodes):
    """Tokens from the root to the end of each node."""
    paths = []
    for tokens, _, parent, _ in nodes:
        paths.append([*(paths[parent] if parent >= 0 else []), *tokens])
    return paths


def trees_in(out):
    """(record, nodes as (tokens, labels, parent, document)) of every segment; an ordinary document is one node."""
    for ids, labels, kept in documents_in(out).values():
        place, nodes = 0, []
        for length, parent, document in np.reshape(kept["tree"] or [len(ids), -1, 0], (-1, 3)).tolist():
            nodes.append((ids[place : place + length], labels[place : place + length], parent, document))
            place += length
        assert place == len(ids)
        yield kept.get("record_ids"), nodes


def answers_in(out):
    """What each answer of the trees trains: sorted (record, tokens up to the last trained one, trained places)."""
    found = []
    for record, nodes in trees_in(out):
        paths = paths_of(nodes)
        by_document = {}
        for (tokens, labels, _, document), path in zip(nodes, paths, strict=True):
            for at, label in enumerate(labels):
                if label != NO_LOSS:
                    place = len(path) - len(tokens) + at
                    by_document.setdefault(document, []).append((place, label, tuple(path[: place + 1])))
        for places in by_document.values():
            places.sort()
            assert all(places[-1][2][: len(path)] == path for _, _, path in places)
            found.append((record, list(places[-1][2]), [place[:2] for place in places]))
    return sorted(found)
