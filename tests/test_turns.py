"""Long chats are split between turns only."""

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer.errors import PackerError
from tests.helpers.pack import segments_in
from tests.helpers.turns import naive_cuts
from tests.helpers.writing import write_as, write_ipc


def write(folder, kind, turns: list[list[int]]):
    """Save chats whose turns have these numbers of tokens."""
    random = np.random.default_rng(0)
    tokens = [random.integers(1, 99, sum(chat)).tolist() for chat in turns]
    starts = [np.cumsum([0, *chat[:-1]]).tolist() for chat in turns]
    table = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32())), "turn_starts": pa.array(starts)})
    return write_as(folder / f"chats.{kind}", table), tokens


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("options", [{}, {"algorithm": "sequential"}, {"align": 4}], ids=str)
def test_no_turn_is_cut(tmp_path, kind, options):
    random = np.random.default_rng(1)
    turns = [random.integers(1, 12, random.integers(1, 12)).tolist() for _ in range(80)]
    source, tokens = write(tmp_path, kind, turns)
    out = tmp_path / "out"
    manifest = packer.pack(source, out, max_len=24, split_at="turns", shard_size="2KB", **options)
    pieces = {(document, start): found for document, start, found, _ in segments_in(packer.load(out))}
    for document, chat in enumerate(turns):
        starts = [0, *naive_cuts(chat, 24)]
        found = [pieces.pop((document, start)) for start in starts]
        assert sum(found, []) == tokens[document]  # noqa: RUF017
    assert not pieces
    assert manifest.totals.documents_split == sum(sum(chat) > 24 for chat in turns)
    assert list(packer.verify(out, source)) == []


def test_a_turn_longer_than_a_row_is_refused_with_its_length(tmp_path):
    source, _ = write(tmp_path, "arrow", [[3, 4], [2, 40, 3]])
    with pytest.raises(
        PackerError, match=r"document 1 \(chats.arrow row 1\) has a turn of 40 tokens and max_len is 16"
    ):
        packer.pack(source, tmp_path / "out", max_len=16, split_at="turns")


def test_a_source_without_turns_is_refused(tmp_path):
    path = tmp_path / "plain.arrow"
    table = pa.table({"input_ids": [[1, 2]]})
    write_ipc(path, table)
    with pytest.raises(PackerError, match="no column 'turn_starts'"):
        packer.pack(path, tmp_path / "out", max_len=16, split_at="turns")


@pytest.mark.parametrize("options", [{"long": "drop"}, {"algorithm": "wrapped"}, {"split_at": "words"}])
def test_options_that_rule_out_splitting_at_turns_are_refused(tmp_path, options):
    with pytest.raises(PackerError, match="split_at is"):
        packer.pack(tmp_path, tmp_path / "out", max_len=16, **{"split_at": "turns", **options})
