"""Long chats are split before exchanges, and inside one only if it is longer than a row."""

import re
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError
from packer.text.conversations import Chat
from tests.helpers.commands import succeeded
from tests.helpers.effort import FUZZ
from tests.helpers.exchanges import naive_starts
from tests.helpers.pack import segments_in
from tests.helpers.packed_rows import rows_on_disk
from tests.helpers.packings import write
from tests.helpers.writing import write_as, write_lines


def columns_of(chats: list[list[int]], seed: int = 0) -> dict[str, list]:
    """Return the columns of chats whose exchanges have these numbers of tokens; some tokens are trained."""
    random = np.random.default_rng(seed)
    tokens = [random.integers(1, 99, sum(chat)).tolist() for chat in chats]
    labels = [[token if random.random() < 0.7 else -100 for token in ids] for ids in tokens]
    starts = [np.cumsum([0, *chat[:-1]]).tolist() for chat in chats]
    return {"input_ids": tokens, "labels": labels, "exchange_starts": starts}


def pieces_of(out: Path) -> dict[tuple[int, int], list[int]]:
    """Return the tokens of every segment by (document, start)."""
    return {(document, start): tokens for document, start, tokens, _ in segments_in(packer.load(out))}


CHATS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=9), min_size=1, max_size=9)
OPTIONS = st.sampled_from([{}, {"algorithm": "sequential"}, {"align": 4}, {"algorithm": "bfd", "max_segments": 2}])


@settings(deadline=None, max_examples=25 * FUZZ)
@given(CHATS, st.integers(2, 9), OPTIONS, st.sampled_from(["arrow", "parquet", "jsonl"]))
def test_pieces_begin_with_an_exchange_unless_it_is_longer_than_a_row(chats, quarter, options, kind):
    columns, max_len = columns_of(chats), 4 * quarter
    with TemporaryDirectory() as folder:
        source, out = write(Path(folder) / f"chats.{kind}", columns), Path(folder) / "out"
        manifest = packer.pack(source, out, max_len=max_len, untrained="keep-all", sync=False, **options)
        pieces = pieces_of(out)
        for document, (tokens, chat) in enumerate(zip(columns["input_ids"], chats, strict=True)):
            starts = [start for of, start in sorted(pieces) if of == document]
            assert sum((pieces[document, start] for start in starts), []) == tokens  # noqa: RUF017
            begin = np.cumsum([0, *chat]).tolist()
            for start in {*starts} - {*begin}:
                assert max(end - first for first, end in pairwise(begin) if first < start < end) > max_len
            assert starts == naive_starts(chat, max_len)
        later = 0
        for row in rows_on_disk(out):
            labels = np.split(np.array(row["labels"]), np.cumsum(row["seq_lengths"]))
            for start, of_segment in zip(row["doc_starts"], labels, strict=False):
                later += np.count_nonzero(of_segment != -100) if start else 0
        assert manifest.totals.tokens_trained_later == later
        assert list(packer.verify(out, source)) == []
        assert manifest.rows == packer.stats(source, max_len=max_len, **options).rows


ROLES = st.lists(st.sampled_from(["system", "developer", "user", "assistant", "tool"]), min_size=1, max_size=9)


@given(ROLES)
def test_an_exchange_begins_with_what_comes_before_an_answer(roles):
    asks = [role in ("system", "developer", "user") for role in roles]
    expected = []
    for at in range(1, len(roles)):
        run = next((end for end in range(at, len(roles)) if not asks[end]), len(roles))
        if not asks[at - 1] and "user" in roles[at:run]:
            expected.append(at)
    assert Chat([{"role": role, "content": ""} for role in roles]).exchanges() == expected


def test_a_system_prompt_stays_with_its_exchange_and_results_of_tools_begin_none():
    roles = ["system", "user", "user", "assistant", "tool", "assistant", "system", "user", "assistant", "system"]
    assert Chat([{"role": role} for role in roles]).exchanges() == [6]
    assert Chat([{"role": role} for role in ("assistant", "user", "assistant")]).exchanges() == [1]


@pytest.mark.parametrize("options", [{"split_at": "tokens"}, {"algorithm": "wrapped"}], ids=str)
def test_chats_are_split_at_any_token_on_request(tmp_path, options):
    columns = columns_of([[3, 9, 5], [7, 2, 9, 9]])
    source = write(tmp_path / "chats.arrow", columns)
    plain = {name: columns[name] for name in ("input_ids", "labels")}
    packer.pack(source, tmp_path / "out", max_len=8, sync=False, **options)
    packer.pack(write(tmp_path / "plain.arrow", plain), tmp_path / "plain", max_len=8, sync=False, **options)
    assert pieces_of(tmp_path / "out") == pieces_of(tmp_path / "plain")
    assert (0, 3) not in pieces_of(tmp_path / "out")


