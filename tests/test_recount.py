"""The manifest is a recount: every field but three is counted again from the source and the rows, token by token."""

import json
from itertools import pairwise
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import xxhash
from hypothesis import assume, event, example, given, settings

import packer
from packer.options import PackOptions, options_of
from tests.helpers import naive
from tests.helpers.effort import FUZZ
from tests.helpers.exchanges import naive_starts
from tests.helpers.packed_rows import rows_on_disk
from tests.helpers.packings import Packing, packings


def naive_pieces(packing: Packing) -> list[tuple[int, int, int]]:
    """Return the (document, start, length) that the long-document policy makes of the source."""
    options, columns = packing.options, packing.columns
    lengths = [len(tokens) for tokens in columns["input_ids"]]
    if not reads_exchanges(packing):
        return naive.cut_documents(lengths, options["max_len"], options["long"])
    pieces = []
    for document, (length, starts) in enumerate(zip(lengths, columns["exchange_starts"], strict=True)):
        bounds = [*naive_starts(np.diff([*starts, length]).tolist(), options["max_len"]), length]
        pieces += [(document, start, end - start) for start, end in pairwise(bounds) if end]
    return pieces


def reads_exchanges(packing: Packing) -> bool:
    """Whether documents are split where exchanges begin."""
    options = packing.options
    splits = options["long"] == "split" and options["algorithm"] != "wrapped" and options.get("split_at") != "tokens"
    return splits and "exchange_starts" in packing.columns


