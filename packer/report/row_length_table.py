"""Table of several row lengths, and the sentence that recommends one."""

from collections.abc import Sequence

from packer.report.plain_text import count_of, folded, number, percent, render_table
from packer.stats.row_lengths import TOLERATED, RowLengths


def render_row_lengths(found: RowLengths) -> str:
    """Show what rows of each length cost, in 80 columns, and which is the smallest that suffices."""
    table = length_table(found)
    return "\n".join(
        [
            f"{count_of(found.documents, 'document')}, {count_of(found.tokens, 'token')}; packed by {found.algorithm}",
            render_table(table, align=">" * len(table[0])),
            *map(folded, _notes(found, table[0])),
            folded(recommend_length(found)),
        ]
    )


def length_table(found: RowLengths) -> list[list[str]]:
    """Return a head, and a line for each length; `full` is left out if rows are, and `lost` if nothing is."""
    lengths = found.lengths
    left_out = {"full"} if found.are_full else set()
    if not any(length.tokens_lost for length in lengths):
        left_out.add("lost")
    if not (found.are_full or any(length.documents_split for length in lengths)):  # 80 columns do not hold all
        left_out |= {"split", "no context"}
    columns = {
        "max_len": [f"{length.max_len:,}" for length in lengths],
        "rows": [f"{length.packs:,}" for length in lengths],
        "full": [percent(length.efficiency) for length in lengths],
        "split": [f"{length.documents_split:,}" for length in lengths],
        "no context": [_share(length.tokens_without_context / length.tokens) for length in lengths],
        "lost": [_share(length.tokens_lost / length.tokens) for length in lengths],
        "keys": [number(length.keys_per_token) for length in lengths],
        "attention": [_share(length.attention_share) for length in lengths],
        "largest": [f"{length.work_peak:.2f}" for length in lengths],
        "rows/step": [f"{length.packed_rows_per_step:,}" for length in lengths],
    }
    shown = [[name, *cells] for name, cells in columns.items() if name not in left_out]
    return [list(line) for line in zip(*shown, strict=True)]


def _share(value: float) -> str:
    return percent(value, decimals=2)


def _notes(found: RowLengths, head: Sequence[str]) -> list[str]:
    documents = count_of(found.documents_per_step, "document")
    notes = {
        "full": "full: share of the rows that holds tokens",
        "split": "split: documents in several segments; no context: their tokens in all but the first",
        "lost": "lost: tokens that are truncated or dropped",
        "keys": "keys: those that a token attends to, on average; attention: its share of the work of a 7B model",
        "largest": f"largest: work of the largest row over the mean; rows/step: those that keep {documents}",
    }
    return [note for column, note in notes.items() if column in head]


def recommend_length(found: RowLengths) -> str:
    """Return the sentence that names the smallest length that cuts few tokens, or the one that cuts the fewest."""
    kinds = {"without context": "tokens_without_context", "lost": "tokens_lost"}
    named = [words for words, name in kinds.items() if any(getattr(length, name) for length in found.lengths)]
    cut = " or ".join(named) or "without context"
    limit = f"less than {TOLERATED:.0%} of the tokens {cut}"
    if found.smallest is not None:
        return f"{found.smallest.max_len:,} is the smallest with {limit}."
    least = min(found.lengths, key=lambda length: length.cut_share)
    return f"None of these has {limit}; {least.max_len:,} comes closest: {_share(least.cut_share)}."
