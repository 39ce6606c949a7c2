"""`packer pack --balance-ranks`: the rows of any other pack, in an order for trainers that do not shuffle."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from tests.helpers.commands import run

RANKS = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    lengths = np.minimum(np.random.default_rng(0).lognormal(4, 1.2, 3000).astype(int) + 1, 512)
    pq.write_table(pa.table({"length": lengths}), folder / "lengths.parquet")
    return folder / "lengths.parquet"


def slowest_over_mean(work):
    groups = np.array(work[: len(work) // RANKS * RANKS], float).reshape(-1, RANKS)
    return groups.max(axis=1).sum() / groups.mean(axis=1).sum()


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("options", [{}, {"algorithm": "bfd"}, {"group_by": "group", "algorithm": "bfd"}])
def test_consecutive_rows_take_equally_long_and_every_row_is_written_once(tmp_path, source, options):
    if "group_by" in options:
        table = pq.read_table(source)
        source = tmp_path / "grouped.parquet"
        pq.write_table(table.append_column("group", pa.array(np.arange(len(table)) % 3)), source)
    options = {"max_len": 512, "shard_size": "400KB", "lengths_column": "length", **options}
    plain = packer.pack(source, tmp_path / "plain", **options)
    ordered = packer.pack(source, tmp_path / "ordered", balance_ranks=RANKS, **options)
    assert ordered.totals == plain.totals
    assert [shard.rows for shard in ordered.shards] == [shard.rows for shard in plain.shards]
    assert any(shard.rows % RANKS for shard in ordered.shards)
    found = {}
    for name in ("plain", "ordered"):
        rows = list(packer.rows(tmp_path / name))
        found[name] = sorted(map(str, rows))
        work = [sum(segment.length**2 for segment in row) for row in rows]
        found[name, "work"] = slowest_over_mean(work)
    assert found["plain"] == found["ordered"]
    assert found["ordered", "work"] < 1.15 < 1.4 < found["plain", "work"]
    assert not list(packer.verify(tmp_path / "ordered", source))


def test_rows_in_source_order_are_not_reordered(tmp_path, source):
    command = ["pack", "--lengths", f"{source}:length", "--max-len", 512, "-o", tmp_path / "out"]
    done = run(*command, "--balance-ranks", 4, "--algorithm", "sequential")
    assert done.exit_code == 2
    assert "--balance-ranks is 4, and sequential keeps the order of the source: choose another" in done.output
