"""What is imported, and what is not until it is needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.kept import write
from tests.helpers.pack import made_documents

ROOT = Path(__file__).parent.parent
HEAVY = {"numba", "torch", "datasets", "transformers", "pandas", "polars", "scipy", "jinja2"}
ARRAYS = {"numpy", "pyarrow"}

COMMAND = "from packer.cli import cli\ntry: cli({})\nexcept SystemExit: pass"
LOADED = """
dataset = packer.load(sys.argv[1])
dataset._repr_html_()
list(packer.batches(dataset, rows=2, tensors="numpy")), packer.static_shape(dataset, rows=2)
packer.BatchSampler(dataset, global_batch=4, balance=1).imbalance()
"""
CASES = {
    "names": ("packer.trainers, dir(packer.attention)", HEAVY | ARRAYS),
    "options": ("import packer.options", HEAVY | ARRAYS | {"click"}),
    **{
        " ".join(line): (COMMAND.format(line), HEAVY | ARRAYS | {"tqdm", "xxhash"})
        for line in (["--help"], ["pack", "--help"], ["--version"], ["pack"])
    },
    "loading": (LOADED, HEAVY | {"xxhash", "click", "tqdm", "multiprocessing", "subprocess"}),
    "solving with heuristics": (
        "import numpy; from packer.algorithms.optimal import auto, solve\n"
        "[each(numpy.array([0, 4, 2, 0, 1])) for each in (auto, solve)]",
        {"highspy"},
    ),
}


def imported_by(code: str, *arguments: object) -> set[str]:
    """Run code in a process; return the names of the packages that it imported."""
    code = f"import sys, packer\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_imported_before_it_is_needed(packed, name):
    code, forbidden = CASES[name]
    assert not imported_by(code, packed) & forbidden


PACKED = """
sources = json.loads(sys.argv[2])
for number, (source, options) in enumerate(sources):
    out = f"{sys.argv[1]}/{number}"
    packer.pack(source, out, sync=False, **options)
    assert "lengths_column" in options or packer.verify(out, source)
    assert "pandas" not in sys.modules, options
from packer.cli import writing_commands as demo
demo.standard_library_texts = lambda: ["import this", "import that"]
demo.write_corpus(__import__("pathlib").Path(sys.argv[1], "demo"))
"""


def test_packing_does_not_wait_for_pandas(tmp_path):
    """Masks, kept columns, groups, pairs, lengths alone and the demonstration."""
    documents = [ids or [1] for ids in made_documents(50)]
    columns = {
        "input_ids": documents,
        "loss_mask": [[at % 2 == 0 for at in range(len(ids))] for ids in documents],
        "kind": [[*range(len(ids))] for ids in documents],
        "source": [str(at // 4) for at in range(50)],
        "clean": [at % 3 == 0 for at in range(50)],
    }
    names = [f"{side}_{name}" for side in ("chosen", "rejected") for name in ("input_ids", "labels")]
    pairs = {name: documents[at // 2 :: 2] for at, name in enumerate(names)}
    plain = {name: values for name, values in columns.items() if name not in ("loss_mask", "kind")}
    options = {"max_len": 64, "keep": ["source", "clean"], "group_by": "source"}
    per_token, trees = {**options, "keep_tokens": ["kind"]}, {"max_len": 256, "pairs": True, "long": "drop"}
    cases = []
    for name, kind, made, more in (  # lists of JSON besides the tokens are looked at by pandas, if there is one
        ("a", "jsonl", plain, options),
        ("b", "arrow", columns, per_token),
        ("c", "parquet", columns, per_token),
        ("d", "arrow", pairs, trees),
        ("e", "parquet", pairs, trees),
    ):
        (tmp_path / name).mkdir()
        cases.append((str(write(tmp_path / name, kind, made)), more))
    (tmp_path / "lengths.csv").write_text("tokens\n3\n5\n")
    cases.append((str(tmp_path / "lengths.csv"), {"lengths_column": "tokens", "max_len": 8}))
    assert "pandas" not in imported_by("import json" + PACKED, tmp_path, json.dumps(cases))
