"""Tokenizers are opened without running their code, and a wrong chat template is one line."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import packer
from packer.cli import cli
from packer.errors import PackerError
from packer.options import PackOptions
from packer.sources.documents import DocumentError
from packer.text.text_columns import recognize
from packer.text.text_encoder import Encoder
from packer.text.tokenizer import open_decoder, open_tokenizer
from tests.helpers.chat_templates import EXACT, save_tokenizer, text_options
from tests.helpers.commands import refused
from tests.helpers.writing import write_lines

transformers = pytest.importorskip("transformers")

CHAT = [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": "The quick fox"}]


def configured(folder, name="tokenizer_config.json", **values):
    """A tokenizer folder whose configuration has other values, too."""
    path = save_tokenizer(folder)
    file = folder / name
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **values}))
    return path


# ---- code that comes with a tokenizer ----


def with_code(folder, config):
    """A tokenizer folder with a module that leaves a file behind when it is imported."""
    classes = {"AutoTokenizer": ["theirs.Theirs", None], "AutoConfig": "theirs.Config"}
    values = {"tokenizer_class": "Theirs"} if config == "tokenizer_config.json" else {"model_type": "theirs"}
    path = configured(folder, config, auto_map=classes, **values)
    if config == "config.json":
        configured(folder, tokenizer_class=None)
    (folder / "theirs.py").write_text(
        f"open({str(folder / 'ran')!r}, 'w').close()\n"
        "from transformers import PretrainedConfig, PreTrainedTokenizerFast\n"
        "class Theirs(PreTrainedTokenizerFast):\n    pass\n"
        "class Config(PretrainedConfig):\n    model_type = 'theirs'\n"
    )
    return path


@pytest.mark.parametrize("opens", [open_tokenizer, open_decoder])
def test_code_of_a_tokenizer_is_never_run_and_nobody_is_asked(tmp_path, monkeypatch, opens):
    path = with_code(tmp_path / "theirs", "tokenizer_config.json")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(PackerError) as raised:
        opens(path)
    assert not (tmp_path / "theirs" / "ran").exists()
    assert sys.stdin.read() == "y\n"
    message = str(raised.value)
    assert message.startswith(f"{path} comes with its own code (auto_map), which packer does not run: ")
    assert "\n" not in message


@pytest.mark.parametrize("opens", [open_tokenizer, open_decoder])
def test_code_of_the_model_beside_a_tokenizer_is_not_run_either(tmp_path, monkeypatch, opens):
    path = with_code(tmp_path / "theirs", "config.json")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert opens(path)
    assert not (tmp_path / "theirs" / "ran").exists()
    assert sys.stdin.read() == "y\n"


def test_the_command_runs_no_code_of_a_tokenizer(tmp_path):
    path = with_code(tmp_path / "theirs", "tokenizer_config.json")
    (tmp_path / "rows.jsonl").write_text('{"text": "fox"}\n')
    done = CliRunner().invoke(
        cli, ["pack", str(tmp_path / "rows.jsonl"), "--tokenizer", path, "--max-len", "8"], input="y\n"
    )
    assert (done.exit_code, "which packer does not run" in done.stderr) == (1, True)
    assert not (tmp_path / "theirs" / "ran").exists()


def test_code_beside_a_class_of_the_library_is_left_alone(tmp_path):
    """Many tokenizers name both; the library's own class does the work."""
    save_tokenizer(tmp_path / "both")
    path = configured(
        tmp_path / "both", auto_map={"AutoTokenizer": [None, "theirs.Theirs"]}, tokenizer_class="GPT2Tokenizer"
    )
    assert open_tokenizer(path).backend.encode("fox").ids


