"""What `tests/test_each_answer.py` shares with other tests."""

import pytest

import packer
from packer.column_names import input_ids_in
from tests.helpers.packed_rows import rows_on_disk

pytest.importorskip("transformers")


THOUGHTS = (  # thoughts of earlier answers are left out, as in Qwen3
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' and loop.last %}"
    "<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat(number, answers, *, system=False):
    messages = [{"role": "system", "content": "Be brief."}] if system else []
    for turn in range(answers):
        messages.append({"role": "user", "content": f"Question {number}.{turn}, dogs?"})
        answer = {"role": "assistant", "content": f"The fox {number}", "reasoning_content": f"brown {turn}"}
        messages.append(answer)
    return messages


RECORDS = [
    {"messages": chat(number, answers, system=number % 2 == 1), "topic": f"t{number % 3}"}
    for number, answers in enumerate([1, 3, 0, 2, 4, 1, 2])
]


RECORDS[3]["messages"][2]["weight"] = 0


def documents_in(out):
    """{document: (tokens, labels, kept values)} of all rows, whose documents are whole."""
    found = {}
    options = packer.load(out).manifest.options
    for row in rows_on_disk(out):
        place = 0
        for at, (length, document) in enumerate(zip(row["seq_lengths"], row["doc_ids"], strict=True)):
            if document >= 0:
                assert document not in found
                here = slice(place, place + length)
                kept = {name: row[name][at] for name in options.kept}
                found[document] = row[input_ids_in(row)][here], row["labels"][here], kept
            place += length
    return found


def packed(source, out, tokenizer, **options):
    arguments = {"max_len": 256, "tokenizer": str(tokenizer), "train_on": "each-answer", **options}
    return packer.pack(source, out, **arguments)
