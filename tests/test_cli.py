"""The command: what it prints where, its exit codes, its help."""

import json
import platform
import re
from pathlib import Path
from runpy import run_path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import packer
from packer.cli import COMMANDS, cli
from packer.options import PackOptions, options_of
from packer.options.option import HEADINGS
from packer.output.job import name_after
from tests.helpers import naive
from tests.helpers.cli import (
    ROOT,
    run_process,
    source,  # noqa: F401 (fixtures)
)
from tests.helpers.commands import refused, run, succeeded
from tests.helpers.pack import hashes, made_documents, save_arrow


@pytest.fixture
def packed(source: Path) -> Path:
    packer.pack(source, max_len=64)
    return Path("rows-packed-64")


# Help and usage


def test_help_names_every_command():
    text = succeeded("--help")
    for name in COMMANDS:
        assert f"\n  {name} " in text
        assert COMMANDS[name].get_short_help_str(200) not in ("", ".")
    assert succeeded("-h") == text
    assert "\n  packer pack dataset --max-len 4096  " in text, "examples keep their lines"
    assert text.count("...") == 1, "no sentence is cut off: there is only [ARGS]..."
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_documents_every_option_in_80_columns(name):
    command = COMMANDS[name]
    has_many = any(parameter.name == "help_all" for parameter in command.params)
    text = succeeded(name, "--help-all" if has_many else "--help")
    assert max(map(len, text.splitlines())) <= 80
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[-1] in text
            assert parameter.help, parameter.opts
            assert parameter.help.endswith((".", "]")), parameter.opts
        else:
            assert parameter.make_metavar(click.Context(command)) in text


def test_the_options_of_pack_reach_the_bytes_or_are_known_not_to():
    options = {parameter.name for parameter in COMMANDS["pack"].params}
    shaping = options_of(PackOptions).keys() - {"is_holdout", "weights_per"}
    assert shaping <= options
    others = "dataset output as_json debug help_all workers sync overwrite for_trainer"
    assert options - shaping == {*others.split(), "ranks", "engine"}


def test_what_commands_share_means_the_same():
    pack, stats = ({option.name: option for option in COMMANDS[name].params} for name in ("pack", "stats"))
    shared = ("max_segments", "long", "split", "input_column", "labels_column", "as_json", "debug")
    for name in (*shared, "dataset", "group_by", "seed"):
        assert pack[name].to_info_dict() == stats[name].to_info_dict()
    for name in ("limit", "align"):
        assert pack[name].to_info_dict() == stats[name].to_info_dict()


