"""The options of a pack hold their limits, whoever sets them."""

import inspect
import json
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from runpy import run_path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.cli import COMMANDS, cli
from packer.cli.command import DeclaredOption
from packer.errors import in_python as python_words
from packer.options import PackOptions, arguments, as_bytes, options_of
from packer.options.option import HEADINGS
from packer.progress import silent
from packer.shards.row_format import RowFormat
from tests.helpers.places import ROOT

SAMPLES = {
    "max_len": 64, "split": "train", "input_column": "tokens", "labels_column": "targets",
    "document": "sequence", "eos_id": 5, "dtype": "uint16", "on_error": "skip",
    "keep": ("topic", "score"), "keep_tokens": ("logprob",), "weight": "importance", "vocab_size": 128,
    "tokenizer": "T", "text_column": "question,answer",
    "train_on": "all", "chat_template": "{{ messages }}", "eos": False, "algorithm": "optimal", "max_segments": 3,
    "limit": ("images:16",), "balance_ranks": 8, "align": 4, "untrained": "drop",
    "seed": 7, "pad_id": 9, "long": "truncate", "split_at": "tokens",
    "group_by": "topic", "pairs": True, "share_prefixes": True,
    "add_column": ("position_ids",), "labels": False, "untrained_parts": ("reasoning",),
    "holdout": 0.25, "index_only": True, "shard_size": 2 * 10**6,
}  # fmt: skip
"""A value for every option of the command line that is not its default."""

NEEDS = {
    "text_column": ("tokenizer",), "train_on": ("tokenizer",), "chat_template": ("tokenizer",), "eos": ("tokenizer",),
    "untrained_parts": ("tokenizer",),
}  # fmt: skip
"""Options that others need."""


@pytest.fixture
def asked(monkeypatch) -> list[tuple[object, PackOptions, object]]:
    """(source, options, job) of every call of `packer.pipeline.packing.pack`, which does nothing."""
    calls = []

    def fake(source, *, options, job):
        assert callable(job.progress)
        calls.append((source, options, replace(job, progress=silent)))
        raise packer.PackerError("not packed")

    monkeypatch.setattr("packer.pipeline.packing.pack", fake)
    return calls


def in_command(name: str, value: object, folder: Path) -> list[str]:
    """An option as the command line writes it."""
    option = options_of(PackOptions)[name]
    if option.type is bool:
        return [option.flags[-1]]
    if name == "chat_template":
        (folder / "template").write_text(value)
        return [option.flags[-1], str(folder / "template")]
    values = value if isinstance(value, tuple) else [value]
    return [word for one in values for word in (option.flags[-1], str(one))]


def in_both(asked, folder: Path, names: Iterable[str]) -> PackOptions:
    """The options that the command and `packer.pack` make of the same values; they must be equal."""
    names = dict.fromkeys(["max_len", *names])
    values = {name: SAMPLES[name] for name in names}
    command = [word for name, value in values.items() for word in in_command(name, value, folder)]
    with pytest.raises(packer.PackerError, match="not packed"):
        CliRunner().invoke(cli, ["pack", "one", *command, "--debug"], catch_exceptions=False)
    arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    with pytest.raises(packer.PackerError, match="not packed"):
        packer.pack("one", **arguments)
    of_command, of_function = asked
    assert of_command == of_function
    return of_command[1]


def test_the_samples_are_all_options():
    declared = {name for name, option in options_of(PackOptions).items() if "pack" in option.commands}
    assert declared - {"lengths_column"} == set(SAMPLES)  # --lengths also names the file


def test_defaults_of_the_command_and_of_the_function_are_those_declared(asked, tmp_path):
    options = in_both(asked, tmp_path, [])
    assert options == PackOptions(max_len=64)
    assert options.to_dict() == {"max_len": 64}
    assert options.shard_size == as_bytes("512MB")


@pytest.mark.parametrize("name", SAMPLES)
def test_an_option_is_the_same_in_the_command_the_function_and_the_manifest(asked, tmp_path, name):
    needed = [name, *NEEDS.get(name, ())]
    options = in_both(asked, tmp_path, needed)
    assert getattr(options, name) == SAMPLES[name]
    content = json.loads(json.dumps(options.to_dict()))
    assert content.keys() == {"max_len", *needed}
    assert PackOptions.from_dict(content) == options


def test_the_types_of_keyword_arguments_are_made_from_the_declarations():
    made = run_path(ROOT / "docs" / "make_commands.py")["arguments_module"]()
    assert Path(arguments.__file__).read_text() == made, "write them anew: python docs/make_commands.py"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max_length", "'max_length': did you mean max_len?"),
        ("position_id", "'position_id'"),
        ("ouput", "'ouput': did you mean output?"),
        ("maxsegments", "'maxsegments': did you mean max_segments?"),
        ("xyz", "'xyz'$"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest_name(name, message):
    with pytest.raises(TypeError, match=rf"pack\(\) got an unexpected keyword argument {message}"):
        packer.pack("nowhere", max_len=8, **{name: 1})


def test_max_len_is_required():
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'max_len'"):
        packer.pack("nowhere")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_declaration_says_what_help_needs(name):
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Argument) or parameter.name in ("config", "debug", "help_all"):
            continue
        assert isinstance(parameter, DeclaredOption)
        option = parameter.declared
        assert option.help.endswith(".")
        assert option.heading in HEADINGS
        assert (option.default is True) == (option.off is not None), option.name
        if not option.is_required:
            option.check(option.default)


