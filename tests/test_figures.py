"""Every figure of a manifest is counted again, so that `verify` names any that is changed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import packer
from packer.errors import PackerError
from packer.options import PackOptions, options_of
from tests.helpers.chat_templates import EXACT, save_tokenizer
from tests.helpers.json_paths import replaced, values_in
from tests.helpers.packed_rows import seal
from tests.helpers.packings import write

LENGTHS = [5, 4, 30, 0, 7, 3, 3, 11, 12, 2, 26, 1, 9, 8, 13, 6]


def columns_of(lengths: list[int], seed: int) -> dict[str, list]:
    random = np.random.default_rng(seed)
    tokens = [random.integers(1, 1000, length).tolist() for length in lengths]
    labels = [[token if random.random() < 0.3 else -100 for token in ids] for ids in tokens]
    return {"input_ids": tokens, "labels": labels, "source": ["a", "b", None, "c"] * (len(lengths) // 4)}


def paired(columns: dict[str, list]) -> dict[str, list]:
    filled = {name: [values or [1] for values in columns[name]] for name in ("input_ids", "labels")}
    sides = {f"chosen_{name}": values for name, values in filled.items()}
    sides |= {f"rejected_{name}": values[::-1] for name, values in filled.items()}
    return {**sides, "source": columns["source"]}


PACKINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "split": ("arrow", {"shard_size": 300}),
    "untrained dropped": ("parquet", {"untrained": "drop", "algorithm": "bfd"}),
    "truncated": ("arrow", {"long": "truncate", "algorithm": "sequential"}),
    "dropped, aligned": ("jsonl", {"long": "drop", "align": 4, "max_segments": 2}),
    "wrapped": ("jsonl", {"algorithm": "wrapped", "max_segments": 3, "add_column": ["position_ids"]}),
    "pairs": ("parquet", {"pairs": True, "long": "drop", "algorithm": "bfd"}),
    "together": ("arrow", {"group_by": "source", "keep": ["source"], "shard_size": 300}),
}


@pytest.fixture(params=PACKINGS)
def made(request, tmp_path) -> tuple[Path, Any]:
    """(packed, source)."""
    kind, options = PACKINGS[request.param]
    columns = columns_of(LENGTHS, 1)
    if kind == "jsonl":  # leave out the other columns, whose type depends on the first line
        columns = {name: columns[name] for name in ("input_ids", "labels")}
    if options.get("pairs"):
        columns = paired(columns)
    source = write(tmp_path / f"0.{kind}", columns)
    packer.pack(source, tmp_path / "out", max_len=12, sync=False, **options)
    return tmp_path / "out", source


def complaints(packed: Path, source: Any, **options: Any) -> list[str]:
    """Return the faults that `verify` finds with the source; an error counts as a fault."""
    try:
        return list(packer.verify(packed, source, **options))
    except PackerError as error:
        return [str(error)]


def altered(value: Any) -> list[Any]:
    """Return other values of the same type, none for lists and objects."""
    if isinstance(value, (dict, list)):
        return []
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value + 1000, *([value - 1] if value else [])]
    if isinstance(value, float):
        return [value * 1.01, value * 0.99]
    return [f"{value}x"] if isinstance(value, str) else [1]


def not_in_the_rows(path: tuple[Any, ...], content: dict[str, Any], value: Any) -> bool:
    """Whether a figure cannot be counted: only the planner knows it, or it describes files and not documents."""
    if path[:2] == ("source", "files") and path[-1] in ("name", "bytes"):
        return True
    if path[-1] == "lower_bound":  # which a solver may have proved
        return PackOptions.from_dict(content["options"]).algorithm == "auto"
    return path[-1] == "rows_ungrouped"


def unnoticed_changes(packed: Path, source: Any, parts: tuple[str, ...], *, most: int = 2, **options: Any) -> list:
    """Change every value in some parts of the manifest, and return the changes that no fault names."""
    content = json.loads((packed / "manifest.json").read_text())
    unnoticed = []
    for path, value in values_in({name: content[name] for name in parts}):
        for other in altered(value)[:most]:
            seal(packed, replaced(content, path, other))
            if not complaints(packed, source, **options) and not not_in_the_rows(path, content, other):
                unnoticed.append((path, value, other))
    return unnoticed


def test_a_changed_figure_is_named(made):
    packed, source = made
    assert complaints(packed, source) == []
    assert unnoticed_changes(packed, source, ("source", "totals", "shards", "files")) == []


def test_a_changed_figure_of_text_is_named(tmp_path):
    tokenizer = save_tokenizer(tmp_path / "ours", template=EXACT["chatml"])
    records = [{"prompt": "The qui", "completion": "ck fox"}, {"prompt": "The fox", "completion": ""}]
    path = tmp_path / "one.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    manifest = packer.pack(path, tmp_path / "out", max_len=16, tokenizer=tokenizer, eos=False, sync=False)
    assert manifest.totals.documents_straddling == manifest.totals.documents_untrained == 1
    versions = {"tokenizers", "transformers", "jinja2"}  # may differ, because tokens are compared
    unnoticed = unnoticed_changes(tmp_path / "out", path, ("source", "totals"), most=1, tokenizer=tokenizer)
    assert [change for change in unnoticed if change[0][-1] not in versions] == []


def test_a_missing_total_is_named(made):
    packed, source = made
    content = json.loads((packed / "manifest.json").read_text())
    for name in content["totals"]:
        seal(packed, replaced(content, ("totals", name), ...))
        assert any(name in fault for fault in complaints(packed, source)), name


# Options that rows contradict even if they have their default, which the manifest does not contain.
ALWAYS_COMPARED = {"max_len", "max_segments", "long", "pad_id", "labels", "add_column", "input_column", "labels_column"}

# Options that only decide between equally valid rows.
NOT_IN_THE_ROWS = {
    "seed": 1,
    "shard_size": 10**6,
    "algorithm": "spfhp",
}


def test_an_option_that_the_rows_contradict_is_named(made):
    packed, source = made
    content = json.loads((packed / "manifest.json").read_text())
    made_with = PackOptions.from_dict(content["options"])
    options = {name: getattr(made_with, name) for name in options_of(PackOptions)}
    options["add_column"] = list(made_with.add_column)
    others = {
        "max_len": [11, 24], "max_segments": [1], "long": ["split", "truncate", "drop"], "pad_id": [7],
        "labels": [False], "add_column": [["position_ids"], []], "input_column": ["tokens"], "labels_column": ["loss"],
        "align": [2], "untrained": ["keep", "drop"],
        "keep": [["weight"]], "group_by": ["weight"],
    }  # fmt: skip
    unnoticed = []
    for name, values in others.items():
        for other in values:
            if options[name] == other or (name not in content["options"] and name not in ALWAYS_COMPARED):
                continue
            seal(packed, replaced(content, ("options", name), other))
            if not complaints(packed, source):
                unnoticed.append((name, other))
    if options["algorithm"] == "wrapped":
        unnoticed = [(name, other) for name, other in unnoticed if name != "pad_id"]  # hardly any padding
    assert unnoticed == []
    for name, other in NOT_IN_THE_ROWS.items():
        assert options[name] != other


@pytest.mark.parametrize("change", ["fewer", "twice", "another order", "no list"])
def test_the_files_for_datasets_list_every_shard_once(tmp_path, change):
    source = write(tmp_path / "rows.arrow", columns_of(LENGTHS, 1))
    packed = tmp_path / "out"
    packer.pack(source, packed, max_len=12, shard_size=300, sync=False)
    state = json.loads((packed / "state.json").read_text())
    files = state["_data_files"]
    assert len(files) > 2
    state["_data_files"] = {
        "fewer": files[:-1], "twice": [*files, files[0]], "another order": files[::-1], "no list": None
    }[change]  # fmt: skip
    (packed / "state.json").write_text(json.dumps(state, indent=1) + "\n")
    content = json.loads((packed / "manifest.json").read_text())
    content["files"]["state.json"] = xxhash.xxh3_128_hexdigest((packed / "state.json").read_bytes())
    seal(packed, content)
    assert list(packer.verify(packed)) == ["state.json does not list the shards of the manifest"]