def test_pack_lists_its_options_under_headings_the_required_first():
    lines = succeeded("pack", "--help-all").splitlines()
    assert [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")] == list(HEADINGS)
    assert lines[lines.index("Required:") + 1].startswith("  --max-len N ")


def test_help_shows_what_people_use_and_help_all_the_rest():
    usual, every = succeeded("pack", "--help"), succeeded("pack", "--help-all")
    assert "packer pack chats.jsonl --tokenizer" in usual
    for option in ("--max-len", "--tokenizer", "--output", "--long", "--help-all"):
        assert option in usual
    assert "--shard-size" in every
    assert "--shard-size" not in usual
    assert usual.count("\n  -") < 15


def test_the_pages_of_commands_are_those_of_the_declarations():
    reference = ROOT / "docs/reference"
    written = [reference / "commands.md", *(reference / "commands").iterdir()]
    found = {str(page.relative_to(reference)): page.read_text() for page in written}
    made = run_path(str(ROOT / "docs/make_commands.py"))["commands_pages"]()
    assert found == made, "write them anew: python docs/make_commands.py"


def test_the_page_of_fields_is_that_of_the_table():
    made = run_path(str(ROOT / "docs/make_fields.py"))["fields_page"]()
    assert (ROOT / "docs/reference/fields.md").read_text() == made, "write it anew: python docs/make_fields.py"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("frobnicate", "No such command 'frobnicate'"),
        ("packs rows.arrow", "No such command 'packs'. Did you mean 'pack'?"),
        ("pack --max-len 64", "Give a DATASET; see"),
        ("pack rows.arrow", "Missing option '--max-len'"),
        ("pack rows.arrow --max-len 0", "--max-len: 0 is not a whole number from 1 to 16777216"),
        ("pack rows.arrow --max-len many", "--max-len: 'many' is not a whole number from 1"),
        ("pack rows.arrow --max-len 4kb", "--max-len: '4kb' is not a whole number"),
        ("pack rows.arrow --max-len 1.0001k", "--max-len: '1.0001k' is not a whole number"),
        ("pack rows.arrow --max_len 3", "Did you mean '--max-len'?"),
        ("show rows first", "[ROW]...: 'first'"),
        ("show rows 0 --document 1", "Give one of ROW, --document and --step"),
        ("verify", "Missing argument 'PACKED'"),
        *(
            (f"pack rows.arrow --max-len 64 {options}", words)
            for options, words in {
                "--shard-size big": "--shard-size: 'big' is not a size",
                "--shard-size 0": "--shard-size: 0 is not a whole number",
                "--add-column mask": "--add-column: 'mask' is not one of position_ids",
                "--algorithm magic": "--algorithm: 'magic'",
                "--long keep": "--long: 'keep'",
                "--workers 0": "--workers",
                "--seed -1": "--seed",
                "--max-segments 0": "--max-segments",
                "--align 3": "--align is 3, and --max-len 64 is not a multiple of it",
                "--ranks 3": "'3' is no rank: write R/N",
            }.items()
        ),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(source, line, words):
    result = run(*line.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert [path.name for path in Path().iterdir()] == ["rows.arrow"]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (2, "frobnicate"),
        (2, "pack rows.arrow"),
        (2, "stats rows.arrow --max-len 1,x"),
        (2, "pack rows.arrow --max-len 64 --align 3"),
        (2, "show rows --no-such-option"),
        (1, "pack nowhere.arrow --max-len 64"),
        (1, "stats nowhere.arrow"),
        (1, "verify nowhere"),
    ],
)
def test_with_json_an_error_is_json_too(source, code, line):
    result = run(*line.split(), "--json")
    content = json.loads(result.stdout)
    assert result.exit_code == content["exit_code"] == code
    assert content["error"] in result.stderr


def test_files_that_options_name_are_a_fault_of_what_is_found(source):
    options = ("--chat-template", "nowhere.jinja")
    result = run("pack", source, "--max-len", 64, "--tokenizer", "T", *options, "--json")
    assert result.exit_code == json.loads(result.stdout)["exit_code"] == 1
    assert result.stderr == f"packer: {json.loads(result.stdout)['error']}\n"


def test_lengths_in_tokens_have_units(source):
    assert json.loads(succeeded("pack", source, "--max-len", "0.25k", "--json"))["options"]["max_len"] == 256
    assert "  1,024  " in succeeded("stats", source, "--max-len", "1K,64")
    packer.pack(source, "long", max_len="2k")
    assert packer.load("long").manifest.options.max_len == 2048


def test_version():
    first, *others = succeeded("--version").splitlines()
    assert first == f"packer {packer.__version__}, Python {platform.python_version()}"
    assert f"pyarrow {pa.__version__}" in others


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("command", [["-m", "packer"], [str(ROOT / "cli.py")]])
def test_other_ways_to_the_same_command(source, command):
    for arguments, code in ((["--help"], 0), (["pack", str(source), "--max-len", "64"], 0), (["pack", "nowhere"], 2)):
        done = run_process(*command, *arguments)
        assert done.returncode == code
    assert done.stderr == "packer: Missing option '--max-len'; see packer pack --help\n"
    assert Path("rows-packed-64", "manifest.json").is_file()


# pack


def test_pack_prints_the_account_on_stdout_and_nothing_on_stderr(source):
    result = run("pack", source, "--max-len", 64)
    assert result.stdout.startswith("Packed 293 documents into ")
    assert result.stdout.endswith("Written to rows-packed-64\n")
    assert result.stderr == ""


