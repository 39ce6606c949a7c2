"""A probe in a job of several processes finds what leaks between documents, wherever their tokens are."""

import pytest

from tests.helpers.torch_jobs import run_two

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What two processes found in each of their steps, in tests/helpers/probe_ranks.py."""
    folder = tmp_path_factory.mktemp("probe")
    run_two("tests.helpers.probe_ranks", folder)
    both = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
    return {name: [each[name] for each in both] for name in both[0]}


@pytest.mark.parametrize(("name", "documents"), [("ring", 8), ("data", 16)])
def test_a_job_that_keeps_documents_apart_is_safe(answers, name, documents):
    """In a ring, each process has half of the tokens of each row; otherwise it has documents of its own."""
    for found in answers[name]:
        assert found.is_safe
        assert found.moved == dict.fromkeys(range(documents), ())
        assert (found.largest, found.reaching) == (0, ())
        assert max(found.difference, found.gradients) < 1e-14
    assert str(answers[name][0]) == str(answers[name][1])


def test_a_ring_without_boundaries_leaks_into_all_later_documents_of_a_row(answers):
    for found in answers["ring without boundaries"]:
        assert not found.is_safe
        assert found.moved == {0: (1, 2, 3), 1: (2, 3), 2: (3,), 3: (), 4: (5, 6), 5: (6,), 6: (), 7: ()}
        assert found.reaching == (0, 1, 2, 4, 5)


def test_a_leak_over_the_border_of_two_processes_is_found(answers):
    """Document 0 fills the tokens of the first process in its row, and 5 begins there and ends in the second."""
    for found in answers["ring with boundaries in shards"]:
        assert found.moved == {0: (1, 2, 3), 1: (), 2: (), 3: (), 4: (5, 6), 5: (6,), 6: (), 7: ()}


def test_a_leak_between_processes_of_their_own_documents_is_found(answers):
    """Documents 0 to 7 are those of the first process."""
    for found in answers["data, mixed"]:
        assert all({*range(8, 16)} <= {*found.moved[document]} for document in range(8))
        assert "document 0 moves 8 others; 1 moves 8 others; " in str(found)


def test_a_step_that_fails_in_one_process_fails_in_all(answers):
    for found in answers["failing"]:
        assert str(found) == "the step failed in process 1 of the job: ValueError('out of luck')"


def test_ranks_that_leave_one_out_are_refused(answers):
    for found in answers["ranks"]:
        assert str(found) == (
            "the processes of this job get the batches [0, 1] of 3: pass rank and world_size as to BatchSampler"
        )
