"""The files and folders that README and docs/ name in their examples, small and made up: `write_page_data(folder)`.

    dataset              400 documents of tokens (datasets.save_to_disk), with the columns `topic` (a string),
                         `quality` (a number) and `teacher_logprob` (a number for each token)
    web, code            150 and 100 documents of tokens, as `dataset` but without further columns
    corpus.bin, corpus.idx
                         the documents of `web`, as Megatron-LM stores them
    tokenized/           the same, as datatrove stores them
    train.bin            the same, as nanoGPT stores them; all end in the token 0
    documents.jsonl      60 records with `text`, `topic` and `quality`
    chats.jsonl          80 chats of one to four answers, `messages`; every other one with a system message
    sharegpt.jsonl       20 chats, `conversations`
    alpaca.json          20 records with `instruction`, `input` and `output`
    questions.csv        20 records with `question` and `answer`
    notes/               five text files
    pairs                30 preference pairs of tokens, with labels
    preferences.jsonl    30 preference pairs of messages: `prompt`, `chosen`, `rejected`
    wikipedia            120 documents of tokens for an encoder, each with [CLS] and [SEP]
    lengths.csv          a histogram, `length,count`
    Qwen/Qwen3-0.6B      a tokenizer with the built-in chat template qwen3, and a model of one layer with random
                         weights: what stands in for the model of that name on the Hub
    google-bert/bert-base-uncased    the same, an encoder
    Qwen/Qwen2.5-VL-3B-Instruct      the same with images: a tokenizer, an image processor and a model
    examples             the examples of the repository

All of it is the same on every machine. `tests/helpers/page_blocks.py` copies it to the folder in which a page runs.
"""

import csv
import json
import math
import random
import shutil
from pathlib import Path

from tests.helpers.token_files import in_one, write_array, write_datatrove, write_indexed
from tests.helpers.writing import write_lines

ROOT = Path(__file__).parents[2]

WORDS = """
the a of to and in is it that for on with as at by from this be are was not or an which one all each when where has
row document token segment length model loss batch step rank shard mask label position attention gradient epoch seed
short long first last full empty mixed exact careful plain quick brown lazy red green blue small large next
fox dog river mountain winter summer harbor garden letter machine teacher student answer question number letter paper
jumps runs packs reads writes holds keeps counts finds draws fills splits trains tests shows says waits begins ends
""".split()  # noqa: SIM905  (words read better than quoted strings)

TOPICS = ("history", "music", "physics")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]


class Writer:
    """Makes texts from a seed; `random.random` gives the same numbers in every version of Python."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed).random

    def below(self, limit: int) -> int:
        """Draw a number from 0 to limit - 1."""
        return int(self.draw() * limit)

    def count(self, typical: float, spread: float, most: int) -> int:
        """Draw a number that is log-normal, at least 1 and at most `most`."""
        normal = math.sqrt(-2 * math.log(1 - self.draw())) * math.cos(2 * math.pi * self.draw())
        return max(1, min(most, round(typical * math.exp(spread * normal))))

    def text(self, words: int) -> str:
        """Make sentences."""
        chosen = [WORDS[self.below(len(WORDS))] for _ in range(words)]
        for at in range(0, words, 9):
            chosen[at] = chosen[at].capitalize()
            chosen[min(at + 8, words - 1)] += "."
        return " ".join(chosen)


def write_page_data(folder: Path) -> None:
    """Write everything that this module's docstring lists."""
    tokenizer = _write_tokenizers(folder)
    _write_tokens(folder, tokenizer)
    _write_texts(folder)
    _write_chats(folder)
    _write_models(folder)
    _write_vision_model(folder / "Qwen/Qwen2.5-VL-3B-Instruct")
    (folder / "lengths.csv").write_text(
        "length,count\n" + "".join(f"{length},{10 + length * 7 % 90}\n" for length in range(8, 512))
    )
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))


def _write_tokenizers(folder: Path):
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from packer.text.built_in_templates import built_in
    from packer.text.tokenizer import train_byte_level

    trained = train_byte_level([Writer(0).text(3000)], 700)
    trained.add_special_tokens(SPECIAL)
    qwen = PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    qwen.chat_template = built_in("qwen3").source
    qwen.save_pretrained(folder / "Qwen/Qwen3-0.6B")

    seeing = Tokenizer.from_str(trained.to_str())
    seeing.add_special_tokens(VISION)
    PreTrainedTokenizerFast(tokenizer_object=seeing, eos_token="<|im_end|>", pad_token="<|endoftext|>").save_pretrained(
        folder / "Qwen/Qwen2.5-VL-3B-Instruct"
    )

    encoder = train_byte_level([Writer(0).text(3000)], 600)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "mask", "pad", "unk")}
    encoder.add_special_tokens(list(special.values()))
    PreTrainedTokenizerFast(tokenizer_object=encoder, **special).save_pretrained(
        folder / "google-bert/bert-base-uncased"
    )
    return trained, encoder