def naive_placed(packing: Packing, pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the pieces that are packed."""
    options, labels = packing.options, packing.columns["labels"]
    if options["untrained"] == "keep-all":
        return pieces
    if options["algorithm"] == "wrapped":  # cuts documents elsewhere, and so leaves out only whole documents
        whole = {d: [piece for piece in pieces if piece[0] == d] for d, _, _ in pieces}
        trained = {d for d, of in whole.items() if is_trained(labels[d][of[0][1] : sum(of[-1][1:])])}
        return [piece for piece in pieces if piece[0] in trained]
    return [piece for piece in pieces if is_trained(labels[piece[0]][piece[1] : sum(piece[1:])])]


def is_trained(labels: list[int]) -> bool:
    """Whether any token after the first is trained."""
    return max(labels[1:], default=-100) >= 0


def segments_of(row: dict) -> list[tuple[int, int, int, int]]:
    """Return (document, start, length, place) of every segment of a row."""
    places = [0, *np.cumsum(row["seq_lengths"]).tolist()]
    lengths = row.get("seq_tokens", row["seq_lengths"])
    found = zip(row["doc_ids"], row["doc_starts"], lengths, places[:-1], strict=True)
    return [segment for segment in found if segment[0] >= 0]


def counted_in(rows: list[dict], columns: dict[str, list]) -> dict[str, int]:
    """Count what a shard holds, and compare its segments with the source."""
    counts = {"rows": len(rows), "tokens": 0, "trained": 0, "untrained_segments": 0, "trained_later": 0}
    counts["largest_id"] = max(max(row[name]) for row in rows for name in ("input_ids", "labels"))
    for row in rows:
        counts["trained"] += sum(label != -100 for label in row["labels"])
        for document, start, length, place in segments_of(row):
            here, there = slice(place, place + length), slice(start, start + length)
            assert row["input_ids"][here] == columns["input_ids"][document][there]
            assert row["labels"][here] == [-100, *columns["labels"][document][there][1:]]
            counts["tokens"] += length
            counts["untrained_segments"] += max(row["labels"][here]) == -100
            counts["trained_later"] += sum(label != -100 for label in row["labels"][here]) if start else 0
    return counts


def expected_manifest(packing: Packing, path: Path, out: Path) -> dict:
    """Count everything in a manifest again."""
    columns, options = packing.columns, packing.options
    lengths = [len(tokens) for tokens in columns["input_ids"]]
    files = sorted(out.glob("*.arrow"))
    shards = [
        {
            **counted_in(rows_on_disk(out, file.name), columns),
            "bytes": file.stat().st_size,
            "xxh3_128": xxhash.xxh3_128_hexdigest(file.read_bytes()),
        }
        for file in files
    ]
    rows = rows_on_disk(out)
    found = sorted(segment[:3] for row in rows for segment in segments_of(row))
    pieces = naive_pieces(packing)
    placed = naive_placed(packing, pieces)
    if options["algorithm"] == "wrapped":
        tokens = [[(d, start + at) for d, start, size in of for at in range(size)] for of in (found, placed)]
        assert tokens[0] == sorted(tokens[1])
    else:
        assert found == sorted(placed)
    totals = naive.account(lengths, pieces, found, options["long"])
    if options["untrained"] == "keep-all":
        for by_reason in (totals["documents_dropped"], totals["tokens_dropped"]):
            assert by_reason.pop("untrained") == 0
    totals |= {
        "segments": len(found),
        "rows": len(rows),
        "efficiency": totals["tokens_packed"] / (len(rows) * options["max_len"]),
        "tokens_trained": sum(shard["trained"] for shard in shards),
        "segments_untrained": sum(shard["untrained_segments"] for shard in shards),
        "tokens_trained_later": sum(shard["trained_later"] for shard in shards),
        "largest_id": max(shard["largest_id"] for shard in shards),
    }
    if options["long"] == "truncate":
        cut_off = [label for labels in columns["labels"] for label in labels[options["max_len"] :]]
        totals["tokens_trained_truncated"] = sum(label != -100 for label in cut_off)
    if "group_by" in options:
        names = columns["source"]
        ungrouped = {name: value for name, value in options.items() if name != "group_by"}
        totals["groups"] = {
            "groups": len({*names} - {None}),
            "documents_without": names.count(None),
            "rows_ungrouped": packer.pack(path, out.with_name("ungrouped"), sync=False, **ungrouped).rows,
        }
    defaults = {name: option.default for name, option in options_of(PackOptions).items()}
    source = {
        "files": [{"name": path.name, "bytes": path.stat().st_size, "rows": len(lengths), "tokens": sum(lengths)}],
        "documents": len(lengths),
        "tokens": sum(lengths),
        "labels": True,
        "lengths_xxh3_128": xxhash.xxh3_128_hexdigest(np.array(lengths, np.int32)),
    }
    unread = {"input_ids", "labels", *({} if reads_exchanges(packing) else {"exchange_starts"})}
    if extra := [name for name in columns if name not in unread]:
        source["columns"] = extra
    return {
        "format_version": 2,
        "options": {
            **{name: value for name, value in options.items() if value not in (defaults[name], [])},
            "pad_id": 0,
        },
        "source": source,
        "totals": totals,
        "shards": {name: [shard[name] for shard in shards] for name in shards[0]},
        "files": {
            name: xxhash.xxh3_128_hexdigest((out / name).read_bytes()) for name in ("dataset_info.json", "state.json")
        },
    }


def of_labels(labels: list[list[int]], **options) -> Packing:
    """Return a packing of documents with these labels."""
    columns = {"input_ids": [[*range(1, len(each) + 1)] for each in labels], "labels": labels}
    options = {"max_len": 4, "algorithm": "auto", "long": "split", "untrained": "drop", "shard_size": 1000, **options}
    return Packing(columns=columns, kind="arrow", options=options)


@settings(deadline=None, max_examples=50 * FUZZ)
@given(packings())
@example(of_labels([[1] * 4 + [-100] * 3, [-100] * 4 + [1] * 3, [1] * 7, [-100] * 7]))  # some pieces are untrained
@example(of_labels([[-100] * 9, [1] * 9], long="truncate"))  # tokens are cut off a document that is then dropped
@example(of_labels([[1, -100, -100, 4, 5, 6], [-100, 2, -100, -100, -100, -100]], max_len=3, long="truncate"))
def test_the_manifest_is_the_recount(packing):
    with TemporaryDirectory() as folder:
        path, out = packing.write(Path(folder)), Path(folder) / "out"
        manifest = packing.pack(path, out)
        assume(manifest is not None)
        event(packing.options["algorithm"])
        content = json.loads((out / "manifest.json").read_text())
        assert content.pop("checksum")
        assert content == manifest.to_dict()
        totals = content["totals"]
        bound = totals.pop("lower_bound")  # which only the planner knows
        assert content == expected_manifest(packing, path, out)
        assert ceil(totals["tokens_packed"] / packing.options["max_len"]) <= bound <= totals["rows"]
        assert packing.verify(path, out) == []
