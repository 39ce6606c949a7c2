"""`packer stats --data-parallel`: how long ranks wait for each other, as computed row by row."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer import PackerError
from packer.loader.row_order import row_order
from packer.pipeline.collect_figures import keys_of_matrices
from tests.helpers.commands import run

RANKS, ACCUMULATION = 4, 2


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("waiting")
    lengths = np.minimum(np.random.default_rng(0).lognormal(4, 1.2, 600).astype(int) + 1, 512)
    pq.write_table(pa.table({"input_ids": [list(range(length)) for length in lengths]}), folder / "data.parquet")
    packer.pack(folder / "data.parquet", folder / "packed", max_len=512)
    return folder


def naive_shares(packed, keys):
    """(share lost in order, with balance=1), rank by rank."""
    dataset = packer.load(packed)
    work = []
    for offsets, lengths, documents in dataset.segments():
        for first, last in pairwise(offsets.tolist()):
            real = [
                int(n) for n, document in zip(lengths[first:last], documents[first:last], strict=True) if document >= 0
            ]
            work.append(sum(keys * n + n * (n + 1) / 2 for n in real))
    order, step = row_order(len(work), seed=0, epoch=0).tolist(), RANKS * ACCUMULATION
    times = {False: [0.0, 0.0], True: [0.0, 0.0]}
    for first in range(0, len(order) - step + 1, step):
        for balanced, (mean, slowest) in times.items():
            rows = [work[row] for row in order[first : first + step]]
            rows = sorted(rows) if balanced else rows
            for turn in range(0, step, RANKS):
                mean += sum(rows[turn : turn + RANKS]) / RANKS
                slowest += max(rows[turn : turn + RANKS])
            times[balanced] = [mean, slowest]
    return [1 - mean / slowest for mean, slowest in times.values()]


def test_waiting_is_that_of_the_rows_step_by_step_before_and_after_packing(source):
    expected = naive_shares(source / "packed", keys_of_matrices("1M"))
    for dataset in ("packed", "data.parquet"):
        found = packer.stats(
            source / dataset, data_parallel=RANKS, accumulation=ACCUMULATION, model="1M", progress=False,
            **({} if dataset == "packed" else {"max_len": 512}),
        ).waiting  # fmt: skip
        assert [found.shares[0], found.shares[1]] == pytest.approx(expected)
        assert found.shares[8] < found.shares[1] < found.shares[0]


def test_the_command_prints_the_shares_and_json_has_them(source):
    arguments = ["stats", str(source / "packed"), "--data-parallel", "4", "--model", "70B"]
    lines = run(*arguments).stdout.splitlines()
    assert lines[-3].split() == ["Ranks", "wait", "in", "order", "balance=1", "balance=8"]
    assert lines[-2].startswith("  4 ranks, 1 row a step")
    assert lines[-1].startswith("(share of the time of a 70B model")
    waiting = json.loads(run(*arguments, "--json").stdout)["waiting"]
    assert waiting["ranks"] == 4
    assert waiting["shares"].keys() == {"0", "1", "8"}


def test_a_config_gives_the_keys_of_its_own_sizes(tmp_path):
    """Llama 2 7B: 6,607,077,376 weights but the embedding, 32 layers, width 4,096; a number of weights comes close."""
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert keys_of_matrices(str(tmp_path)) == 6_607_077_376 // (2 * 32 * 4096)
    assert keys_of_matrices("7B") == 25_204
    assert keys_of_matrices("56B") == pytest.approx(2 * 25_204, abs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_parallel": 0}, "data_parallel 0: choose a whole number of at least 1"),
        ({"data_parallel": 5000}, "data_parallel 5000: a step has 5,000 rows, and there are "),
        ({"data_parallel": 2.5}, "data_parallel 2.5: choose a whole number of at least 1"),
        ({"accumulation": 4}, "accumulation 4 is for data_parallel: give the number of ranks, or leave it out"),
        ({"model": "70B"}, "model 70B is for data_parallel: give the number of ranks, or leave it out"),
        ({"data_parallel": 4, "model": "nowhere"}, "nowhere is not a local path, and the Hugging Face Hub cannot"),
        ({"data_parallel": 4, "max_len": [256, 512]}, "data_parallel 4 is for rows of one length and algorithm"),
        ({"data_parallel": 4, "algorithm": "all"}, "data_parallel 4 is for rows of one length and algorithm"),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_one_line(source, options, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PackerError) as raised:
        packer.stats(source / "data.parquet", progress=False, **({"max_len": 512} | options))
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
