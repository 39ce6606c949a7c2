"""`~` is the home folder wherever a path is given, on the command line and in Python."""

import json
from pathlib import Path

import pytest

import packer
from packer.stores.paths import expanded
from tests.helpers.chat_templates import EXACT, save_tokenizer
from tests.helpers.commands import run, succeeded
from tests.helpers.pack import made_documents, save_arrow


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder, beside the one in which commands run, in which nothing named `~` may appear."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    yield home
    assert not [path for path in here.iterdir() if path.name.startswith("~")]


def test_home_stands_for_a_tilde_at_the_start_alone(home, monkeypatch):
    assert expanded("~/x") == f"{home}/x"
    assert expanded(Path("~")) == home
    assert expanded(["~/a", Path("~/b")]) == [f"{home}/a", home / "b"]
    assert expanded("~root") == Path("~root").expanduser().as_posix()
    for same in ("./~/x", "a~", "/~", "org/name", "~nobody-of-this-name/x", None, 5):
        assert expanded(same) == same


def test_an_empty_path_is_not_taken_for_the_current_folder(home):
    """As of `packer pack "$DATA"` where DATA is not set."""
    save_arrow(Path("rows.arrow"), made_documents(50))
    for arguments in (["", "-o", "out"], ["rows.arrow", "-o", ""]):
        result = run("pack", *arguments, "--max-len", 64)
        assert result.exit_code in (1, 2)
        assert "a path is empty, as a variable is that was not set: name a file or folder" in result.output
    assert [path.name for path in Path().iterdir()] == ["rows.arrow"]
    with pytest.raises(packer.PackerError, match="a path is empty"):
        packer.load("")


def test_every_command_that_reads_or_writes_tokens_takes_it(home):
    save_arrow(home / "rows.arrow", made_documents(50))
    succeeded("pack", "~/rows.arrow", "--max-len", 64, "-o", "~/out")
    succeeded("pack", "~/rows.arrow", "--max-len", 32)
    succeeded("verify", "~/out", "--source", "~/rows.arrow")
    succeeded("stats", "~/rows.arrow", "--max-len", 64)
    succeeded("stats", "~/out")
    succeeded("show", "~/out", 0)
    succeeded("export", "~/out", "--to", "parquet", "-o", "~/exported")
    made = {path.name for path in home.iterdir() if path.is_dir()}
    assert made == {"out", "rows-packed-32", "exported"}


def test_tokenizers_and_templates_take_it(home):
    pytest.importorskip("transformers")
    save_tokenizer(home / "tokenizer", template=EXACT["chatml"])
    (home / "template.jinja").write_text(EXACT["chatml"])
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]
    (home / "chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    text = ["--tokenizer", "~/tokenizer", "--chat-template", "~/template.jinja"]
    succeeded("pack", "~/chats.jsonl", *text, "--max-len", 64)
    succeeded("tokenize", "~/chats.jsonl", *text, "-o", "~/tokens")
    succeeded("verify", "~/chats-packed-64", "--source", "~/chats.jsonl", "--tokenizer", "~/tokenizer")
    succeeded("show", "~/chats-packed-64", 0, "--tokenizer", "~/tokenizer/tokenizer.json")
    succeeded("show", "~/chats-packed-64", 0, "--tokenizer", "~/tokenizer")
    assert packer.load("~/chats-packed-64").manifest.options.tokenizer == "tokenizer"
    assert (home / "tokens").is_dir()


def test_the_demo_and_the_check_of_a_model_take_it(home, monkeypatch):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from packer.attention.load_model import language_config

    seen = []
    monkeypatch.setattr("packer.cli.writing_commands.write_corpus", lambda folder: seen.append(folder) or 1 / 0)
    run("demo", "-o", "~/demo")
    assert seen == [home / "demo"]
    transformers.LlamaConfig(hidden_size=64).save_pretrained(home / "model")
    from packer.attention import load_model

    monkeypatch.setattr(load_model, "language_config", lambda name: seen.append(language_config(name)) or 1 / 0)
    run("check", "~/model")
    assert seen[1].hidden_size == 64


def test_functions_take_it_as_a_string_and_as_a_path(home):
    save_arrow(home / "rows.arrow", made_documents(50))
    for path in (str, Path):
        packer.pack(path("~/rows.arrow"), path("~/out"), max_len=64, overwrite=True)
        assert list(packer.verify(path("~/out"), path("~/rows.arrow"))) == []
        assert len(packer.load(path("~/out"))) > 0
        packer.export(path("~/out"), path("~/exported"), to="parquet", overwrite=True)
    assert {path.name for path in home.iterdir()} == {"rows.arrow", "out", "exported"}
