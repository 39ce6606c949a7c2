"""Public datasets, by the names of their fields: each packs at the first try, or with what one line says to type."""

import json
import re
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

import packer
from packer.column_names import input_ids_in
from tests.helpers.chat_templates import EXACT, save_tokenizer
from tests.helpers.commands import refused, succeeded
from tests.helpers.writing import write_lines

pytest.importorskip("transformers")

from tokenizers import Tokenizer

Q, A = "Which river runs here, and is it the Rhine?", "Yes. The Rhine runs here."
CHAT = [{"role": "user", "content": Q}, {"role": "assistant", "content": A}]
SHARED = [{"from": "human", "value": Q}, {"from": "gpt", "value": A}]
TEXT = "The Rhine is a river. It runs from the Alps to the sea."
CODE = "def add(one, other):\n    return one + other\n"
WORSE = "No. The Elbe runs here."
CALLS = '[{"name": "rivers", "arguments": {"at": "here"}}]'
TOOLS = '[{"name": "rivers", "description": "Rivers at a place", "parameters": {"at": {"type": "str"}}}]'

WITH_TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" + EXACT["chatml"]

PROMPTED, TALKED = f"{Q}\n\n[{A}]", f"user: {Q}; assistant: [{A}]"
TEXTS, OTHER = f"[{TEXT}]", f"[{WORSE}]"

AT_ONCE = {
    # texts
    "FineWeb": ({"text": TEXT, "id": "u", "dump": "CC", "url": "x", "token_count": 9, "language": "en"}, TEXTS),
    "C4": ({"text": TEXT, "timestamp": "2019-04-25T12:57:54Z", "url": "http://x.org/a"}, TEXTS),
    "Wikipedia": ({"id": "1", "url": "http://x.org/a", "title": "Rhine", "text": TEXT}, TEXTS),
    "The Pile": ({"text": TEXT, "meta": {"pile_set_name": "Books3"}}, TEXTS),
    "RedPajama": ({"text": TEXT, "meta": '{"url": "http://x.org"}', "red_pajama_subset": "c4"}, TEXTS),
    "TinyStories": ({"text": TEXT}, TEXTS),
    # prompts with completions
    "Alpaca": ({"instruction": Q, "input": "", "output": A}, PROMPTED),
    "CodeAlpaca": ({"output": A, "instruction": Q, "input": ""}, PROMPTED),
    "BELLE": ({"instruction": Q, "input": "", "output": A}, PROMPTED),
    "Dolly": ({"instruction": Q, "context": "", "response": A, "category": "open_qa"}, PROMPTED),
    "Evol-CodeAlpaca": ({"instruction": Q, "output": A}, PROMPTED),
    "Magicoder Evol": ({"instruction": Q, "response": A}, PROMPTED),
    "Magicoder OSS": ({"lang": "python", "index": 1, "seed": CODE, "problem": Q, "solution": A}, PROMPTED),
    "COIG-CQIA": (
        {"instruction": Q, "input": "", "output": A, "task_type": {"major": ["q"], "minor": []}, "metadata": None},
        PROMPTED,
    ),
    "Firefly": ({"kind": "OpenQA", "input": Q, "target": A}, PROMPTED),
    "Aya": ({"inputs": Q, "targets": A, "language": "English", "annotation_type": "re-annotations"}, PROMPTED),
    "FLAN": ({"inputs": Q, "targets": A, "_template_idx": 3, "_task_source": "NIv2", "_template_type": "fs"}, PROMPTED),
    "P3": (
        {"inputs": [3, 5], "inputs_pretokenized": Q, "targets": [4], "targets_pretokenized": A},
        PROMPTED,
    ),
    "GSM8K": ({"question": Q, "answer": A}, PROMPTED),
    "MATH": ({"problem": Q, "level": "Level 5", "type": "Algebra", "solution": A}, PROMPTED),
    "MetaMath": ({"query": Q, "response": A, "type": "GSM_Rephrased", "original_question": TEXT}, PROMPTED),
    "OpenOrca, without a system prompt": ({"id": "1", "system_prompt": "", "question": Q, "response": A}, PROMPTED),
    "HelpSteer": ({"prompt": Q, "response": A, "helpfulness": 4, "correctness": 3}, PROMPTED),
    "TRL": ({"prompt": f"{Q} ", "completion": A}, f"{Q} [{A}]"),
    # chats
    "OpenAI": ({"messages": CHAT, "parallel_tool_calls": False}, TALKED),
    "UltraChat 200k": ({"prompt": Q, "prompt_id": "1", "messages": CHAT}, TALKED),
    "Tulu 3": ({"id": "1", "messages": CHAT, "source": "flan"}, TALKED),
    "SmolTalk": ({"messages": CHAT, "source": "magpie"}, TALKED),
    "no_robots": ({"prompt": Q, "prompt_id": "1", "messages": CHAT, "category": "Coding"}, TALKED),
    "NuminaMath": ({"source": "olympiads", "problem": Q, "solution": WORSE, "messages": CHAT}, TALKED),
    "OpenR1-Math": ({"problem": Q, "solution": WORSE, "answer": "2", "messages": CHAT, "generations": [A]}, TALKED),
    "UltraFeedback binarized": (
        {"prompt": Q, "chosen": CHAT, "rejected": CHAT, "messages": CHAT, "score_chosen": 8.0},
        TALKED,
    ),
    "ShareGPT": ({"id": "1", "conversations": SHARED}, TALKED),
    "OpenHermes 2.5": ({"conversations": SHARED, "source": "x", "system_prompt": None, "views": None}, TALKED),
    "SlimOrca": (
        {"conversations": [{**SHARED[0], "weight": 0.0}, {**SHARED[1], "weight": 1.0}]},
        TALKED,
    ),
    "Bespoke-Stratos": (
        {"system": "Think.", "conversations": [{"from": "user", "value": Q}, {"from": "assistant", "value": A}]},
        f"system: Think.; {TALKED}",
    ),
    "OpenThoughts": (
        {"system": "Think.", "conversations": [{"from": "user", "value": Q}, {"from": "assistant", "value": A}]},
        f"system: Think.; {TALKED}",
    ),
    "Hermes function calling": (
        {"id": "1", "conversations": [*SHARED, {"from": "tool", "value": "4"}, SHARED[1]], "tools": TOOLS, "task": "x"},
        f"{TALKED}; tool: 4; assistant: [{A}]",
    ),
    "WildChat": (
        {"conversation_hash": "1", "model": "m", "conversation": [{**one, "toxic": False} for one in CHAT], "turn": 1},
        TALKED,
    ),
    "LMSYS-Chat": ({"conversation_id": "1", "model": "m", "conversation": CHAT, "turn": 1, "redacted": False}, TALKED),
    "Capybara": ({"source": "x", "conversation": [{"input": Q, "output": A}] * 2}, f"{TALKED}; {TALKED}"),
}
"""Records that pack at the first try, and what is packed: trained text in brackets, without special tokens."""

