"""Real corpora through real tokenizers: document by document the same, and what TRL trains on."""

import importlib.util
import json
from pathlib import Path

import pytest

from packer.sources.documents import DocumentError
from packer.text.chat_template import ChatTemplate
from packer.text.conversations import Chat
from packer.text.text_columns import recognize
from packer.text.text_encoder import Encoder
from packer.text.tokenizer import of_transformers
from tests.helpers import naive_chats
from tests.helpers.chat_templates import EXACT, MARKED, auto_tokenizer, lists, text_options, trained_at

pytest.importorskip("transformers")
from tests.helpers.text_corpora import read

COMPARED = 50  # records, of sets that others made

TOKENIZERS = ["qwen3", "bert_uncased"]

# where TRL's copies train part of what the generation prompt gives: the header, its newline or the opening of a thought
MARKS_ELSEWHERE = {*("gptoss", "muse_glimmer", "qwen2_5"), *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8")}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request, shared_data):
    return auto_tokenizer(str(shared_data / "tokenizers" / request.param))


@pytest.fixture(scope="module")
def qwen3(shared_data):
    return auto_tokenizer(str(shared_data / "tokenizers" / "qwen3"))


def encode(tokenizer, records, **options):
    options = text_options(tokenizer=tokenizer.name_or_path, **options)
    encoded = Encoder(options, recognize(records[0], "x")).encode(records)
    return encoded, lists(encoded.input_ids), lists(encoded.labels) if encoded.labels else None


def ending(tokenizer):
    """What comes behind a document: EOS, or the [SEP] that BERT adds by itself."""
    return [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []


def test_t0_trains_what_comes_behind_the_tokens_of_the_prompt(shared_data, tokenizer):
    records = read(shared_data, "t0_train_50k")[::4]
    encoded, found, labels = encode(tokenizer, records)
    assert encoded.counts["straddling"] == encoded.counts["untrained"] == 0
    for record, ids, row in zip(records, found, labels, strict=True):
        assert ids == tokenizer(record["prompt"] + record["completion"])["input_ids"] + ending(tokenizer)
        # what BERT adds behind the prompt alone, [SEP], is not there
        alone = tokenizer(record["prompt"])["input_ids"]
        prompt = len(alone) - (tokenizer.sep_token_id is not None)
        assert ids[:prompt] == alone[:prompt]
        assert row == [-100] * prompt + ids[prompt:]


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("corpus", ["sgd_multiturn", "gsm8k"])
@pytest.mark.parametrize("template", [EXACT["chatml"], EXACT["no special tokens"], MARKED["marked"]])
def test_chats_train_what_the_twin_finds(shared_data, tokenizer, corpus, template):
    records = read(shared_data, corpus)[::10]
    _, found, labels = encode(tokenizer, records, chat_template=template)

    render = naive_chats.renderer(tokenizer, template)
    for record, ids, row in zip(records, found, labels, strict=True):
        wanted = naive_chats.assistant_characters(render, record["messages"])
        text = render(record["messages"], prompt=False)
        assert (ids, trained_at(row)) == naive_chats.tokens_of_characters(tokenizer, text, wanted)


def test_qwen3_takes_single_turns_as_its_own_template_writes_them_and_several_by_a_built_in_one(shared_data, qwen3):
    records = read(shared_data, "gsm8k")[::16]
    encoded, found, labels = encode(qwen3, records)
    assert encoded.counts["untrained"] == encoded.counts["straddling"] == 0
    assert found == qwen3.apply_chat_template([r["messages"] for r in records], return_dict=True)["input_ids"]
    answer = qwen3.decode([token for token in labels[0] if token >= 0])
    assert answer == f"<think>\n\n</think>\n\n{records[0]['messages'][1]['content']}<|im_end|>\n"
    several = read(shared_data, "sgd_multiturn")[:10]
    _, found, labels = encode(qwen3, several)
    assert (found, labels) == encode(qwen3, several, chat_template="qwen3")[1:]


def test_gsm8k_in_chatml_is_the_tokenized_set(shared_data, qwen3):
    """The set was made by someone else: labels on the assistant's text and its end of turn."""
    datasets = pytest.importorskip("datasets")
    made = datasets.load_from_disk(str(shared_data / "tokenized" / "gsm8k"))
    with (shared_data / "corpora" / "gsm8k.jsonl").open() as file:
        records = [json.loads(line) for line in file][:COMPARED]
    _, found, labels = encode(qwen3, records, chat_template=EXACT["chatml"])
    assert found == made[:COMPARED]["input_ids"]
    assert labels == made[:COMPARED]["labels"]


# ---- TRL ----


def trl_templates() -> Path:
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("TRL is not installed")
    folder = Path(spec.origin).parent / "chat_templates"
    if not folder.is_dir():
        pytest.skip("this TRL ships no chat templates")
    return folder


def trl_prepares(tokenizer, records, tmp_path, **options):
    """What TRL's SFTTrainer makes of records: tokens and labels."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    config = trl.SFTConfig(str(tmp_path), max_length=None, report_to=[], use_cpu=True, bf16=False, **options)
    trainer = trl.SFTTrainer(
        model, args=config, train_dataset=datasets.Dataset.from_list(records), processing_class=tokenizer
    )
    return trainer.train_dataset["input_ids"][:], trainer.train_dataset["labels"][:]


@pytest.mark.nightly
@pytest.mark.parametrize("corpus", ["gsm8k", "sgd_multiturn"])
def test_trl_trains_on_the_same_tokens_of_chats(shared_data, qwen3, corpus, tmp_path):
    """TRL needs marks, which its copy of Qwen3's template has; it renders a single turn as the original does."""
    records = read(shared_data, corpus)[::4]
    with_marks = (trl_templates() / "qwen3_training.jinja").read_text()
    marked = auto_tokenizer(qwen3.name_or_path)
    marked.chat_template = with_marks
    theirs = trl_prepares(marked, records, tmp_path, assistant_only_loss=True)
    _, ids, labels = encode(qwen3, records, chat_template=with_marks)
    assert (ids, labels) == tuple(map(list, theirs))
    if corpus == "gsm8k":
        assert encode(qwen3, records)[1:] == (ids, labels)


def test_trl_trains_on_the_same_tokens_of_prompts_and_completions(shared_data, qwen3, tmp_path):
    records = read(shared_data, "t0_train_50k")[::16]
    theirs = trl_prepares(qwen3, records, tmp_path)
    assert tuple(map(list, theirs)) == encode(qwen3, records)[1:]


def test_trl_trains_on_the_same_tokens_of_conversational_completions(shared_data, qwen3, tmp_path):
    chats = [record["messages"] for record in read(shared_data, "sgd_multiturn")[::25]]
    cut = [
        {"prompt": chat[: len(chat) // 2 // 2 * 2 + 1], "completion": chat[len(chat) // 2 // 2 * 2 + 1 :]}
        for chat in chats
    ]
    records = [record for record in cut if len(record["completion"]) == 1]
    records += [{"prompt": chat[:1], "completion": chat[1:2]} for chat in chats]
    theirs = trl_prepares(qwen3, records, tmp_path)
    assert tuple(map(list, theirs)) == encode(qwen3, records)[1:]


@pytest.mark.nightly
def test_templates_with_trls_marks_train_what_the_originals_do_turn_by_turn(shared_data, qwen3):
    """Every template that TRL ships in both forms: where both answer and render the same, they agree or are named."""
    folder = trl_templates()
    chats = [Chat(record["messages"][:2]) for record in read(shared_data, "gsm8k")[:3]]
    chats += [Chat(record["messages"][:4]) for record in read(shared_data, "sgd_multiturn")[:3]]
    agreed, different = set(), set()
    for marked in folder.glob("*_training.jinja"):
        name = marked.name.removesuffix("_training.jinja")
        pair = [ChatTemplate(of_transformers(qwen3), path.read_text()) for path in (folder / f"{name}.jinja", marked)]
        for chat in chats:
            try:
                (by_turns,), (by_tags,) = (template.locate(chat, "assistant") for template in pair)
            except DocumentError:
                continue
            if by_turns.text == by_tags.text:
                (agreed if by_turns == by_tags else different).add(name)
    assert len(agreed - different) >= 8
    assert different <= MARKS_ELSEWHERE
