"""What a user relies on in the terminal: the figures are there, true to their digits, on one screen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.cli.writing_commands import pack_summary
from packer.output.job import Written
from packer.plain_text import duration_and_compiling
from packer.report.figures import Figures
from packer.shards.manifest import Manifest
from tests.helpers.made_figures import figures_of, rows_of


def line_with(text: str, words: str) -> str:
    lines = [line for line in text.splitlines() if words in line]
    assert len(lines) == 1, f"{words!r} is in {len(lines)} lines of:\n{text}"
    return lines[0]


MANIFEST: dict[str, Any] = {
    "format_version": 2,
    "options": {"max_len": 4096, "labels": True, "algorithm": "auto"},
    "source": {"files": [], "documents": 55190, "tokens": 13525868, "labels": True, "lengths_xxh3_128": ""},
    "totals": {
        "documents": 55190,
        "segments": 55235,
        "rows": 3304,
        "tokens": 13525868,
        "tokens_packed": 13525668,
        "tokens_trained": 13470433,
        "segments_untrained": 0,
        "tokens_trained_later": 0,
        "largest_id": 151_668,
        "tokens_truncated": 120,
        "tokens_dropped": {"too_long": 80},
        "documents_split": 50,
        "documents_truncated": 7,
        "documents_dropped": {"empty": 3, "too_long": 2},
        "efficiency": 13525668 / (3304 * 4096),
        "lower_bound": 3303,
    },
    "shards": {
        "rows": [2000, 1304],
        "tokens": [8, 8],
        "trained": [0, 0],
        "untrained_segments": [0, 0],
        "trained_later": [0, 0],
        "largest_id": [151_668, 151_645],
        "bytes": [65_000_000, 43_200_000],
        "xxh3_128": ["0" * 32, "0" * 32],
    },
    "files": {},
}


def summary_of(content: dict[str, Any], *, compiling: float = 0) -> str:
    written = Written(record=Manifest.from_dict(content), output=Path("OUT"))
    return "\n".join(pack_summary(written, duration_and_compiling(1.234, compiling)))


# Screens


def test_stats_show_padding_now_and_packed_and_the_batch_to_use() -> None:
    lengths = [100] * 900 + [300] * 100  # 120,000 tokens; 9.375 documents of the mean length fill a row
    text = str(figures_of(lengths, max_len=1125, rows=107, lower_bound=106))
    assert text.startswith("1,000 documents, 120,000 tokens\n")
    assert "107 rows of 1,125 tokens, 99.7% full; no packing has fewer than 106" in text
    padding, speedup = text.split("Speed-up over padding")
    assert line_with(padding, "to 1,125 tokens").split()[3:] == ["89.3%"] * 7
    assert line_with(padding, "packed (bfd)").split()[2:] == ["0.3%"] * 7
    assert line_with(padding, "longest in batch").split()[4] == "0%"
    assert line_with(speedup, "to 1,125 tokens").split()[3:] == ["9.35x"] * 7
    assert line_with(text, "  rows  ").split() == ["rows", "1,000", "107"]
    assert line_with(text, "optimizer steps").split() == ["optimizer", "steps", "16", "16"]
    assert "Train with 7 packed rows per step to keep the documents per step." in text


def test_stats_name_what_does_not_fit_or_is_lost() -> None:
    text = str(figures_of([100, 1200, 1300, 50], max_len=1000, rows=3))
    assert (
        line_with(text, "Longer than a row") == "Longer than a row: 2 documents, 50.0%; 500 tokens cut off or dropped"
    )
    assert "cut off" not in str(figures_of([100, 50], max_len=1000, rows=1))


def test_advice_warns_where_one_row_holds_more_than_a_step() -> None:
    text = str(figures_of([10] * 1000, max_len=1000, rows=10, documents_per_step=8))
    assert line_with(text, "documents per step").split()[3:] == ["8", "100.0"]
    assert "A single row holds more" in text


def test_a_single_document_is_shown_too() -> None:
    assert str(figures_of([7], max_len=8, rows=1)).startswith("1 document, 7 tokens\nPacked: 1 row of 8 tokens")


@pytest.mark.parametrize("max_len", [512, 4096, 131072])
def test_stats_of_real_lengths_fit_a_screen(max_len: int, shared_data: Path) -> None:
    for path in sorted((shared_data / "lengths").glob("*.npy")):
        lengths = np.load(path)
        packs = -(-int(np.minimum(lengths, max_len).sum()) // max_len)
        text = str(figures_of(lengths, max_len=max_len, rows=packs))
        assert text.isascii(), path.name
        assert len(text.splitlines()) <= 40, text
        assert max(map(len, text.splitlines())) <= 80, text


def packed_of(rows: list[list[int]], max_len: int, lower_bound: int) -> Figures:
    """Figures of packed rows of these segments, a document each."""
    lengths = [length for row in rows for length in row]
    figures = figures_of(lengths, max_len=max_len, rows=len(rows), lower_bound=lower_bound)
    return replace(figures, is_packed=True, measured_rows=rows_of(rows, max_len))


def test_packed_stats_show_rows_padding_and_attention() -> None:
    text = str(packed_of([[3, 1], [2], [4]], 4, 2))
    assert text.startswith("3 rows of 4 tokens; no packing has fewer than 2\n")
    assert text.isascii()
    assert len(text.splitlines()) <= 40
    assert line_with(text, "documents  ").split()[:3] == ["documents", "4", "1.33"]
    assert "83.3% full" in line_with(text, "the rows are")
    assert line_with(text, "padding  ").split()[:3] == ["padding", "16.7%", "0.67"]
    assert line_with(text, "of the work of a 7B model").startswith("attention")
    assert line_with(text, "largest  ").split()[:2] == ["largest", "1.20"]


def test_packed_rows_fit_80_columns_whatever_their_number() -> None:
    figures = packed_of([[90_000, 110_000], [200_000]], 200_000, 2)
    grouped = {"groups": 12_345, "rows_ungrouped": 3300, "documents_without": 1_234_567}
    many = {"documents": 1_255_190, "tokens": 999_999_999, "documents_untrained": 100, "documents_straddling": 100}
    totals = MANIFEST["totals"] | many | {"segments_untrained": 1_234_567, "groups": grouped}
    summary = MANIFEST | {"options": MANIFEST["options"] | {"group_by": "source"}, "totals": totals}
    for text in (str(figures), summary_of(summary)):
        assert max(map(len, text.splitlines())) <= 80, text


# The summary of a pack


def test_a_summary_is_short_where_nothing_is_lost() -> None:
    nothing = {"tokens_packed": 13525868, "tokens_truncated": 0, "documents_truncated": 0}
    no_reason = {"tokens_dropped": {"too_long": 0}, "documents_dropped": {"empty": 0, "too_long": 0}}
    text = summary_of(MANIFEST | {"totals": MANIFEST["totals"] | nothing | no_reason})
    assert len(text.splitlines()) == 8
    for word in ("mixed", "work", "dropped", "truncated", "packed  "):
        assert word not in text
    lost = MANIFEST["totals"] | nothing | {**no_reason, "documents_dropped": {"empty": 1, "too_long": 0}}
    assert line_with(summary_of(MANIFEST | {"totals": lost}), "dropped").split() == ["dropped,", "empty", "1"]


def test_a_summary_says_how_long_kernels_were_compiled() -> None:
    assert " tokens in 1.23 s, 1.10 s of it compiling\n" in summary_of(MANIFEST, compiling=1.1)
    assert "compiling" not in summary_of(MANIFEST, compiling=0.01)


def test_summary_accounts_for_every_document_and_token() -> None:
    text = summary_of(MANIFEST)
    assert text.startswith("Packed 55,185 documents into 3,304 rows of 4,096 tokens in 1.23 s\n")
    assert text.endswith("\nWritten to OUT")
    for fact in (
        ["documents", "55,190", "16.7"],
        ["split", "50", "55,235"],
        ["truncated", "7"],
        ["dropped,", "empty", "3"],
        ["dropped,", "too", "long", "2"],
        ["tokens", "13,525,868"],
        ["packed", "13,525,668"],
        ["truncated", "120"],
        ["dropped,", "too", "long", "80"],
        ["rows", "3,304"],
        ["shards", "2", "108.2", "MB"],
    ):
        assert any(line.split()[: len(fact)] == fact for line in text.splitlines()), f"{fact} is missing in:\n{text}"
    assert "99.94% full" in text
    assert "99.94% full; no packing has fewer than 3,303" in text


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("options", {"labels": False}, "only packer.load is safe"),
        ("options", {"algorithm": "wrapped"}, "Wrapping cut"),
        ("totals", {"lower_bound": 3302}, "no packing has fewer than 3,302"),
    ],
)
def test_summary_tells_what_is_not_so_in_other_packs(part: str, changes: dict[str, Any], words: str) -> None:
    assert words in summary_of(MANIFEST | {part: MANIFEST[part] | changes})
    assert words not in summary_of(MANIFEST)


def test_summary_says_where_no_packing_has_fewer_rows() -> None:
    assert "full; the fewest possible\n" in summary_of(
        MANIFEST | {"totals": MANIFEST["totals"] | {"lower_bound": 3304}}
    )


def test_summary_warns_where_nothing_is_trained():
    masked = MANIFEST | {"totals": MANIFEST["totals"] | {"tokens_trained": 0}}
    versions = {"tokenizers": "1", "transformers": "1"}
    text = {"columns": ["text"], "train_on": "all", "eos": True, "as_chats": False, "tokenizer": "0" * 32, **versions}
    of_text = {"options": MANIFEST["options"] | {"tokenizer": "T"}, "source": MANIFEST["source"] | {"text": text}}
    for other, advice in (({}, "labels or masks"), (of_text, "--train-on")):
        summary = summary_of(masked | other)
        assert advice in line_with(summary, "NOTHING IS TRAINED")
    assert "NOTHING" not in summary_of(MANIFEST)
