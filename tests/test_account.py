"""Every document and token of a source is counted once, by what became of it."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings

import packer
from tests.helpers import naive
from tests.helpers.effort import FUZZ
from tests.helpers.packed_rows import rows_on_disk
from tests.helpers.packings import Packing, packings, write
from tests.helpers.turns import naive_cuts


def naive_pieces(packing: Packing) -> list[tuple[int, int, int]]:
    """Return the pieces that the long-document policy makes of the source."""
    options, columns = packing.options, packing.columns
    lengths = [len(tokens) for tokens in columns["input_ids"]]
    if options.get("split_at") != "turns":
        return naive.cut_documents(lengths, options["max_len"], options["long"])
    pieces = []
    for document, (length, starts) in enumerate(zip(lengths, columns["turn_starts"], strict=True)):
        cuts = naive_cuts(np.diff([*starts, length]).tolist(), options["max_len"]) if length else []
        bounds = [0, *cuts, length] if length > options["max_len"] else [0, length]
        pieces += [(document, start, end - start) for start, end in pairwise(bounds) if end]
    return pieces


def naive_placed(packing: Packing, pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the pieces that are packed."""
    options, columns = packing.options, packing.columns
    if options["untrained"] == "keep-all":
        return pieces
    if options["algorithm"] == "wrapped":  # cuts documents elsewhere, and so leaves out only whole documents
        whole = {d: [piece for piece in pieces if piece[0] == d] for d, _, _ in pieces}
        trained = {d for d, of in whole.items() if is_trained(columns["labels"][d][of[0][1] : sum(of[-1][1:])])}
        return [piece for piece in pieces if piece[0] in trained]
    return [
        (document, start, length)
        for document, start, length in pieces
        if is_trained(columns["labels"][document][start : start + length])
    ]


def is_trained(labels: list[int]) -> bool:
    """Whether any token after the first is trained."""
    return max(labels[1:], default=-100) >= 0


def in_rows(out: Path) -> list[tuple[int, int, int]]:
    """Return (document, start, length) of every segment on disk."""
    return sorted(
        (document, start, length)
        for row in rows_on_disk(out)
        for document, start, length in zip(
            row["doc_ids"], row["doc_starts"], row.get("seq_tokens", row["seq_lengths"]), strict=True
        )
        if document >= 0
    )


@settings(deadline=None, max_examples=60 * FUZZ)
@given(packings())
def test_the_manifest_has_the_account_of_the_packed_documents(packing):
    pieces = naive_pieces(packing)
    placed = naive_placed(packing, pieces)
    with TemporaryDirectory() as folder:
        path = packing.write(Path(folder))
        manifest = packing.pack(path, Path(folder) / "out")
        assume(manifest is not None)
        found = in_rows(Path(folder) / "out")
    if packing.options["algorithm"] == "wrapped":
        tokens = [
            [(document, start + at) for document, start, size in of for at in range(size)] for of in (found, placed)
        ]
        assert tokens[0] == sorted(tokens[1])
    else:
        assert found == sorted(placed)
    lengths = [len(tokens) for tokens in packing.columns["input_ids"]]
    expected = naive.account(lengths, pieces, found, packing.options["long"])
    if packing.options["untrained"] == "keep-all":
        for by_reason in (expected["documents_dropped"], expected["tokens_dropped"]):
            assert by_reason.pop("untrained") == 0
    assert {name: manifest.totals.to_dict()[name] for name in expected} == expected


def test_a_document_counts_as_split_if_several_of_its_pieces_are_packed(tmp_path):
    # The second piece of the first document and the first piece of the second have no trained token.
    labels = [[1] * 4 + [-100] * 3, [-100] * 4 + [1] * 3, [1] * 7, [-100] * 7]
    source = write(tmp_path / "rows.arrow", {"input_ids": [[1] * 7] * 4, "labels": labels})
    manifest = packer.pack(source, tmp_path / "out", max_len=4, untrained="drop")
    assert manifest.totals.documents_split == 1
    assert manifest.totals.documents_dropped["untrained"] == 1
    assert manifest.totals.tokens_dropped["untrained"] == 3 + 4 + 7


def test_tokens_cut_off_a_document_that_is_dropped_are_truncated(tmp_path):
    labels = [[-100] * 9, [1] * 9]
    source = write(tmp_path / "rows.arrow", {"input_ids": [[1] * 9] * 2, "labels": labels})
    totals = packer.pack(source, tmp_path / "out", max_len=4, untrained="drop", long="truncate").totals
    assert (totals.tokens_truncated, totals.tokens_dropped["untrained"], totals.tokens_packed) == (10, 4, 4)
    assert pa.ipc.open_stream(next((tmp_path / "out").glob("*.arrow"))).read_all().num_rows == 1


@pytest.mark.parametrize("algorithm", ["auto", "wrapped", "sequential"])
def test_the_labels_of_the_tokens_that_are_kept_decide(tmp_path, algorithm):
    """Truncation keeps [1, 2, 3]; the first token begins a segment and is never trained."""
    columns = {
        "input_ids": [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]],
        "labels": [[1, -100, -100, 4, 5, 6], [-100, 2, -100, -100, -100, -100]],
    }
    source = write(tmp_path / "rows.arrow", columns)
    options = {"max_len": 3, "untrained": "drop", "long": "truncate", "algorithm": algorithm}
    manifest = packer.pack(source, tmp_path / algorithm, sync=False, **options)
    assert (manifest.totals.documents_dropped["untrained"], manifest.totals.tokens_trained) == (1, 1)
    assert [row["doc_ids"].tolist() for row in packer.load(tmp_path / algorithm)] == [[1]]
