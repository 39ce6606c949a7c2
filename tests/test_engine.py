"""Tasks of a stage in threads: what becomes of the others if one fails."""

import threading
import time

import pytest

from packer.engines.engine import run_tasks
from packer.signals import raise_if_interrupted


def test_the_first_error_ends_tasks_that_run_and_those_that_have_not_begun():
    begun, lasted = threading.Event(), []

    def task(number):
        if number == 1:
            begun.wait()
            raise ValueError("wrong")
        begun.set()
        for _ in range(3000):
            raise_if_interrupted()
            time.sleep(0.01)
        lasted.append(number)

    with pytest.raises(ValueError, match="wrong"):
        list(run_tasks(task, range(6), 2))
    assert lasted == []


def test_a_caller_that_stops_iterating_ends_the_tasks():
    all_begun, lasted = threading.Barrier(3), []

    def task(number):
        all_begun.wait()
        for _ in range(3000 * min(number, 1)):
            raise_if_interrupted()
            time.sleep(0.01)
        lasted.append(number)

    results = run_tasks(task, range(3), 3)
    next(results)
    results.close()
    assert lasted == [0]