AFTER_A_LINE = {
    "The Stack": (
        {"hexsha": "a0b1" * 10, "size": 9, "ext": "py", "content": CODE, "avg_line_length": 9.5},
        f"[{CODE}]",
    ),
    "StarCoder": (
        {"max_stars_repo_path": "a/long/path/to/one/file.py", "max_stars_count": 3, "id": "4", "content": CODE},
        f"[{CODE}]",
    ),
    "RedPajama 2": (
        {
            "raw_content": TEXT,
            "doc_id": "a/b.json.gz/1",
            "meta": '{"x": 1}',
            "quality_signals": f'{{"x": "{TEXT * 9}"}}',
        },
        TEXTS,
    ),
    "Alpaca of Stanford": ({"instruction": Q, "input": "", "output": A, "text": f"{Q} {A}"}, f"[{Q} {A}]"),
    "OpenOrca": (
        {"id": "1", "system_prompt": "Be brief.", "question": Q, "response": A},
        f"system: Be brief.; {TALKED}",
    ),
    "xLAM": (
        {"id": 1, "query": Q, "answers": CALLS, "tools": TOOLS},
        f"system: {TOOLS}; user: {Q}; assistant: [{CALLS}]",
    ),
    "DeepMath": (
        {"question": Q, "final_answer": "2", "difficulty": 3.0, "topic": "Mathematics -> Rivers", "r1_solution_1": A},
        PROMPTED,
    ),
    "s1K": (
        {"solution": "144", "question": Q, "cot_type": "math", "metadata": "{'x': 1}", "attempt": A, "cot": None},
        PROMPTED,
    ),
    "OpenMathInstruct 2": (
        {"problem": Q, "generated_solution": A, "expected_answer": "2", "problem_source": "augmented_math"},
        PROMPTED,
    ),
    "CNN": ({"article": TEXT, "highlights": "A river.", "id": "a0b1"}, TEXTS),
    "chats by another name": ({"id": "1", "dialog": CHAT, "note": TEXT * 20}, TALKED),
    "chats of ShareGPT by another name": ({"id": "1", "chat": SHARED}, TALKED),
    "chats as JSON": ({"id": "1", "note": TEXT, "messages": json.dumps(CHAT)}, TALKED),
    "chats as JSON by another name": ({"id": "1", "note": TEXT, "turns": json.dumps(CHAT)}, TALKED),
    "HH-RLHF": ({"chosen": f"{Q}{A}", "rejected": f"{Q}{WORSE}"}, f"{Q}[{A}]?{OTHER}"),
    "UltraFeedback without messages": (
        {"prompt": Q, "chosen": CHAT, "rejected": [CHAT[0], {**CHAT[1], "content": WORSE}]},
        f"{TALKED}\n{OTHER}",
    ),
    "Orca DPO": (
        {"system": "", "question": Q, "chosen": A, "rejected": WORSE},
        f"{Q}[\n\n{A}]?[\n\n{WORSE}]",
    ),
    "Orca DPO with a system prompt": (
        {"system": "Be brief.", "question": Q, "chosen": A, "rejected": WORSE},
        f"system: Be brief.; {TALKED}\n{OTHER}",
    ),
}
"""Records that are refused in one line, whose first option packs them."""

