"""Packing must not be a hidden curriculum: what a row holds says nothing about where it stands, beyond chance.

Every statistic is standardised under independence and taken for 100 seeds. Their mean and their spread are tested
each at an error rate of 1 in 10,000, so that of all tests of this file together, were other seeds drawn, a right
packer fails one in a thousand times.
"""

import numpy as np
import pytest

from packer.algorithms import get_algorithm
from packer.options import PackOptions
from packer.plan.make_plan import plan_lengths
from tests.helpers.small import shrink

SEEDS = 100
MAX_MEAN = 3.89 / SEEDS**0.5  # of as many standard normal numbers: two-sided, 1 in 10,000
MAX_SQUARES = 161.3  # their sum of squares, chi-squared with 100 degrees of freedom: 1 in 10,000


def row_order(shard):
    """Correlation of a row's number in its shard with the mean length of its segments."""
    means = np.array([lengths.mean() for _, lengths in shard])
    return np.corrcoef(np.arange(len(means)), means)[0, 1] * (len(means) - 1) ** 0.5


def within_rows(shard, values):
    """Covariance of the place in the row with a value of the document: the sum over rows, each exactly standardised."""
    sums = variances = 0.0
    for row in shard:
        value = values(*row)
        if len(value) > 1:
            places = np.arange(len(value)) - (len(value) - 1) / 2
            value = value - value.mean()
            sums += places @ value
            variances += (places @ places) * (value @ value) / (len(value) - 1)
    return sums / variances**0.5


def segment_order(shard):
    """Place in the row, and length."""
    return within_rows(shard, lambda documents, lengths: lengths.astype(float))


def source_order(shard):
    """Place in the row, and place in the source."""
    return within_rows(shard, lambda documents, lengths: documents.astype(float))


def partners(shard):
    """Places in the source of two documents that share a row: their covariance over all pairs."""
    places = np.concatenate([documents for documents, _ in shard]).astype(float)
    mean, variance = places.mean(), places.var()
    covariance = pairs = 0.0
    for documents, _ in shard:
        centred = documents - mean
        covariance += (centred.sum() ** 2 - centred @ centred) / 2
        pairs += len(documents) * (len(documents) - 1) / 2
    return covariance / (variance * pairs**0.5)


@pytest.fixture(scope="module", params=["auto", "bfd"])
def shards(request):
    """For every seed the first shard: rows of (documents, lengths).

    `auto` draws its rows, `bfd` makes them of patterns. The same documents stand in another order in every source, or
    their fixed places would count 100 times.
    """
    random = np.random.default_rng(3)
    lengths = np.minimum(random.lognormal(5, 1, 6_000).astype(np.int32) + 1, 2048)
    packs = get_algorithm("bfd").solve(np.bincount(lengths, minlength=2049)).packs
    shard_size = 8 * 2048 * (packs // 4)
    found = []
    patch = pytest.MonkeyPatch()
    shrink(patch, partition_tokens=1)
    for seed in range(SEEDS):
        lengths = random.permutation(lengths)
        options = PackOptions(max_len=2048, shard_size=shard_size, seed=seed, algorithm=request.param)
        rows = plan_lengths(lengths, options).rows(0)
        bounds = zip(rows.row_starts[:-1], rows.row_starts[1:], strict=True)
        found.append([(rows.documents[a:b], rows.lengths[a:b]) for a, b in bounds])
    patch.undo()
    return found


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("statistic", [row_order, segment_order, source_order, partners])
def test_nothing_correlates_within_a_shard(shards, statistic):
    found = np.array([statistic(shard) for shard in shards])
    assert abs(found.mean()) < MAX_MEAN
    assert found @ found < MAX_SQUARES
