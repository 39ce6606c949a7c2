"""What an error advises can be done with the command that prints it, and mends what is wrong."""

import re

import datasets
import pytest

import packer
from packer.cli import COMMANDS
from packer.errors import PackerError
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.commands import run
from tests.helpers.kept import write
from tests.helpers.splits import save
from tests.helpers.writing import write_lines


def advice(*arguments):
    """What a command that fails prints; every option that it names must be one of that command."""
    done = run(*arguments)
    assert done.exit_code in (1, 2), done.output
    (line,) = done.stderr.splitlines()
    named = set(re.findall(r"--[a-z][a-z-]*", line))
    assert named <= {flag for option in COMMANDS[arguments[0]].params for flag in option.opts}
    return line


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path, "arrow", {"input_ids": [[1, 2, 3], [4]], "labels": [[1, 2, 3], [4]]}).rename(
        tmp_path / "rows.arrow"
    )


def test_verify_advises_no_option_of_pack(tmp_path, rows):
    other = tmp_path / "other.parquet"
    datasets.Dataset.from_dict({"tokens": [[1, 2, 3], [4]], "text": ["a", "b"]}).to_parquet(other)
    run("pack", rows, "--max-len", 8, "-o", "out")
    assert advice("verify", "out", "--source", other).endswith(
        "other.parquet: no column 'input_ids' (found: tokens, text); "
        "out was packed from the column 'input_ids': give that source"
    )
    two = datasets.DatasetDict(
        train=datasets.Dataset.from_dict({"input_ids": [[1]]}), test=datasets.Dataset.from_dict({})
    )
    two.save_to_disk("two")
    assert "two: has 2 splits (train, test); out was packed" in advice("verify", "out", "--source", "two")
    run("pack", "two", "--max-len", 8, "-o", "of-train", "--split", "train")
    line = advice("verify", "of-train", "--source", rows)
    assert "without splits; of-train was packed from the column 'input_ids' of the split train: give that" in line
    run("pack", other, "--input-column", "tokens", "--max-len", 8, "-o", "of-tokens")
    assert "was packed from the column 'tokens': give" in advice("verify", "of-tokens", "--source", rows)


def test_tokenizing_or_verifying_tokens_as_text_says_what_can_be_done(tmp_path, rows):
    pytest.importorskip("transformers")
    tokenizer = save_tokenizer(
        tmp_path / "tokenizer", template="{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    line = advice("tokenize", rows, "--tokenizer", tokenizer)
    assert line.endswith(
        "already tokenized; pack it without --tokenizer, or name the column of text with --text-column"
    )
    (text := save(tmp_path / "texts", ["a.jsonl"], "text"))
    run("pack", text, "--tokenizer", tokenizer, "--max-len", 8, "-o", "out")
    line = advice("verify", "out", "--source", rows, "--tokenizer", tokenizer)
    assert "out was packed from the column 'text': give that" in line
    chats = write_lines(tmp_path / "chats.jsonl", [{"messages": [{"role": "user", "content": "a"}], "system": "b"}])
    run("pack", chats, "--tokenizer", tokenizer, "--max-len", 8, "--train-on", "all", "-o", "of-chats")
    line = advice("verify", "of-chats", "--source", rows, "--tokenizer", tokenizer)
    assert "of-chats was packed from the column 'messages': give that" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--pairs", "--split-at", "exchanges"],
            "--split-at is exchanges, which does not go with --pairs: leave one out",
        ),
        (["--algorithm", "wrapped", "--align", 2], "choose another --algorithm"),
        (["--split-at", "exchanges", "--long", "drop"], "--split-at is exchanges, which does not go with --long drop"),
        (["--text-column", "t"], "--text-column is 't', but there is no tokenizer: set --tokenizer"),
        (["--align", 3], "--align is 3, and --max-len 8 is not a multiple of it: take 6 or 9"),
        (["--keep", "input_ids"], "--keep 'input_ids': the rows have a column of that name"),
        (["--keep-tokens", "labels"], "--keep-tokens 'labels': the rows have a column of that name"),
    ],
)
def test_options_are_called_as_they_are_given(rows, options, words):
    assert words in advice("pack", rows, "--max-len", 8, *options)


def test_in_python_options_are_called_as_the_arguments_are(rows):
    for options, words in [
        (
            {"pairs": True, "split_at": "exchanges"},
            "split_at is exchanges, which does not go with pairs: leave one out",
        ),
        ({"split_at": "exchanges", "long": "drop"}, "split_at is exchanges, which does not go with long='drop'"),
        ({"text_column": "t"}, "text_column is 't', but there is no tokenizer: set tokenizer"),
        ({"input_column": "nothing"}, "name the tokens' column with input_column"),
    ]:
        with pytest.raises(PackerError) as caught:
            packer.pack(rows, max_len=8, **options)
        assert words in str(caught.value)
        assert "--" not in str(caught.value)
    with pytest.raises(PackerError, match="no such file or folder"):
        list(packer.verify("--nowhere"))


@pytest.mark.parametrize(("command", "name"), [("pack", "max_len"), ("stats", "max_segments"), ("pack", "pad_id")])
def test_an_option_with_underscores_is_answered_with_the_right_one_alone(rows, command, name):
    done = run(command, rows, f"--{name}", 8)
    assert done.exit_code == 2
    assert set(re.findall(r"'(--[^']*)'", done.stderr)) == {f"--{name}", f"--{name.replace('_', '-')}"}


@pytest.mark.parametrize("options", [[], ["--input-column", "tokens"], ["--pad-id", 7]])
def test_an_output_of_another_source_is_called_that(tmp_path, rows, options):
    datasets.Dataset.from_dict({"input_ids": [[1]], "tokens": [[1]]}).to_parquet(tmp_path / "rows.parquet")
    run("pack", rows, "--max-len", 8, "-o", "rows-packed-8")
    line = advice("pack", "rows.parquet", "--max-len", 8, "-o", "rows-packed-8", *options)
    assert "rows-packed-8 is complete, packed from other source files (rows.arrow, not rows.parquet): choose" in line