NOT_AS_THEY_ARE = {
    "OASST, flat": (
        {"message_id": "2", "parent_id": "1", "text": A, "role": "assistant", "lang": "en"},
        "'parent_id' shows that each record is one message of a tree",
    ),
    "OASST, as trees": (
        {"message_tree_id": "1", "prompt": {"text": Q, "role": "prompter", "replies": [{"text": A, "replies": []}]}},
        "most text is in 'prompt', which holds no messages",
    ),
    "messages, one in each record": (
        {"conversation_id": 1, "role": "assistant", "content": A},
        "each record is one message: write them of each chat into one record",
    ),
    "UltraFeedback, all answers": (
        {"source": "x", "instruction": Q, "models": ["a"], "completions": [{"model": "a", "response": A * 3}]},
        "most text is in 'completions'",
    ),
    "LIMA": (
        {"conversations": [Q, A], "source": "wikihow"},
        "message 0 is a str where an object with a role is expected",
    ),
    "DailyDialog": ({"dialog": [Q, A], "act": [1, 2], "emotion": [0, 0]}, "most text is in 'dialog'"),
    "CoQA": ({"story": "x", "questions": [Q], "answers": {"input_text": [A]}}, "most text is in 'questions'"),
    "nothing to read": ({"id": 1, "label": 0}, "no column holds text or messages"),
}
"""Records that no option packs, and what the line says of them."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=EXACT["chatml"])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("with-tools.jinja").write_text(WITH_TOOLS)


def packed_text(tokenizer):
    """The text of the first document in `out`, as the tables above write it."""
    row = packer.load("out")[0]
    length = row["seq_lengths"][0]
    ids, labels = row[input_ids_in(row)][:length].tolist(), row["labels"][:length].tolist()
    decode = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json")).decode
    is_trained = [label != -100 for label in [labels[1], *labels[1:]]]  # nothing predicts the first token
    runs = [(trained, [ids[at] for at, _ in run]) for trained, run in groupby(enumerate(is_trained), key=itemgetter(1))]
    texts = [(trained, decode(run, skip_special_tokens=False)) for trained, run in runs]
    text = "".join(f"[{text}]" if trained else text for trained, text in texts).replace("</s>", "")
    text = text.replace("<|im_end|>\n]<|im_start|>", "]; ").replace("<|im_end|>\n]", "]").replace("<|im_end|>\n", "; ")
    return re.sub(r"(system|user|assistant|tool)\n", r"\1: ", text.replace("<|im_start|>", ""))


OPTIONS = re.compile(r"--pairs|--text-column [^\s,]+(?:,[^\s,]+)*|--chat-template")


def first_options(line):
    """The options of the first way that a line names."""
    way = re.split(r",? or ", line[OPTIONS.search(line).start() :])[0]
    found = " ".join(OPTIONS.findall(way))
    return found.replace("--chat-template", "--chat-template with-tools.jinja").split()


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_public_dataset_packs_at_the_first_try(tokenizer, name):
    record, text = AT_ONCE[name]
    write_lines(Path("rows.jsonl"), [record] * 2)
    succeeded(
        "pack", "rows.jsonl", "--tokenizer", tokenizer, "--max-len", 512, "-o", "out", "--algorithm", "sequential"
    )
    assert packed_text(tokenizer) == text


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", AFTER_A_LINE)
def test_a_public_dataset_packs_with_the_options_that_one_line_names(tokenizer, name, kind):
    import datasets

    record, text = AFTER_A_LINE[name]
    source = f"rows.{kind}"
    if kind == "jsonl":
        write_lines(Path(source), [record] * 2)
    else:
        datasets.Dataset.from_list([record] * 2).to_parquet(source)
    arguments = ["pack", source, "--tokenizer", tokenizer, "--max-len", 512, "-o", "out", "--algorithm", "sequential"]
    options = first_options(refused(*arguments))
    succeeded(*arguments, *options)
    assert packed_text(tokenizer).startswith(text)


@pytest.mark.parametrize("name", NOT_AS_THEY_ARE)
def test_what_no_option_packs_is_told_apart(tokenizer, name):
    record, words = NOT_AS_THEY_ARE[name]
    write_lines(Path("rows.jsonl"), [record] * 2)
    refused("pack", "rows.jsonl", "--tokenizer", tokenizer, "--max-len", 512, words=(words,))