def _write_tokens(folder: Path, tokenizers) -> None:
    from datasets import Dataset

    trained, encoder = tokenizers

    def save(name: str, columns: dict) -> None:
        Dataset.from_dict(columns).save_to_disk(folder / name)

    def documents(seed: int, count: int, typical: float, spread: float, most: int) -> list[list[int]]:
        writer = Writer(seed)
        return [[*trained.encode(writer.text(writer.count(typical, spread, most))).ids, 0] for _ in range(count)]

    dataset, draw = documents(1, 400, 150, 1.3, 6000), Writer(2)
    save(
        "dataset",
        {
            "input_ids": dataset,
            "topic": [TOPICS[draw.below(3)] for _ in dataset],
            "quality": [round(draw.draw(), 2) for _ in dataset],
            "teacher_logprob": [[-round(draw.draw(), 2) for _ in ids] for ids in dataset],
        },
    )
    web = documents(3, 150, 200, 0.9, 3000)
    save("web", {"input_ids": web})
    write_indexed(folder / "corpus", in_one(web), "uint16")
    write_array(folder / "train.bin", web)
    (folder / "tokenized").mkdir()
    write_datatrove(folder / "tokenized" / "00000_00000_shuffled.ds", web)
    save("code", {"input_ids": documents(4, 100, 300, 0.7, 3000)})

    pairs, writer = {name: [] for name in ("chosen_input_ids", "rejected_input_ids", "chosen_labels")}, Writer(5)
    pairs["rejected_labels"] = []
    for _ in range(30):
        prompt = trained.encode(writer.text(20)).ids
        for side in ("chosen", "rejected"):
            answer = [*trained.encode(" " + writer.text(writer.count(40, 0.5, 200))).ids, 0]
            pairs[f"{side}_input_ids"].append(prompt + answer)
            pairs[f"{side}_labels"].append([-100] * len(prompt) + answer)
    save("pairs", pairs)

    cls, sep = encoder.token_to_id("[CLS]"), encoder.token_to_id("[SEP]")
    writer = Writer(6)
    save(
        "wikipedia",
        {"input_ids": [[cls, *encoder.encode(writer.text(writer.count(60, 0.6, 250))).ids, sep] for _ in range(120)]},
    )


def _write_texts(folder: Path) -> None:
    writer = Writer(7)
    _write_lines(
        folder / "documents.jsonl",
        [
            {
                "text": writer.text(writer.count(120, 0.8, 2000)),
                "topic": TOPICS[writer.below(3)],
                "quality": round(writer.draw(), 2),
            }
            for _ in range(60)
        ],
    )
    alpaca = [
        {"instruction": writer.text(9), "input": writer.text(12) if number % 2 else "", "output": writer.text(20)}
        for number in range(20)
    ]
    (folder / "alpaca.json").write_text(json.dumps(alpaca, indent=1))
    with (folder / "questions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "answer"])
        rows.writerows([writer.text(9)[:-1] + "?", writer.text(12)] for _ in range(20))
    (folder / "notes").mkdir()
    for name in ("april", "may", "june", "july", "august"):
        (folder / "notes" / f"{name}.txt").write_text(writer.text(writer.count(150, 0.5, 900)) + "\n")


def _write_chats(folder: Path) -> None:
    writer = Writer(8)

    def chat(answers: int) -> list[dict]:
        turns = []
        for _ in range(answers):
            turns.append({"role": "user", "content": writer.text(writer.count(14, 0.5, 80))[:-1] + "?"})
            turns.append({"role": "assistant", "content": writer.text(writer.count(45, 0.8, 600))})
        return turns

    system = [{"role": "system", "content": "You are a careful assistant."}]
    chats = [system * (number % 2) + chat(1 + writer.below(4)) for number in range(80)]
    _write_lines(folder / "chats.jsonl", [{"messages": messages} for messages in chats])
    speakers = {"user": "human", "assistant": "gpt"}
    _write_lines(
        folder / "sharegpt.jsonl",
        [
            {"conversations": [{"from": speakers[turn["role"]], "value": turn["content"]} for turn in chat(2)]}
            for _ in range(20)
        ],
    )
    _write_lines(
        folder / "preferences.jsonl",
        [
            {"prompt": question, "chosen": [good], "rejected": [bad]}
            for _ in range(30)
            for (*question, good), (*_, bad) in [(chat(1), chat(1))]
        ],
    )


def _write_models(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertForMaskedLM, Qwen3Config, Qwen3ForCausalLM

    sizes = {
        "vocab_size": 704,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    torch.manual_seed(0)
    qwen = Qwen3Config(**sizes, num_key_value_heads=1, head_dim=8, max_position_embeddings=8192)
    Qwen3ForCausalLM(qwen).save_pretrained(folder / "Qwen/Qwen3-0.6B")
    BertForMaskedLM(BertConfig(**sizes)).save_pretrained(folder / "google-bert/bert-base-uncased")


def _write_vision_model(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    start, end, image = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(VISION)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "initializer_range": 0.2}
    text = {"vocab_size": 712, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    text |= {"bos_token_id": None, "eos_token_id": 2, "max_position_embeddings": 8192}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config={**sizes, **text, "rope_parameters": rope},
        vision_config={**sizes, "depth": 2, "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [1]},
        image_token_id=image,
        vision_start_token_id=start,
        vision_end_token_id=end,
    )
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    # as the file of the model on the Hub
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
    processor |= {"temporal_patch_size": 2, "min_pixels": 56 * 56, "max_pixels": 12845056}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def _write_lines(path: Path, records: list[dict]) -> None:
    write_lines(path, records)