@pytest.mark.parametrize("function", [packer.pack, packer.stats, packer.tokenize, packer.PackOptions])
def test_help_in_python_has_every_option_and_its_sentence(function):
    text = " ".join(inspect.getdoc(function).split())
    of = "pack" if function is packer.PackOptions else function.__name__
    for name in inspect.signature(function).parameters.keys() & options_of(PackOptions).keys():
        option = options_of(PackOptions)[name]
        assert of in option.commands or name in ("is_holdout", "weights_per")
        if function in (packer.pack, packer.PackOptions) and name != "max_len":
            assert f" {name}: {python_words(option.help)} " in text
    asked = {name for name, option in options_of(PackOptions).items() if of in option.commands}
    assert asked <= inspect.signature(function).parameters.keys()


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("max_len", 1, 2**24),
        ("max_segments", 1, 2**31 - 1),
        ("seed", 0, 2**63 - 1),
        ("pad_id", 0, 2**31 - 1),
        ("shard_size", 1, 2**63 - 1),
    ],
)
def test_numbers_are_refused_outside_their_limits_with_value_and_limit(name, least, most):
    for value in (least, most):
        assert getattr(PackOptions(**{"max_len": 8, name: value}), name) == value
    for value in (least - 1, most + 1, 1.5, "8"):
        with pytest.raises(packer.PackerError) as raised:
            PackOptions(**{"max_len": 8, name: value})
        for word in ("--" + name.replace("_", "-"), repr(value), str(least), str(most)):
            assert word in str(raised.value)


def test_only_max_segments_may_be_none():
    assert PackOptions(max_len=8, max_segments=None).max_segments is None
    with pytest.raises(packer.PackerError, match="--max-len is None"):
        PackOptions(max_len=None)


def test_unknown_names_are_refused_with_the_names_there_are():
    with pytest.raises(packer.PackerError, match=r"--long is 'keep': choose one of split, truncate, drop, error"):
        PackOptions(max_len=8, long="keep")
    with pytest.raises(packer.PackerError, match=r"'bestfit'.*auto.*bfd"):
        PackOptions(max_len=8, algorithm="bestfit")


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, ("input_ids", "labels")),
        ({"labels": False}, ("input_ids",)),
        ({"add_column": ("position_ids",)}, ("input_ids", "labels", "position_ids")),
        ({"labels": False, "add_column": ("position_ids",)}, ("input_ids", "position_ids")),
    ],
)
def test_token_columns_are_those_asked_for_in_the_order_on_disk(options, columns):
    assert RowFormat.of(PackOptions(max_len=8, **options)).token_columns == columns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overwrite": "no"}, "overwrite is 'no': it must be true or false"),
        ({"workers": 0}, "workers is 0: it must be a whole number from 1"),
        ({"engine": "slurm"}, "'slurm' is not an engine: write threads, ray or ray:ADDRESS"),
        ({"output": b"out"}, "output is b'out': it must be a path"),
    ],
)
def test_python_checks_the_options_of_outputs_and_engines_as_the_command_line_does(tmp_path, options, message):
    with pytest.raises(packer.PackerError) as raised:
        packer.pack(tmp_path, **{"output": tmp_path / "out", "max_len": 64, **options})
    assert str(raised.value).startswith(message)


def test_sizes_are_read_as_written():
    sizes = {"1000000": 10**6, "7B": 7, "64KB": 64_000, "64kib": 65_536, "512MB": 512 * 10**6, "512M": 512 * 10**6}
    sizes |= {"2GiB": 2**31, "2gi": 2**31, "1TB": 10**12, " 1.5 GB ": 1_500_000_000, "9007199254740993": 2**53 + 1}
    assert {text: as_bytes(text) for text in sizes} == sizes


@pytest.mark.parametrize(
    "text", ["", "MB", "-1MB", "1e9", "5 bytes", "1PB", "1,5GB", "5I", "5IB", "0x10", "nan", "1.GB"]
)
def test_what_is_no_size_is_named_with_the_units_there_are(text):
    with pytest.raises(packer.PackerError) as raised:
        as_bytes(text)
    assert repr(text) in str(raised.value)
    assert "GiB" in str(raised.value)


@given(st.decimals(0, 10**6, places=3), st.sampled_from([("KB", 10**3), ("MB", 10**6), ("GIB", 2**30)]))
def test_a_size_is_its_number_times_its_unit(number, unit):
    assert as_bytes(f"{number}{unit[0]}") == int(Decimal(number) * unit[1])


def test_a_size_of_a_thousand_digits_is_a_limit_not_a_crash():
    with pytest.raises(packer.PackerError, match="--shard-size"):
        PackOptions(max_len=8, shard_size=as_bytes("9" * 1000))