def test_a_config_with_code_is_not_probed(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from packer.attention.load_model import load_small_model

    with_code(tmp_path / "theirs", "config.json")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(PackerError, match="custom code"):
        load_small_model(str(tmp_path / "theirs"))
    assert not (tmp_path / "theirs" / "ran").exists()
    assert sys.stdin.read() == "y\n"


# ---- chat templates ----


def encoder(path, template=None):
    return Encoder(text_options(tokenizer=path, chat_template=template), recognize({"messages": []}, "chats"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "a chat template that is not text: .*5.*tokenizer_config.json.*--chat-template FILE"),
        (True, "a chat template that is not text: .*True"),
        ({"default": 5}, "a chat template that is not text: .*5"),
        ({"default": "{{ messages }}", "rag": ["x"]}, "a chat template that is not text: .*rag"),
        ({"default": ""}, "a chat template that is not text: .*default"),
        ("\ud800", "a chat template that is not text: "),
        ([{"name": "default", "template": None}], "a chat template that is not text: .*None"),
        ([5], r"cannot be opened as a tokenizer \(.*\): name a folder with a tokenizer.json, or save it again"),
        ([{"name": "default"}], r"cannot be opened as a tokenizer \('template'\)"),
        ([{"name": ["x"], "template": "x"}], "cannot be opened as a tokenizer"),
        ("", r"has no chat template; choose a template by --chat-template \(chatml"),
        ([], r"has no chat template; choose a template by --chat-template \(chatml"),
        ({}, r"has no chat template; choose a template by --chat-template \(chatml"),
    ],
    ids=str,
)
def test_a_chat_template_that_is_no_text_is_one_line(tmp_path, value, words):
    path = configured(tmp_path, chat_template=value)
    with pytest.raises(PackerError, match=words) as raised:
        encoder(path)
    assert "\n" not in str(raised.value)
    if "cannot be opened" not in words:
        assert encoder(path, EXACT["chatml"]).encode([{"messages": CHAT}]).labels is not None


def test_a_tokenizer_with_a_wrong_chat_template_serves_for_texts(tmp_path):
    options = text_options(tokenizer=configured(tmp_path, chat_template=5))
    assert len(Encoder(options, recognize({"text": ""}, "x")).encode([{"text": "fox"}]).input_ids[0]) > 1


def test_a_chat_for_which_no_template_is_meant_is_named(tmp_path):
    path = configured(tmp_path, chat_template={"tool_use": EXACT["chatml"], "rag": EXACT["chatml"]})
    records = recognize({"messages": [], "tools": []}, "chats")
    made = Encoder(text_options(tokenizer=path), records)
    with_tools = {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert made.encode([with_tools]).labels is not None
    with pytest.raises(DocumentError, match=r" has no chat template 'default' .*\(found: tool_use, rag\)"):
        made.encode([with_tools, {"messages": CHAT}])


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_an_empty_template_file_is_named(tmp_path, content):
    (tmp_path / "empty.jinja").write_text(content)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    path = save_tokenizer(tmp_path / "tokenizer", template=EXACT["chatml"])
    for command in (["pack", "--max-len", "32"], ["tokenize"]):
        template = ["--tokenizer", path, "--chat-template", str(tmp_path / "empty.jinja")]
        words = ("empty.jinja is empty: it must hold a Jinja template",)
        refused(*command, tmp_path / "rows.jsonl", *template, words=words)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "which is empty: give the content of a Jinja template"),
        ("\n", "which is empty: give the content of a Jinja template"),
        ("t.jinja", "--chat-template is 't.jinja', which has no '{': give the content of a Jinja template"),
        (5, "--chat-template is 5: it must be a string"),
        ({"default": "x"}, "--chat-template is {'default': 'x'}: it must be a string"),
    ],
)
def test_what_is_no_template_is_refused_in_python(value, message):
    with pytest.raises(PackerError, match=re.escape(message)):
        PackOptions(max_len=8, tokenizer="x", chat_template=value)


