"""Tokenizers are opened without running their code, and a wrong chat template is one line."""

import io
import json
import sys

import pytest
from click.testing import CliRunner

from packer.cli import cli
from packer.errors import PackerError
from packer.text import open_decoder, open_tokenizer
from tests.chat_templates import save_tokenizer

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
    assert message.startswith(f"{path} comes with code of its own (auto_map), which packer does not run: ")
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
    assert open_tokenizer(path)("fox")["input_ids"]


def test_a_config_with_code_is_not_probed(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from packer.attention.opening import open_model

    with_code(tmp_path / "theirs", "config.json")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(PackerError, match="custom code"):
        open_model(str(tmp_path / "theirs"))
    assert not (tmp_path / "theirs" / "ran").exists()
    assert sys.stdin.read() == "y\n"
