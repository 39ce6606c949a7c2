"""What `tests/test_text_real_templates.py` shares with other tests."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.chat_templates import EXACT, MARKED, REWRITING
from tests.helpers.text_corpora import read

pytest.importorskip("transformers")


TOOLS = [{"type": "function", "function": {"name": "find", "description": "Finds it.", "parameters": {}}}]


SYSTEM = {"role": "system", "content": "Be brief, Zoë."}


def templates():
    """Those made here, those of the benchmarks, and those that TRL ships."""
    found = {**EXACT, **MARKED, **REWRITING, "the tokenizer's own": None}
    benchmarks = Path(__file__).parents[2] / "benchmarks" / "chat_templates"
    found |= {f"benchmark's {path.stem}": path.read_text() for path in benchmarks.glob("*.jinja")}
    trl = find_spec("trl")
    if trl is not None and trl.origin is not None:
        folder = Path(trl.origin).parent / "chat_templates"
        found |= {f"TRL's {path.stem}": path.read_text() for path in folder.glob("*.jinja")}
    return found


TEMPLATES = templates()


@cache
def chats(shared_data):
    """Single and several turns, some with a system prompt, tools, a tool's answer, or answers that are context only."""
    dialogues = [record["messages"][: 6 + at] for at, record in enumerate(read(shared_data, "sgd_multiturn")[::220])]
    made = [{"messages": record["messages"]} for record in read(shared_data, "gsm8k")[::200]]
    for number, messages in enumerate(dialogues):
        answers = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        made.append({"messages": messages})
        made.append({"messages": messages[: 2 + number % 4]})
        made.append({"messages": [SYSTEM, *messages]})
        made.append({"messages": messages, "tools": TOOLS})
        masked = [
            {**message, "weight": 0} if turn in answers[::2] else message for turn, message in enumerate(messages)
        ]
        made.append({"messages": masked})
        made.append({"messages": [*messages[:2], {"role": "tool", "content": '{"a": 1}'}, *messages[2:]]})
    return made
