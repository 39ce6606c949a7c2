"""Sources for ranks, and ranks in threads of this process."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

import pytest

import packer
from tests.helpers.pack import made_documents, save_arrow
from tests.helpers.small import shrink
from tests.helpers.writing import write_lines


def scored(path, count=600):
    records = [{"input_ids": tokens, "score": 1} for tokens in made_documents(count)]
    records[-1]["score"] = 0.5  # so that earlier streams are rewritten with another type
    return write_lines(path, records)


def as_files(folder):
    made = folder / "lines"
    made.mkdir()
    for number in range(5):
        scored(made / f"{number}.jsonl", 60 + number)
    return made


def as_rows(folder):
    """Write rows of three documents each."""
    made = made_documents(900)
    rows = [made[at : at + 3] for at in range(0, 900, 3)]
    records = [{"input_ids": [*chain.from_iterable(row)], "seq_lengths": [*map(len, row)]} for row in rows]
    return write_lines(folder / "rows.jsonl", records)


def as_arrow(folder):
    return save_arrow(folder / "rows.arrow", made_documents(900))


def options_of(extra):
    return {"max_len": 64, "shard_size": "6KB", **extra}


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
