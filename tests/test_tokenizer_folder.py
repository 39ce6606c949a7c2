"""The tokens of packed text are those of transformers' AutoTokenizer, however the tokenizer was saved."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import packer
from tests.helpers.chat_templates import EXACT, MARKED, WORDS, auto_tokenizer, save_tokenizer, trained
from tests.helpers.pack import segments_in
from tests.helpers.writing import write_lines

transformers = pytest.importorskip("transformers")

SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
TEXTS = [
    *("The quick fox", " two  spaces\n\n\tand 123 lines\r\n", "café cafe\u0301 \ufb01 中文 😀 '\u017f'S", "x"),
    *("The<s>fox</s> dogs<|endoftext|>fox", "a [SEP] b[MASK]c <mask> d", "UPPER Case <extra> <EXTRA>fox <unk>"),
]


def compare(folder):
    """Pack texts with a tokenizer; the tokens are those of transformers, and an end of text."""
    path = str(folder)
    source = Path(folder) / "texts.jsonl"
    write_lines(source, [{"text": text} for text in TEXTS])
    tokenizer = auto_tokenizer(path)
    has_eos = tokenizer.eos_token_id is not None
    out = Path(folder) / "out"
    packer.pack(source, out, max_len=512, tokenizer=path, eos=has_eos, algorithm="sequential", sync=False)
    source.unlink()
    manifest = packer.load(out).manifest
    found = [tokens for _, _, tokens, _ in segments_in(packer.load(out))]
    for text, tokens in zip(TEXTS, found, strict=True):
        ids = tokenizer(text)["input_ids"]
        ends = has_eos and ids[-1:] != [tokenizer.eos_token_id]
        assert tokens == [*ids, *[tokenizer.eos_token_id] * ends], text
    return manifest


def change(folder, name="tokenizer_config.json", **values):
    """Change a file of a tokenizer; None leaves a key out."""
    path = Path(folder) / name
    content = json.loads(path.read_text()) | values if path.exists() else values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


# ---- tokenizers of every kind ----


def byte_level(folder, class_name="PreTrainedTokenizerFast", **options):
    """A byte-level tokenizer as a class of transformers builds it from a vocabulary and merges."""
    model = json.loads(trained().to_str())["model"]
    vocab = model["vocab"] | {token: len(model["vocab"]) + at for at, token in enumerate(SPECIAL[:5])}
    made = getattr(transformers, class_name)(vocab=vocab, merges=[tuple(merge) for merge in model["merges"]], **options)
    made.save_pretrained(folder)


def generic(folder, rust, **options):
    transformers.PreTrainedTokenizerFast(tokenizer_object=rust, **options).save_pretrained(folder)


def bpe(folder):
    """Byte-level, with normalizer, added tokens of every kind, BOS and EOS, padding and truncation."""
    from tokenizers import AddedToken, Tokenizer, normalizers, processors

    rust = Tokenizer.from_str(trained().to_str())
    rust.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    rust.add_tokens([AddedToken("<extra>", normalized=True, lstrip=True, rstrip=True)])
    rust.add_tokens([AddedToken("fox", normalized=False, single_word=True)])
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(token, rust.token_to_id(token)) for token in ("<s>", "</s>")]
    )
    rust.enable_padding(length=40, pad_id=0, pad_token="<|endoftext|>")
    rust.enable_truncation(5)
    generic(folder, rust, bos_token="<s>", eos_token="</s>")


def unigram(folder):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    pieces = [
        (piece, -1.0 - at / 50) for at, piece in enumerate(["▁", *["▁The", "▁fox", "▁dogs", "quick"], *"abcdefox"])
    ]
    rust = Tokenizer(models.Unigram([("<unk>", 0.0), *pieces], unk_id=0, byte_fallback=False))
    rust.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " ")])
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    rust.add_special_tokens(["<s>", "</s>", "<unk>"])
    generic(folder, rust, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def word_piece(folder):
    vocab = {
        token: at
        for at, token in enumerate([*SPECIAL[6:], *["the", "fox", "quick", "dogs", "a", "b", "##s", "##fox", "lines"]])
    }
    transformers.BertTokenizer(vocab=vocab).save_pretrained(folder)


def word_level(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    rust = Tokenizer(models.WordLevel({token: at for at, token in enumerate(["[UNK]", "The", "fox"])}, "[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    rust.post_processor = processors.BertProcessing(("[SEP]", rust.token_to_id("[SEP]")), ("[CLS]", 3))
    generic(folder, rust, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")


def gemma(folder):
    pieces = [
        "<pad>",
        "<eos>",
        "<bos>",
        "<unk>",
        "<mask>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"Thefoxdgs",
    ]
    vocab = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    made = transformers.GemmaTokenizer(vocab=vocab, merges=[])
    made.add_bos_token = True
    made.save_pretrained(folder)


KINDS = {
    "bpe": bpe,
    "unigram": unigram,
    "word piece": word_piece,
    "word level": word_level,
    "gemma": gemma,
    "gpt2": lambda folder: byte_level(folder, "GPT2Tokenizer"),
    "gpt2, prefix space": lambda folder: byte_level(folder, "GPT2Tokenizer", add_prefix_space=True, pad_token="<pad>"),
    "qwen2": lambda folder: byte_level(folder, "Qwen2Tokenizer", eos_token="</s>"),
    "as saved": save_tokenizer,
    "adds both": lambda folder: save_tokenizer(folder, adds_bos=True, adds_eos=True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def copy(kind, folder):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("tokenizer")
            KINDS[kind](made[kind])
        shutil.copytree(made[kind], folder, dirs_exist_ok=True)
        return folder

    return copy


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("name", ["qwen3", "bert_uncased"])
def test_text_has_the_tokens_of_real_tokenizers(shared_data, tmp_path, name):
    shutil.copytree(shared_data / "tokenizers" / name, tmp_path, dirs_exist_ok=True)
    compare(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_text_has_the_tokens_of_every_kind_of_tokenizer(folders, tmp_path, kind):
    compare(folders(kind, tmp_path))


# ---- configurations as older versions wrote them ----


def flags(tokens):
    return {str(token.pop("id")): token for token in tokens}


def older(folder):
    """All that transformers 4 writes beside a tokenizer.json."""
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    eos = {"__type": "AddedToken", **next(t for t in tokens if t["content"] == "</s>")}
    del eos["id"]
    change(
        folder,
        added_tokens_decoder=flags(tokens),
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        extra_special_tokens={},
        clean_up_tokenization_spaces=True,
        model_max_length=1000,
        tokenizer_class="PreTrainedTokenizerFast",
        eos_token=eos,
        add_bos_token=True,
        add_eos_token=False,
        backend=...,
    )
    # not read if the decoder is there
    change(folder, "special_tokens_map.json", eos_token="<s>")
    change(folder, "added_tokens.json", nothing=7)


def oldest(folder):
    """Special and added tokens in files of their own."""
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    change(folder, bos_token=..., backend=..., tokenizer_class="PreTrainedTokenizerFast")
    eos = {"content": "<|im_end|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    change(folder, "special_tokens_map.json", bos_token="<s>", eos_token=eos)
    change(folder, "added_tokens.json", **{token["content"]: token["id"] for token in tokens[-2:]})


def templates_in_files(folder):
    (folder / "chat_template.jinja").write_text(EXACT["chatml"] + "\r\n")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("x")


@pytest.mark.parametrize(
    "edit",
    [
        older,
        oldest,
        templates_in_files,
        lambda folder: (folder / "chat_template.jinja").write_text("a\r\nb"),
        lambda folder: change(folder, chat_template=EXACT["chatml"]),
        lambda folder: change(folder, chat_template={"default": "a", "rag": "b"}),
        lambda folder: change(
            folder, chat_template=[{"name": "default", "template": "a"}, {"name": "x", "template": "b"}]
        ),
        lambda folder: change(folder, pad_token=None, unk_token=None),
    ],
    ids=["older", "oldest", "template files", "one file", "one", "several", "list", "null"],
)
def test_configurations_of_all_versions_are_read_as_transformers_does(tmp_path, edit):
    save_tokenizer(tmp_path, adds_bos=True)
    edit(tmp_path)
    compare(tmp_path)


# ---- unusual settings ----


def change_first_token(folder, **values):
    """Change an added token in the configuration only."""
    tokens = flags(json.loads((folder / "tokenizer.json").read_text())["added_tokens"])
    first = next(iter(tokens))
    change(folder, added_tokens_decoder=tokens | {first: tokens[first] | values})


def reorder(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"][0]["id"] += 1000
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("as saved", lambda folder: change(folder, tokenizer_class="LlamaTokenizer")),
        ("as saved", lambda folder: change(folder, tokenizer_class=...)),
        ("as saved", lambda folder: change(folder, tokenizer_class="GPT2Tokenizer", add_prefix_space=True)),
        ("as saved", lambda folder: change(folder, tokenizer_class="Qwen2Tokenizer")),
        ("as saved", lambda folder: change(folder, image_token="<image>")),
        ("as saved", lambda folder: change(folder, extra_special_tokens={"image_token": "</s>"})),
        ("as saved", lambda folder: change(folder, extra_special_tokens=["<new>"])),
        ("as saved", lambda folder: change(folder, cls_token="<new>")),
        ("as saved", lambda folder: change(folder, cls_token="the")),
        ("as saved", lambda folder: change(folder, fix_mistral_regex=True)),
        ("as saved", lambda folder: change(folder, add_prefix_space=True)),
        ("as saved", lambda folder: change(folder, "config.json", model_type="qwen2")),
        ("as saved", lambda folder: change(folder, "config.json", model_type="mistral")),
        ("as saved", lambda folder: change_first_token(folder, lstrip=True)),
        ("as saved", reorder),
        ("adds both", lambda folder: change(folder, add_eos_token=False)),
        ("gpt2", lambda folder: change(folder, add_bos_token=True)),
        ("gpt2", lambda folder: change(folder, tokenizer_class="Qwen2Tokenizer")),
        ("gpt2", lambda folder: change(folder, "config.json", model_type="qwen2")),
        ("gemma", lambda folder: change(folder, unk_token="<pad>")),
        ("word piece", lambda folder: change(folder, do_lower_case=False)),
        ("word piece", lambda folder: change(folder, clean_up_tokenization_spaces=True)),
    ],
)
def test_unusual_settings_are_read_as_transformers_does(folders, tmp_path, kind, edit):
    edit(folders(kind, tmp_path))
    compare(tmp_path)


def change_parts(folder, **parts):
    """Change parts of a tokenizer.json."""
    change(folder, "tokenizer.json", **parts)


def change_model(folder, **options):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    change_parts(folder, model=model | options)


def flag_special_tokens(folder, **values):
    """Change special tokens in all files."""
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    tokens = [token | (values if token["special"] else {}) for token in tokens]
    change_parts(folder, added_tokens=tokens)
    change(folder, added_tokens_decoder=flags(tokens))


def drop_added_token(folder):
    """Leave an added token out of the configuration, from which these classes take them."""
    tokens = flags(json.loads((folder / "tokenizer.json").read_text())["added_tokens"])
    change(folder, added_tokens_decoder=dict([*tokens.items()][1:]))


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
DIGITS = [{"type": "Digits", "individual_digits": True}, BYTES]


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
@pytest.mark.parametrize(
    ("edit", "by_files"),
    [
        (lambda folder: None, True),
        (lambda folder: change(folder, eos_token=..., pad_token=..., unk_token=...), False),
        (lambda folder: change_parts(folder, decoder=BYTES), True),
        (lambda folder: flag_special_tokens(folder, single_word=False), True),
        (lambda folder: flag_special_tokens(folder, lstrip=True), False),
        (lambda folder: flag_special_tokens(folder, single_word=True, normalized=True), False),
        (drop_added_token, False),
        (lambda folder: change_parts(folder, normalizer={"type": "Lowercase"}), False),
        (lambda folder: change_parts(folder, pre_tokenizer={"type": "Sequence", "pretokenizers": DIGITS}), False),
        (lambda folder: change_parts(folder, decoder=None), False),
        (lambda folder: change_model(folder, ignore_merges=True), False),
        (lambda folder: change_model(folder, unk_token="<unk>"), False),
        (lambda folder: change(folder, add_prefix_space=True), False),
    ],
)
def test_a_class_that_replaces_parts_of_its_files_is_imported_if_they_differ(folders, tmp_path, kind, edit, by_files):
    edit(folders(kind, tmp_path))
    assert (compare(tmp_path).source.text.transformers is None) == by_files


# ---- where it is opened from, and what is imported ----


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("template", [EXACT["chatml"], MARKED["marked"]])
@pytest.mark.parametrize("place", ["folder", "hub"])
def test_packing_chats_imports_neither_transformers_nor_torch(tmp_path, place, template):
    hub = tmp_path / "hub" / "models--org--name"
    folder = hub / "snapshots" / ("0" * 40) if place == "hub" else tmp_path / "tokenizer"
    name = "org/name" if place == "hub" else str(folder)
    save_tokenizer(folder, template=template, adds_bos=True)
    if place == "hub":
        (hub / "refs").mkdir()
        (hub / "refs" / "main").write_text("0" * 40)
    chat = [{"role": "user", "content": WORDS}, {"role": "assistant", "content": "The fox"}]
    source = tmp_path / "chats.jsonl"
    source.write_text(json.dumps({"messages": chat}) + "\n")
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    for arguments in (["pack", "--max-len", "512", "--output", "packed"], ["tokenize", "--output", "tokenized"]):
        command = [arguments[0], str(source), "--tokenizer", name, *arguments[1:]]
        script = f"import sys\nfrom packer.cli import cli\ntry: cli({command})\nfinally: print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )
        imported = set(done.stdout.splitlines()[-1].split())
        assert done.returncode == 0, done.stderr
        assert "tokenizers" in imported
        assert not imported & {
            "transformers",
            "torch",
            "datasets",
            "pandas",
            *(["huggingface_hub"] * (place == "folder")),
        }


@pytest.mark.parametrize("class_name", ["PreTrainedTokenizerFast", "Qwen2Tokenizer"])
def test_special_tokens_in_texts_are_split_if_the_tokenizer_says_so(tmp_path, class_name):
    byte_level(tmp_path, class_name, eos_token="</s>", unk_token="<unk>")
    change(tmp_path, split_special_tokens=True)
    compare(tmp_path)
