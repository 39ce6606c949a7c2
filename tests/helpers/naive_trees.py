"""Trees of documents, laid out by the obvious way: lists of tokens, compared one by one."""

import random
from dataclasses import dataclass, field
from itertools import takewhile

import torch

NO_LOSS = -100


@dataclass
class Forest:
    """A row of trees: its tokens, and where each document lies."""

    tokens: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    visible_until: list[int] = field(default_factory=list)
    documents: list[list[int]] = field(default_factory=list)
    """Tokens of each document."""

    document_labels: list[list[int]] = field(default_factory=list)
    """Labels of each document alone: a target that documents share is trained in the first of them."""

    paths: list[list[int]] = field(default_factory=list)
    """Places in the row of each document's tokens."""

    def add(self, documents):
        """Append a tree of documents; the first targets of some are not trained."""
        first = len(self.documents)
        self.documents += documents
        for tokens in documents:
            self.document_labels.append([NO_LOSS if place % 7 == 3 else token for place, token in enumerate(tokens)])
            self.paths.append([])
        place = len(self.tokens)
        self._lay(list(range(first, len(self.documents))), 0)
        self.labels[place] = NO_LOSS
        return self

    def _lay(self, group, start):
        """Lay out documents whose tokens before `start` lie in the row."""
        common = self._common(group)
        if len(group) == 1:
            self._node(group, start, common)
            return
        stored = max(common - 1, start)  # the last common token begins every branch
        begin = len(self.tokens)
        self._node(group, start, stored)
        shared = range(begin, len(self.tokens))
        for branch in self._branches(group, common):
            is_first = branch[0] == group[0]
            for document in branch if not is_first else []:  # targets that the first branch trains
                self.document_labels[document][:common] = [NO_LOSS] * len(self.document_labels[document][:common])
            follows = is_first and len(self.tokens) == len(shared) + begin and len(shared) > 0
            place = len(self.tokens)
            self._lay(branch, stored)
            if not follows:
                self.labels[place] = NO_LOSS
        for place in shared:
            self.visible_until[place] = len(self.tokens)

    def _node(self, group, start, end):
        place = len(self.tokens)
        self.tokens += self.documents[group[0]][start:end]
        self.labels += self.document_labels[group[0]][start:end]
        self.positions += range(start, end)
        self.visible_until += [place + end - start] * (end - start)
        for document in group:
            self.paths[document] += range(place, place + end - start)

    def _common(self, group):
        """Number of tokens that all documents of a group begin with."""
        columns = zip(*(self.documents[document] for document in group), strict=False)
        return len(list(takewhile(lambda column: len(set(column)) == 1, columns)))

    def _branches(self, group, common):
        """Documents by the token after the common ones; one that ends there is a branch of its own."""
        branches = {}
        for document in group:
            tokens = self.documents[document]
            name = ("token", tokens[common]) if len(tokens) > common else ("end", document)
            branches.setdefault(name, []).append(document)
        return branches.values()

    @property
    def tree(self):
        """The batch's `tree`."""
        return torch.tensor([self.visible_until, self.positions], dtype=torch.int32)

    def batch(self, **changes):
        """Batch of format "tree"."""
        return {
            "input_ids": torch.tensor([self.tokens]),
            "labels": torch.tensor([self.labels]),
            "position_ids": torch.tensor([self.positions]),
            "tree": self.tree,
            "use_cache": False,
            **changes,
        }

    def dense(self, window=None):
        """The mask, from the paths alone: each token of a path sees those before it."""
        size = len(self.tokens)
        mask = torch.zeros(size, size, dtype=torch.bool)
        for path in self.paths:
            for query, place in enumerate(path):
                for key in range(query + 1):
                    mask[place, path[key]] |= window is None or query - key < window
        return mask


def grow(draw: random.Random, *, depth, branches, vocabulary, longest=6):
    """Documents of a random tree: up to `branches` of them, that divide up to `depth - 1` times."""
    tokens = [draw.randrange(3, vocabulary) for _ in range(draw.randint(1, longest))]
    if depth == 1 or branches == 1:
        return [tokens]
    documents = []
    for _ in range(draw.randint(2, min(4, branches))):
        left = branches - len(documents)
        if left > 0:
            documents += grow(draw, depth=depth - 1, branches=max(1, left // 2), vocabulary=vocabulary, longest=longest)
    return [tokens + document for document in documents[:branches]]


def random_forest(seed, *, vocabulary, depth=4, branches=16, longest=6, padding=3):
    """A row of two trees, plain documents before, between and after them, and padding."""
    draw = random.Random(seed)
    forest = Forest()
    for each_depth, each_branches in ((1, 1), (depth, branches), (1, 1), (2, 3), (1, 1)):
        sizes = {"vocabulary": vocabulary, "longest": longest}
        forest.add(grow(draw, depth=each_depth, branches=each_branches, **sizes))
    if padding:
        forest.add([[1] * padding])
        forest.document_labels[-1] = [NO_LOSS] * padding
        forest.labels[-padding:] = [NO_LOSS] * padding
    return forest
