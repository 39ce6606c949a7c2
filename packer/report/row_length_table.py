"""Table of several row lengths, and the sentence that recommends one."""

from packer.report.plain_text import count_of, folded, number, percent, render_table
from packer.stats import RowLengths
from packer.stats.row_lengths import TOLERATED


def render_row_lengths(found: RowLengths) -> str:
    """Show what rows of each length cost, in 80 columns, and which is the smallest that suffices."""
    loses = any(length.tokens_lost for length in found.lengths)
    head = ["max_len", "rows", "split", "no context", *(["lost"] if loses else [])]
    table = [[*head, "keys", "attention", "largest", "rows/step"]]
    for length in found.lengths:
        counts = [length.tokens_without_context, *([length.tokens_lost] if loses else [])]
        cells = [percent(count / length.tokens, decimals=2) for count in counts]
        table.append(
            [
                f"{length.max_len:,}",
                f"{length.packs:,}",
                f"{length.documents_split:,}",
                *cells,
                number(length.keys_per_token),
                percent(length.attention_share, decimals=2),
                f"{length.work_peak:.2f}",
                f"{length.packed_rows_per_step:,}",
            ]
        )
    return "\n".join(
        [
            f"{count_of(found.documents, 'document')}, {count_of(found.tokens, 'token')}; packed by {found.algorithm}",
            render_table(table, align=">" * len(table[0])),
            *map(folded, _notes(found, loses=loses)),
            folded(recommend_length(found)),
        ]
    )


def _notes(found: RowLengths, *, loses: bool) -> list[str]:
    documents = count_of(found.documents_per_step, "document")
    return [
        "split: documents in several segments; no context: their tokens in all but the first",
        *(["lost: tokens that are truncated or dropped"] if loses else []),
        "keys: those that a token attends to, on average; attention: its share of the work of a 7B model",
        f"largest: work of the largest row over the mean; rows/step: those that keep {documents}",
    ]


def recommend_length(found: RowLengths) -> str:
    """Return the sentence that names the smallest length that cuts few tokens, or the one that cuts the fewest."""
    kinds = {"without context": "tokens_without_context", "lost": "tokens_lost"}
    named = [words for words, name in kinds.items() if any(getattr(length, name) for length in found.lengths)]
    cut = " or ".join(named) or "without context"
    limit = f"less than {TOLERATED:.0%} of the tokens {cut}"
    if found.smallest is not None:
        return f"{found.smallest.max_len:,} is the smallest with {limit}."
    least = min(found.lengths, key=lambda length: length.cut_share)
    return f"None of these has {limit}; {least.max_len:,} comes closest: {percent(least.cut_share, decimals=2)}."
