"""The options of a pack hold their limits, whoever sets them."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.options import PackOptions, parse_size
from packer.pipeline.apply_options import row_format_of


def test_defaults_are_those_of_the_command():
    options = PackOptions(max_len=4096)
    assert (options.algorithm, options.long, options.seed, options.pad_id) == ("auto", "split", 0, None)
    assert options.shard_size == parse_size("512MB") == 512_000_000


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


@pytest.mark.parametrize(
    ("name", "good", "bad"), [("gap", (0, 0.5, 1), (-0.1, 1.1)), ("time_limit", (0, 2.5, 1e9), (-1,))]
)
def test_limits_of_the_solver_are_numbers_and_for_optimal_alone(name, good, bad):
    option = "--" + name.replace("_", "-")
    for value in good:
        assert getattr(PackOptions(max_len=8, algorithm="optimal", **{name: value}), name) == value
    for value in (*bad, float("nan"), "1"):
        with pytest.raises(packer.PackerError, match=f"{option} is {value!r}: it must be a number from 0"):
            PackOptions(max_len=8, algorithm="optimal", **{name: value})
    for algorithm in ("auto", "bfd", "sequential"):
        with pytest.raises(packer.PackerError, match=rf"{option} is .*{algorithm} has no use for it: choose .*optimal"):
            PackOptions(max_len=8, algorithm=algorithm, **{name: good[1]})


def test_limits_of_the_solver_are_in_the_manifest_where_they_were_given():
    assert not {"gap", "time_limit"} & set(PackOptions(max_len=8).to_dict())
    given = PackOptions(max_len=8, algorithm="optimal", gap=0.1, time_limit=3.0).to_dict()
    assert (given["gap"], given["time_limit"]) == (0.1, 3.0)


def test_unknown_names_are_refused_with_the_names_there_are():
    with pytest.raises(packer.PackerError, match=r"'keep'.*split, truncate, drop, error"):
        PackOptions(max_len=8, long="keep")
    with pytest.raises(packer.PackerError, match=r"'bestfit'.*bfd.*lpfhp"):
        PackOptions(max_len=8, algorithm="bestfit")


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, ("input_ids", "labels")),
        ({"labels": False}, ("input_ids",)),
        ({"position_ids": True}, ("input_ids", "labels", "position_ids")),
        ({"labels": False, "position_ids": True}, ("input_ids", "position_ids")),
    ],
)
def test_token_columns_are_those_asked_for_in_the_order_on_disk(options, columns):
    assert row_format_of(PackOptions(max_len=8, **options), {}).token_columns == columns


def test_the_manifest_gets_every_option_and_the_name_behind_an_alias():
    options = PackOptions(max_len=8, algorithm="lpfhp", split="train")
    content = json.loads(json.dumps(options.to_dict()))
    assert content["algorithm"] == "bfd"
    assert PackOptions(**content) == PackOptions(max_len=8, algorithm="bfd", split="train")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000000", 1_000_000),
        ("7B", 7),
        ("64KB", 64_000),
        ("64kib", 65_536),
        ("512MB", 512_000_000),
        ("512M", 512_000_000),
        ("2GiB", 2**31),
        ("2gi", 2**31),
        (" 1.5 GB ", 1_500_000_000),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_read_as_written(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "-1MB", "1e9", "5 bytes", "1TB", "1,5GB", "5I", "5IB", "0x10", "nan", "1.GB"]
)
def test_what_is_no_size_is_named_with_the_units_there_are(text):
    with pytest.raises(packer.PackerError) as raised:
        parse_size(text)
    assert repr(text) in str(raised.value)
    assert "GiB" in str(raised.value)


@given(st.decimals(0, 10**6, places=3), st.sampled_from([("KB", 10**3), ("MB", 10**6), ("GIB", 2**30)]))
def test_a_size_is_its_number_times_its_unit(number, unit):
    assert parse_size(f"{number}{unit[0]}") == int(Decimal(number) * unit[1])


def test_a_size_of_a_thousand_digits_is_a_limit_not_a_crash():
    with pytest.raises(packer.PackerError, match="--shard-size"):
        PackOptions(max_len=8, shard_size=parse_size("9" * 1000))