def test_a_chat_of_which_nothing_is_known_counts_as_one_exchange(tmp_path):
    table = pa.table({"input_ids": [[*range(20)]] * 3, "exchange_starts": [[0, 5], None, []]})
    for name in ("chats.parquet", "chats.arrow"):
        packer.pack(write_as(tmp_path / name, table), out := tmp_path / f"{name}-out", max_len=16, sync=False)
        assert sorted(pieces_of(out)) == [(0, 0), (0, 5), (1, 0), (1, 16), (2, 0), (2, 16)]


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        (pa.array([[0, 7, 5]]), r"document 0 \(chats.parquet row 0\): its 'exchange_starts' are not in order inside"),
        (pa.array([[0, 99]]), "are not in order inside its 20 tokens"),
        (pa.array([[0, None]]), "holds a null position"),
        (pa.array([["a"]]), "'exchange_starts' holds list<.*: give lists of positions"),
        (pa.array([3]), "'exchange_starts' holds int64: give lists of positions"),
    ],
)
def test_wrong_starts_are_refused_where_they_matter(tmp_path, starts, words):
    table = pa.table({"input_ids": [[*range(20)]], "exchange_starts": starts})
    pq.write_table(table, tmp_path / "chats.parquet")
    with pytest.raises(PackerError, match=words):
        packer.pack(tmp_path / "chats.parquet", tmp_path / "out", max_len=16)
    for name, options in (("fits", {"max_len": 32}), ("tokens", {"max_len": 16, "split_at": "tokens"})):
        assert packer.pack(tmp_path / "chats.parquet", tmp_path / name, sync=False, **options).rows


def test_exchanges_that_are_named_must_be_known(tmp_path):
    source = write(tmp_path / "plain.arrow", {"input_ids": [[1, 2]]})
    with pytest.raises(PackerError, match="no column 'exchange_starts'"):
        packer.pack(source, tmp_path / "out", max_len=16, split_at="exchanges")


@pytest.mark.parametrize("options", [{"long": "drop"}, {"algorithm": "wrapped"}, {"split_at": "turns"}])
def test_options_that_rule_out_exchanges_are_refused(tmp_path, options):
    with pytest.raises(PackerError, match="split_at is"):
        packer.pack(tmp_path, tmp_path / "out", max_len=16, **{"split_at": "exchanges", **options})


@settings(deadline=None, max_examples=10 * FUZZ)
@given(CHATS, st.integers(4, 30), st.sampled_from(["keep-all", "drop"]))
def test_trained_tokens_that_are_cut_off_are_counted(chats, max_len, untrained):
    columns = columns_of(chats)
    first = columns["labels"][0]
    columns["labels"][0] = [-100] * min(max_len, len(first)) + first[max_len:]
    with TemporaryDirectory() as folder:
        source, out = write(Path(folder) / "chats.parquet", columns), Path(folder) / "out"
        options = {"long": "truncate", "untrained": untrained, "holdout": None}
        if not any(label != -100 for labels in columns["labels"] for label in labels[1:max_len]):
            return
        manifest = packer.pack(source, out, max_len=max_len, sync=False, **options)
        cut_off = [label for labels in columns["labels"] for label in labels[max_len:] if label != -100]
        assert manifest.totals.tokens_trained_truncated == len(cut_off)
        assert list(packer.verify(out, source)) == []


def test_the_summary_says_what_does_not_see_the_beginning_of_its_chat(tmp_path):
    columns = columns_of([[30, 20, 60]])
    source, labels = write(tmp_path / "chats.jsonl", columns), columns["labels"][0]
    assert naive_starts([30, 20, 60], 32) == [0, 30, 50, 82]
    later = sum(label != -100 for at, label in enumerate(labels) if at > 30 and at not in (50, 82))
    facts = facts_of("pack", source, "--max-len", 32, "-o", tmp_path / "out")
    assert facts["in later segments"] == [str(later), "of documents, whose beginning they do not see"]
    facts = facts_of("pack", source, "--max-len", 32, "--long", "truncate", "-o", tmp_path / "cut")
    cut_off = sum(label != -100 for label in labels[32:])
    assert facts["truncated"] == [str(cut_off), "trained tokens that are cut off"]


def test_texts_have_no_such_line(tmp_path):
    source = write_lines(tmp_path / "texts.jsonl", [{"input_ids": [*range(99)]}])
    assert "in later segments" not in facts_of("pack", source, "--max-len", 32, "-o", tmp_path / "out")
    assert packer.load(tmp_path / "out").manifest.totals.tokens_trained_later == 64


def facts_of(*arguments) -> dict[str, list[str]]:
    """Return the lines of a summary, by the words before the number."""
    lines = [re.split("  +", line.strip()) for line in succeeded(*arguments, "--no-sync").splitlines()]
    return {name: rest for name, *rest in lines}
