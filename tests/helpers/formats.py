"""What `tests/test_formats.py` shares with other tests."""

import numpy as np
from hypothesis import strategies as st

from packer.column_names import NO_LOSS, PADDING
from tests.helpers import naive

row_segments = st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda lengths: sum(lengths) <= 8)


def lists(value):
    """Arrays and tensors as lists, however deep."""
    if isinstance(value, dict):
        return {name: lists(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [lists(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


def drawn_rows(lengths, has_labels, data):
    """Rows of 8 places with segments of these lengths, of documents that may be split, as lists and as arrays."""
    rows = []
    for segments in lengths:
        tail = 8 - sum(segments)
        row = {
            "input_ids": data.draw(st.lists(st.integers(0, 9), min_size=8, max_size=8)),
            "seq_lengths": segments + [tail] * (tail > 0),
            "doc_ids": [data.draw(st.integers(0, 3)) for _ in segments] + [PADDING] * (tail > 0),
        }
        if has_labels:
            labels = naive.masked_labels([row["input_ids"]], [segments])[0]
            masked = data.draw(st.lists(st.booleans(), min_size=8, max_size=8))
            row["labels"] = [NO_LOSS if hide else label for hide, label in zip(masked, labels, strict=True)]
        rows.append(row)
    return rows, [{name: np.array(values, np.int32) for name, values in row.items()} for row in rows]


many_rows = st.lists(row_segments, min_size=1, max_size=4)