def test_pack_json_is_the_manifest_and_where_it_is(source):
    content = json.loads(succeeded("pack", source, "--max-len", 64, "--json"))
    assert content["output"] == "rows-packed-64"
    assert content["found_complete"] is False
    assert content["seconds"] > 0
    manifest = json.loads(Path("rows-packed-64", "manifest.json").read_bytes())
    del manifest["checksum"]
    assert {name: content[name] for name in manifest} == manifest
    others = {"output", "found_complete", "seconds", "compiling"}
    assert set(content) - set(manifest) == others


def test_progress_goes_to_stderr_line_by_line_where_that_is_no_terminal(source, monkeypatch):
    monkeypatch.setattr("packer.progress.INTERVAL", 0)
    result = run("pack", source, "--max-len", 64, "--json")
    lines = result.stderr.splitlines()
    assert all(re.fullmatch(r"packer: [a-z]+ \d+%, \S+ of \S+ [a-z]+, \S+ a second", line) for line in lines), lines
    assert any(line.startswith("packer: write 100%, ") and " tokens, " in line for line in lines)
    assert json.loads(result.stdout)["output"] == "rows-packed-64"


ON_A_TERMINAL = """
import os, pty, sys, time
command, cache = sys.argv[1:3]
pid, terminal = pty.fork()
if not pid:
    os.environ["NUMBA_CACHE_DIR"] = cache
    os.execv(sys.executable, [sys.executable, "-m", "packer", *command.split()])
shown = b""
while True:
    try:
        part = os.read(terminal, 1 << 16)
    except OSError:
        break
    if not part:
        break
    shown += part
print(shown.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_terminal_is_told_that_kernels_are_compiled_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_arrow(tmp_path / "rows.arrow", [[7] * 999] * 2000)
    Path("terminal.py").write_text(ON_A_TERMINAL)
    pack = "pack rows.arrow --max-len 1000 --overwrite"
    shown = [run_process("terminal.py", pack, tmp_path / "cache").stdout for _ in range(2)]
    assert ["packer: compiling kernels, once" in text for text in shown] == [True, False]
    assert all("Written to" in text for text in shown)


def test_without_labels_the_summary_says_that_only_the_loader_is_safe(source):
    assert "only packer.load is safe" not in succeeded("pack", source, "--max-len", 64)
    text = succeeded("pack", source, "--max-len", 64, "--no-labels", "--overwrite")
    assert "No labels were written: only packer.load is safe." in text
    assert packer.load("rows-packed-64").column_names == ["input_ids", "seq_lengths", "doc_ids", "doc_starts"]


@pytest.mark.parametrize("add_column", ["position_ids", "labels,position_ids", "position_ids, labels"])
def test_an_added_column_holds_position_ids(source, add_column):
    succeeded("pack", source, "--max-len", 64, "--add-column", add_column)
    dataset = packer.load("rows-packed-64")
    assert dataset.column_names[:3] == ["input_ids", "labels", "position_ids"]
    starts = dataset[0]["seq_lengths"].cumsum()[:-1]
    assert not dataset[0]["position_ids"][starts].any()


def test_the_command_and_the_function_write_the_same_bytes(source):
    succeeded("pack", source, "--max-len", 64, "--seed", 3, "--shard-size", "10KB")
    packer.pack(source, "by-function", max_len=64, seed=3, shard_size="10KB")
    assert hashes(Path("rows-packed-64")) == hashes(Path("by-function"))


def names_output(dataset: object, split: str | None = None) -> str:
    return str(name_after(dataset, "packed-64", split))


@pytest.mark.parametrize(
    ("dataset", "output"),
    [
        ("rows.arrow", "rows-packed-64"),
        ("rows.jsonl.gz", "rows-packed-64"),
        ("rows.ndjson.zst", "rows-packed-64"),
        ("rows.de.jsonl", "rows.de-packed-64"),
        ("rows.v2.parquet", "rows.v2-packed-64"),
        ("rows", "rows-packed-64"),
        ("folder/rows.parquet", "folder/rows-packed-64"),
        ("folder", "folder-packed-64"),
        ("folder/", "folder-packed-64"),
        ("folder.v1", "folder.v1-packed-64"),
        ("rows.d.parquet", "rows.d-packed-64"),
        ("org/dataset", "dataset-packed-64"),
        ("org/dataset.en", "dataset.en-packed-64"),
    ],
)
def test_the_output_is_named_after_the_source(tmp_path, monkeypatch, dataset, output):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "folder.v1", "rows.d.parquet"):
        Path(folder).mkdir()
    if "." in dataset and not Path(dataset).is_dir() and not dataset.startswith("org"):
        Path(dataset).touch()
    Path("rows.x").touch()
    if dataset == "rows.d.parquet":  # a folder named like a file keeps its name
        output = "rows.d.parquet-packed-64"
    assert names_output(dataset) == output
    assert names_output(dataset, split="train") == output.replace("-packed", "-train-packed")


def test_the_output_of_this_folder_or_the_one_above_lies_beside_it(tmp_path, monkeypatch):
    (tmp_path / "rows" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "rows")
    assert names_output(".") == str(tmp_path / "rows-packed-64")
    monkeypatch.chdir(tmp_path / "rows" / "below")
    assert names_output("..") == str(tmp_path / "rows-packed-64")


def test_wildcards_are_plain_names_and_an_object_needs_an_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(packer.PackerError, match="no name: name the output"):
        names_output(object())
    Path("rows [1].arrow").touch()
    assert names_output("rows [1].arrow") == "rows [1]-packed-64"


# stats, verify, show


def test_stats_foretell_what_pack_does(source, packed):
    before, after = (json.loads(succeeded("stats", name, "--max-len", 64, "--json")) for name in (source, packed))
    for name in ("tokens", "rows", "max_len", "efficiency", "lower_bound"):
        assert before[name] == after[name]
    assert before["padding"]["packed"] == pytest.approx(after["padding"]["packed"])
    assert (before["documents"], after["documents"]) == (300, 293)


@pytest.mark.parametrize("name", ["sequential", "wrapped"])
@pytest.mark.parametrize("long", ["split", "truncate", "drop"])
def test_stats_of_an_order_algorithm_are_those_of_its_twin(source, name, long):
    lengths = np.array([len(tokens) for tokens in made_documents(300)])
    placed = {"split": lengths, "truncate": np.minimum(lengths, 32), "drop": np.where(lengths > 32, 0, lengths)}[long]
    content = json.loads(succeeded("stats", source, "--max-len", 32, "--algorithm", name, "--long", long, "--json"))
    assert (content["algorithm"], content["rows"]) == (name, len(getattr(naive, name)(placed.tolist(), 32)))
    assert content["tokens_packed"] == placed.sum()
    assert content["lower_bound"] <= content["rows"]


def test_verify_says_what_it_has_checked(source, packed):
    assert "is verified: hashes and structure (" in succeeded("verify", packed)
    assert "is verified: hashes, structure and every token of the source (" in succeeded(
        "verify", packed, "--source", source
    )
    content = json.loads(succeeded("verify", packed, "--source", source, "--json"))
    assert content == {"packed": str(packed), "source": str(source), "faults": []}


def test_verify_against_another_source_fails_and_names_documents(source, packed):
    documents = made_documents(300)
    documents[123] = [*documents[123][:-1], 7]
    documents[10], documents[11] = documents[11], documents[10]
    save_arrow(Path("other.arrow"), documents)
    result = run("verify", packed, "--source", "other.arrow")
    assert result.exit_code == 3
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert all(line.startswith(f"packer: {packed}: ") for line in lines)
    assert "document 10 (other.arrow row 10)" in lines[0]
    content = json.loads(run("verify", packed, "--source", "other.arrow", "--json").stdout)
    assert len(content["faults"]) == len(lines)


def test_show_lists_the_segments_of_a_row(packed):
    dataset = packer.load(packed)
    row = next(number for number, found in enumerate(dataset) if found["doc_ids"][-1] < 0)
    lines = succeeded("show", packed, row).splitlines()
    assert len(lines) == 1 + len(dataset[row]["seq_lengths"])
    assert lines[1].split()[1:3] == [str(dataset[row]["seq_lengths"][0]), str(dataset[row]["doc_ids"][0])]
    assert lines[1].endswith(" ".join(map(str, dataset[row]["input_ids"][:8])))
    assert "padding" in lines[-1]
    assert succeeded("show", packed, row - len(dataset)).splitlines()[1:] == lines[1:]  # counted from the end


def test_show_lists_what_is_kept_of_each_segment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = {
        "input_ids": [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]],
        "topic": ["first\nline", None],
        "score": [1 / 3, 2.5],
        "note": ["n" * 50, "m"],
        "logprob": pa.array([[0.125] * 3, [-1 / 3] * 10], pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(columns), "kept.parquet")
    keep = [word for name in ("topic", "score", "note") for word in ("--keep", name)]
    kept = [*keep, "--keep-tokens", "logprob", "--group-by", "score"]
    succeeded("pack", "kept.parquet", "--max-len", 16, *kept)
    shown = [line for row in (0, 1) for line in succeeded("show", "kept-packed-16", row).splitlines()]
    assert shown[0].split()[4:8] == ["topic", "score", "(group)", "note"]
    assert shown[0].split()[-2:] == ["begins", "logprob"]
    (first,) = (line for line in shown if "first" in line)
    assert first.split()[5:] == [r"first\nline", "0.33333", "n" * 37 + "...", "1", "2", "3", *["0.125"] * 3]
    (second,) = (line for line in shown if " m " in line)
    assert second.split()[5:8] == ["null", "2.5", "m"]
    assert second.split()[8:] == [*map(str, range(4, 12)), *["-0.33333"] * 8]
    assert sorted(line.split()[1] for line in shown if "padding" in line) == ["13", "6"]


def test_show_finds_the_rows_of_a_document(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_arrow(tmp_path / "rows.arrow", [list(range(1, 151)), [7, 8, 9], [], [5]])
    packer.pack("rows.arrow", max_len=64)
    dataset = packer.load("rows-packed-64")
    parts = [
        (row, index) for row, found in enumerate(dataset) for index, doc in enumerate(found["doc_ids"]) if doc == 0
    ]
    shown = succeeded("show", "rows-packed-64", "--document", 0).splitlines()
    assert shown[0].split()[:4] == ["row", "tokens", "document", "from"]
    assert [line.split()[:2] for line in shown[1:]] == [[str(row), str(index)] for row, index in parts]
    content = json.loads(succeeded("show", "rows-packed-64", "--document", 0, "--json"))
    segments = sorted((each for row in content["rows"] for each in row["segments"]), key=lambda each: each["doc_start"])
    assert [token for each in segments for token in each["input_ids"]] == list(range(1, 151))
    for document in (2, 4):
        assert f"no document {document}: " in run("show", "rows-packed-64", "--document", document).stderr
    assert "--document is '0:1'" in run("show", "rows-packed-64", "--document", "0:1").stderr
    assert run("show", "rows-packed-64", 0, "--document", 1).exit_code == 2


def test_show_tells_trained_tokens_from_their_context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_arrow(tmp_path / "rows.arrow", [[1, 2, 3, 4, 5]], labels=[[-100, 2, 3, -100, 5]])
    packer.pack("rows.arrow", max_len=8)
    lines = succeeded("show", "rows-packed-8", 0, "--full").splitlines()
    assert lines == [
        "segment 0: document 0, tokens 0 to 4, 3 trained",
        "1 [[2 3]] 4 [[5]]",
        "segment 1: padding, 3 tokens",
    ]
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = run("show", "rows-packed-8", 0, "--full").stdout
    assert "\x1b[1m2 3\x1b[0m" in colored
    assert "\x1b[2m4\x1b[0m" in colored
    assert "[[" not in colored
    assert "\x1b[36m" in run("show", "rows-packed-8", 0).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("show", "rows-packed-8", 0, "--full").stdout


def test_show_of_a_row_that_is_not_there_names_those_that_are(packed):
    rows = len(packer.load(packed))
    result = run("show", packed, rows)
    assert result.exit_code == 1
    assert result.stderr == f"packer: {packed} has no row {rows}: there are {rows}, from 0 to {rows - 1}\n"


def test_show_decodes_with_a_tokenizer(packed):
    from packer.text.tokenizer import train_byte_level

    tokenizer = train_byte_level(["a few words of text, and a few more"] * 3, 1000)
    tokenizer.save("tokenizer.json")
    packer.pack(save_arrow(Path("text.arrow"), [tokenizer.encode("a few more words").ids]), max_len=64)
    assert "a few more words" in succeeded("show", "text-packed-64", 0, "--tokenizer", "tokenizer.json")
    Path("broken.json").write_text("{}")
    result = run("show", packed, 0, "--tokenizer", "broken.json")
    assert result.exit_code == 1
    assert result.stderr.startswith("packer: broken.json is not a tokenizer.json")


# Errors


def test_debug_shows_the_traceback(source):
    arguments = ("pack", "nowhere.arrow", "--max-len", 64)
    with pytest.raises(packer.PackerError):
        CliRunner().invoke(cli, [*map(str, arguments), "--debug"], catch_exceptions=False)
    done = run_process("-m", "packer", *arguments, "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_message_of_several_lines_becomes_one(source, monkeypatch):
    def fail(*arguments, **options):
        raise packer.PackerError("the first\nand the second\n")

    monkeypatch.setattr("packer.pipeline.packing.pack", fail)
    result = run("pack", source, "--max-len", 64)
    assert result.stderr == "packer: the first and the second\n"


def test_optimal_hands_on_the_bound_it_proved(tmp_path):
    # the cheap bounds say 79, a linear program 81, which is the optimum; best fit takes 82
    lengths = [3] * 40 + [8] * 58 + [10] * 44 + [11] * 49
    rows = save_arrow(tmp_path / "rows.arrow", [[1] * length for length in lengths])
    optimal = ("pack", rows, "--max-len", 20, "--algorithm", "optimal", "--json", "-o")
    proven = json.loads(succeeded(*optimal, tmp_path / "proven"))
    assert proven["totals"]["rows"] == proven["totals"]["lower_bound"] == 81
    shown = json.loads(succeeded("stats", rows, "--max-len", 20, "--algorithm", "optimal", "--json"))
    assert (shown["rows"], shown["lower_bound"]) == (81, 81)


# ---- words that a user types by mistake ----


def test_a_bare_command_shows_its_help_and_is_no_error():
    done = run()
    assert done.exit_code == 0
    assert done.stdout.startswith("Usage: ")
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["pack", "stats", "tokenize", "verify", "show", "export", "check", "demo"])
def test_every_command_lists_all_its_options(name):
    assert "--debug" in succeeded(name, "--help-all")


@pytest.mark.parametrize("lengths", ["4,096", "8,192", "131,072"])
def test_a_length_with_a_comma_for_thousands_is_no_list_of_lengths(lengths):
    whole = lengths.replace(",", "")
    refused("stats", "any.jsonl", "--max-len", lengths, code=2, words=(f"are 2 lengths: write {whole} for one",))


def test_an_unknown_option_of_show_is_no_row():
    refused("show", "out", "--toknizer", "x", code=2, words=("No such option '--toknizer'", "--tokenizer"))
    refused("show", "out", "first", code=2, words=("[ROW]...: 'first' is not a valid integer",))


def test_a_folder_where_the_system_has_none_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1]}\n')
    words = ("/proc/packed: no folder can be made there: choose another --output",)
    refused("pack", tmp_path / "a.jsonl", "--max-len", 8, "-o", "/proc/packed", words=words)