def test_python_takes_a_template_as_the_command_line_does_or_its_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, template = save_tokenizer(tmp_path / "tokenizer"), EXACT["trims"]
    source = write_lines(tmp_path / "rows.jsonl", [{"messages": CHAT}])
    (tmp_path / "t.jinja").write_text(template)
    (tmp_path / "chatml").write_text("{{ messages }}")  # which has the name of a template that comes with packer
    options = {"tokenizer": path, "progress": False}
    texts = {}
    for given in (template, "t.jinja", str(tmp_path / "t.jinja"), Path("t.jinja"), tmp_path / "t.jinja", "chatml"):
        made = packer.pack(source, "out", max_len=64, chat_template=given, overwrite=True, **options)
        tokens = packer.tokenize(source, "tokens", chat_template=given, overwrite=True, **options)
        counted = packer.stats(source, max_len=64, chat_template=given, **options)
        assert counted.tokens == made.totals.tokens
        texts[given] = made.options.chat_template, made.source.text.chat_template, tokens.source.text.chat_template
    assert texts.pop("chatml")[0] == "chatml"
    assert set(texts.values()) == {texts[template]}
    assert texts[template][0] == template


def test_the_manifest_holds_the_text_of_a_template_and_verify_reads_it(tmp_path):
    path, source = save_tokenizer(tmp_path / "tokenizer"), write_lines(tmp_path / "rows.jsonl", [{"messages": CHAT}])
    file = tmp_path / "t.jinja"
    file.write_text(EXACT["trims"])
    manifest = packer.pack(source, tmp_path / "out", max_len=64, tokenizer=path, chat_template=file)
    assert manifest.options.chat_template == EXACT["trims"]
    file.unlink()
    assert list(packer.verify(tmp_path / "out", source, tokenizer=path)) == []
    assert packer.load(tmp_path / "out").manifest.options == manifest.options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("t.jinja", "'t.jinja' cannot be read as a chat template: No such file or directory; name a file, or chatml, "),
        (Path("t.jinja"), "'t.jinja' cannot be read as a chat template: No such file or directory; name a file, or "),
        ("Question:\n", r"'Question:\n' cannot be read as a chat template: No such file or directory; name a file"),
        ("text.jinja", "text.jinja has no '{': it must hold a Jinja template; name a file, or chatml, gemma3, "),
        ("folder", "'folder' cannot be read as a chat template: Is a directory"),
    ],
    ids=str,
)
def test_what_is_no_template_is_named_in_python_and_on_the_command_line(tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    path = save_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.jinja").write_text("Question:\n")
    source = write_lines(tmp_path / "rows.jsonl", [{"messages": CHAT}])
    with pytest.raises(PackerError) as raised:
        packer.pack(source, max_len=64, tokenizer=path, chat_template=given)
    assert str(raised.value).startswith(message)
    line = refused("pack", source, "--max-len", 64, "--tokenizer", path, "--chat-template", given)
    assert line.startswith(f"packer: {message}")


def test_a_tokenizer_written_in_python_is_refused(tmp_path):
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(PackerError, match="ByT5Tokenizer of transformers does not tokenize by"):
        open_tokenizer(str(tmp_path))


def test_a_class_that_does_more_than_its_tokenizer_json_is_refused(tmp_path, monkeypatch):
    path = configured(tmp_path / "lower", tokenizer_class="PreTrainedTokenizerFast", add_prefix_space=True)
    takes = transformers.PreTrainedTokenizerFast.__call__
    monkeypatch.setattr(
        transformers.PreTrainedTokenizerFast, "__call__", lambda self, text, **more: takes(self, text + "!", **more)
    )
    with pytest.raises(PackerError, match=r"does not tokenize by a tokenizer\.json alone"):
        open_tokenizer(path)


@pytest.mark.parametrize("opens", [open_tokenizer, open_decoder])
def test_a_panic_of_the_tokenizers_library_is_one_line(tmp_path, monkeypatch, opens):
    class PanicException(BaseException):
        """As Rust extensions raise it: no `Exception`."""

    def panic(*_):
        raise PanicException("index out of bounds")

    folder = Path(save_tokenizer(tmp_path / "tokenizer"))
    for name in ("_open_json", "of_transformers"):
        monkeypatch.setattr(f"packer.text.tokenizer.{name}", panic)
    with pytest.raises(PackerError, match=r"cannot be opened as a tokenizer \(index out of bounds\): name a folder"):
        opens(str(folder))
    alone = tmp_path / "alone.json"
    (folder / "tokenizer.json").rename(alone)
    with pytest.raises(PackerError, match=r"alone.json is not a tokenizer.json: index out of bounds"):
        opens(str(alone))
