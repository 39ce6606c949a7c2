"""Samples by hash: members, ranks and counts, compared with a list of all members."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.plan.mixture_shares import BLOCK, HashSample
from packer.plan.permute import key_of
from packer.random_purposes import MIXTURE
from tests import naive

POPULATIONS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]
SHARES = [0.0, 0.001, 0.03, 0.5, 0.98]


def sample_of(population: int, share: float, seed=5) -> tuple[HashSample, list[int]]:
    """Return a sample and the list of its members."""
    threshold = int(share * 2**64)
    hashes = naive.draws(population, seed=seed, purpose=MIXTURE, stream=2)
    sample = HashSample.of(population, key_of(seed, MIXTURE, 2), np.uint64(threshold))
    return sample, [number for number, bits in enumerate(hashes) if bits < threshold]


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("share", SHARES)
def test_members_are_the_numbers_with_a_small_hash(population, share):
    sample, members = sample_of(population, share)
    assert len(sample) == len(members)
    assert sample.members(np.arange(len(members))).tolist() == members
    assert np.flatnonzero(sample.contains(0, population)).tolist() == members
    ranks, is_member = sample.ranks(np.arange(population))
    assert ranks.tolist() == np.searchsorted(members, np.arange(population)).tolist()
    assert np.flatnonzero(is_member).tolist() == members


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1), st.sampled_from([0.01, 0.4, 0.9]), st.data())
def test_numbers_are_looked_up_in_any_order(seed, share, data):
    population = 2 * BLOCK + 3
    sample, members = sample_of(population, share, seed)
    numbers = data.draw(st.lists(st.integers(0, population - 1), max_size=40))
    ranks, is_member = sample.ranks(np.array(numbers, np.int64))
    assert ranks.tolist() == np.searchsorted(members, numbers).tolist()
    assert is_member.tolist() == [number in members for number in numbers]
    if members:
        wanted = data.draw(st.lists(st.integers(0, len(members) - 1), max_size=40))
        assert sample.members(np.array(wanted, np.int64)).tolist() == [members[rank] for rank in wanted]
    first = data.draw(st.integers(0, population))
    last = data.draw(st.integers(first, population))
    inside = [number - first for number in members if first <= number < last]
    assert np.flatnonzero(sample.contains(first, last)).tolist() == inside


def test_a_sample_depends_on_its_key():
    one, other = (HashSample.of(5000, key_of(1, MIXTURE, source), np.uint64(2**63)) for source in (0, 1))
    both = np.count_nonzero(one.contains(0, 5000) & other.contains(0, 5000))
    assert both == pytest.approx(1250, abs=150)
