"""What `tests/test_trees_attention.py` shares with other tests."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.helpers.models import gradients, loss_sum  # noqa: E402


def train_trees(model, forest, **changes):
    """(logits by path, loss, gradients) of the row."""
    model.zero_grad()
    batch = forest.batch(**changes)
    labels = batch.pop("labels")
    found = model(**{name: value for name, value in batch.items() if value is not None}).logits
    loss = loss_sum(found, labels)
    loss.backward()
    return {number: found[0].detach()[path] for number, path in enumerate(forest.paths)}, loss.item(), gradients(model)


def distance(found, expected):
    """Largest difference in logits, loss and gradients; that of a tensor relative to its largest value."""
    apart = [abs(found[1] - expected[1]) / expected[1]]
    for one, other in ((found[0], expected[0]), (found[2], expected[2])):
        assert set(one) == set(other)
        apart += [
            ((one[name] - each).abs().max() / each.abs().max().clamp(min=1)).item() for name, each in other.items()
        ]
    return max(apart)
