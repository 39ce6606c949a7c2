"""What `tests/test_ranks.py` shares with other tests."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from test_from_text import tokenizer  # noqa: F401 (a fixture)

import packer
from tests.helpers.small import shrink


def in_threads(*calls):
    """Call functions in threads of their own; return what each returned or raised."""

    def result_of(call):
        try:
            return call()
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(result_of, calls))


def run_ranks(source, out, count, *, options, only=None, timeout=60.0):
    """Pack by ranks in threads of this process; return what each returned or raised."""
    options = {"workers": 2, **options}
    ranks = range(count) if only is None else only
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, rank_patience=timeout)
        return in_threads(*(partial(packer.pack, source, out, ranks=f"{rank}/{count}", **options) for rank in ranks))
