"""Where messages end is what a rendering for each beginning shows, whatever templates look at."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.text import TextError
from packer.text.conversations import Chat
from packer.text.message_ends import ChatTemplate
from packer.text.tokenizer import of_transformers
from tests import naive_chats
from tests.chat_templates import (
    ALWAYS_PROMPTING,
    BODY,
    END,
    EXACT,
    LOOP,
    MARKED,
    PROMPT,
    REWRITING,
    WORDS,
    auto_tokenizer,
    save_tokenizer,
)

pytest.importorskip("transformers")

WITHOUT_CASES = (
    "chatml",
    "default system",
    "trims",
    "no special tokens",
    "no prompt",
    "without the system message",
    "system in the first turn",
)
LLAMA = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|' + message['role'] + '|>' + message['content'] | trim %}{{ content }}{% endfor %}"
)
ONE_AFTER_THE_OTHER = {
    **{name: EXACT[name] for name in WITHOUT_CASES},
    **{name: MARKED[name] for name in ("marked", "marked, trimming white space")},
    "white space": "{%- for message in messages %}\n    {{- '<' + message.role + '>' }}\n  {{ message.content }}\n"
    "{%- endfor %}\n" + PROMPT,
    "lines": "{% for message in messages %}\n  {% if loop.first %}\nfirst\n  {% endif %}\n{{ message.content }}\n  "
    "{% endfor %}\n" + PROMPT,
    "first of all": "{{ bos_token }}" + LOOP + "{% if loop.index0 == 0 and messages[0]['role'] != 'user' %}!{% endif %}"
    "{{ message.content }}{% for word in message.content.split() %}{{ loop.last }}{% endfor %}{% endfor %}",
    "a count so far": "{% set seen = namespace(count=0) %}" + LOOP + "{% set seen.count = seen.count + 1 %}"
    "{{ seen.count }}" + BODY + END + PROMPT,
    "another list": LLAMA,
    "without the first": "{% set first = messages[0].content %}{% set messages = messages[1:] %}{{ first }}"
    + LOOP + "{{ loop.index }}" + BODY + END + PROMPT,
    "a list set within the loop": LOOP + "{% set all = messages %}{{ all[0].content }}" + BODY + END + PROMPT,
    "without it in one of three cases": "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "{% elif messages[0].role == 'tool' %}{% if 1 > 2 %}{% endif %}{% set all = messages %}{% set rest = all %}"
    "{% else %}{% set rest = messages %}{% endif %}{{ messages[0].role }}{% for message in rest %}"
    "{{ messages[0].content }}" + BODY + END + PROMPT,
    "white space before it": "  {{ bos_token }}\n  {% set messages = messages[1:] %}\n\n"
    "  {%- for message in messages -%}\n"
    "  {{ message.content }}\n  {%- endfor -%}\n" + PROMPT,
    "a macro": "{% macro say(message) %}" + BODY + "{% endmacro %}" + LOOP + "{{ say(message) }}" + END + PROMPT,
}  # fmt: skip
AT_THE_END = "end of text behind the last turn"
SYSTEM_LAST = "system in the last user's turn"
TOOLS = (
    LOOP
    + "\n    {%- if message.role == 'tool' %}\n"
    + "        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}\n            {{- '<tools>' }}\n"
    + "        {%- endif %}\n        {{- message.content }}\n"
    + '        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}\n            {{- "</tools>" }}\n'
    + "        {%- endif %}\n    {%- else %}\n"
    + "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n    {%- endif %}\n"
    + "{%- endfor %}\n"
    + PROMPT
)
SYSTEM = (
    "{% if messages[0].role == 'system' %}{% if messages | length > 2 %}!{% endif %}{% elif 1 > 2 %}{% endif %}"
    + LOOP
    + "{% if not message.content %}{% elif message.role == 'system' %}{% if 1 %}{% for x in 'ab' %}"
    + "{{ x }}{{ messages[-1].content }}{% endfor %}{% endif %}{% endif %}"
    + BODY
    + END
    + PROMPT
)
ASSISTANT = (
    LOOP
    + "{% if not message.content %}{% elif message.role == 'assistant' %}{% if 1 %}{% if 1 > 2 %}"
    + "{% elif loop.last %}!{% endif %}{{ loop.revindex }}{% endif %}{% endif %}"
    + BODY
    + END
    + PROMPT
)
IN_CASES = {"tool": TOOLS, "user": REWRITING[SYSTEM_LAST], "system": SYSTEM, "assistant": ASSISTANT}
"""Templates that look ahead for messages of one role alone."""

LOOKING_AHEAD = {
    **{name: template for name, template in REWRITING.items() if name not in (AT_THE_END, SYSTEM_LAST)},
    "in a branch of an outermost condition": LOOP + "{% if message.role == 'tool' %}{% elif loop.last %}!{% endif %}"
    + BODY + END + PROMPT,
    "prompt behind every user": EXACT["prompt behind every user"],
    "marked, rewriting earlier turns": MARKED["marked, rewriting earlier turns"],
    **{f"messages{part}": "{% set messages = messages" + part + " %}" + LOOP + BODY + END + PROMPT for part in
       ("[2:]", "[:1]", "[1:][:1]", "[1::2]", "[::-1]", "[-1:]", " | reverse", " + messages", "[1:] | list", "[0:1]")},
    "the first of those left": "{% set messages = messages[1:] %}{{ messages[0].content }}" + LOOP + BODY + END,
    "the first of those left, in a loop over all": "{% set rest = messages[1:] %}" + LOOP
    + "{{ rest[0].content }}" + BODY + END,
    "some left by the loop": "{% set messages = messages[1:] %}" + LOOP
    + "{% if message.role == 'tool' %}{% continue %}{% endif %}" + BODY + END,
    "those left in a macro": "{% macro first() %}{{ messages[0].content }}{% endmacro %}"
    "{% set messages = messages[1:] %}{{ first() }}" + LOOP + BODY + END,
    "set within the loop": LOOP + "{% set messages = messages[1:] %}{{ messages[0].content }}" + BODY + END,
    "the first of those left, in a loop over them": "{% set messages = messages[1:] %}" + LOOP
    + "{{ messages[0].content }}" + BODY + END,
    "set by another loop": "{% for x in [1] %}{% set messages = messages[1:] %}{{ messages[0].content }}{% endfor %}"
    + LOOP + BODY + END,
    "each by the list's name": "{% set rest = messages %}{% for rest in rest %}{{ rest[0].content }}" + END,
    "the end's token": "{% set eos_token = messages[0].content %}" + LOOP + BODY + END
    + "{% if add_generation_prompt %}{{ eos_token }}{% endif %}",
    "noted before": "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = m.content %}{% endfor %}"
    "{{ ns.x }}" + LOOP + BODY + END,
    "systems before": EXACT["systems before"],
    "noted of all but the first, by a name": "{% set ns = namespace(x='') %}{% set rest = messages[1:] %}"
    "{% for m in rest %}{% set ns.x = m.content %}{% endfor %}{{ ns.x }}" + LOOP + BODY + END,
    "set again, at the end": "{% set ns = namespace(x=1) %}" + LOOP + "{% set ns = namespace(x=0) %}" + BODY + END
    + "{% if ns.x %}!{% endif %}",
    **{f"{name} at the end": "{% set ns = namespace(x=0) %}{% set other = 1 %}" + LOOP + "{% set ns.x = loop.index %}"
       "{% set y = namespace(x=1) %}" + BODY + END + end
       for name, end in (
           ("written", "{{ ns.x }}"),
           ("compared", "{% if add_generation_prompt and ns.x == 2 %}!{% endif %}"),
           ("chosen", "{{ '!' if ns.x }}"),
           ("of the loop", "{% if y.x %}!{% endif %}"),
           ("of the message", "{% if message.content %}!{% endif %}"),
       )},
    "the last message": LOOP + BODY + "{% if message == messages[-1] %}!{% endif %}" + END + PROMPT,
    "how many": LOOP + "{{ messages | length }}" + BODY + END + PROMPT,
    "next": LOOP + BODY + "{{ loop.nextitem.role }}" + END + PROMPT,
    "left": LOOP + BODY + "{{ loop.revindex }}" + END + PROMPT,
    "by another name": LOOP + "{% set here = loop %}{{ here.last }}" + BODY + END + PROMPT,
    "the loop by key": LOOP + "{{ loop['last'] }}" + BODY + END + PROMPT,
    "in an inner loop's list": LOOP + "{% for x in [loop.last] %}{{ x }}{% endfor %}" + BODY + END + PROMPT,
    "in a macro": "{% macro f() %}{{ messages | length }}{% endmacro %}" + LOOP + "{{ f() }}" + BODY + END + PROMPT,
    "what is asked for": LOOP + "{% if add_generation_prompt %}!{% endif %}" + BODY + END,
    "a count at the end": "{% set seen = namespace(count=0) %}" + LOOP + "{% set seen.count = seen.count + 1 %}" + BODY
    + END + "{% if add_generation_prompt %}{{ seen.count }}{% endif %}",
    "two loops": LOOP + BODY + END + LOOP + BODY + END,
    "none of it": LOOP + BODY + "{% else %}nothing" + END,
    "some": "{% for message in messages if message.role != 'tool' %}" + BODY + END,
    "last words": LOOP + BODY + END + "{{ messages[0].content }}",
    "a later end": LOOP + BODY + END + "{% for x in [1] %}{% endfor %}",
    "captured": "{% set all %}" + LOOP + BODY + END + "{% endset %}{{ all | upper }}",
    "no loop": "{{ messages[0].content }}",
}  # fmt: skip

TWICE = "{% set messages = messages[1:] %}{% set messages = messages[1:] %}" + LOOP + BODY + END + PROMPT
ONE_CASE = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% endif %}{% for message in rest %}"
    + BODY
    + END
    + PROMPT
)
TEMPLATES = {
    **ONE_AFTER_THE_OTHER,
    **IN_CASES,
    **LOOKING_AHEAD,
    "more left out than the first": TWICE,
    "a list that is set in one case only": ONE_CASE,
    "always prompting": ALWAYS_PROMPTING,
    "end of text behind the last": REWRITING[AT_THE_END],
    **{f"{tag} in the loop": LOOP + BODY + "{% " + tag + " %}" + END for tag in ("continue", "break")},
}
PROMPTING = (ALWAYS_PROMPTING,)

conversations = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system", "tool"]),
        st.text(st.sampled_from(WORDS), max_size=12),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return auto_tokenizer(save_tokenizer(tmp_path_factory.mktemp("tokenizer"), adds_bos=True))


def check(tokenizer, template, conversation, tools=None):
    """Locate a chat; text, turns and answers are those that a rendering for each beginning shows."""
    render = naive_chats.renderer(tokenizer, template, tools)
    whole = render(conversation, prompt=False)
    chat_template = ChatTemplate(of_transformers(tokenizer), template)
    for train_on in ("all", "assistant"):
        try:
            found = chat_template.locate(Chat(0, conversation, tools=tools), train_on, turns=True)
        except TextError:
            assert whole is None or train_on == "assistant"
            continue
        assert found.text == whole
        starts = naive_chats.turn_starts(render, conversation)
        assert found.turn_starts == starts or (found.turn_starts == [0] and template in PROMPTING)
        if train_on == "assistant":
            trained = [False] * len(whole)
            for first, last in found.trained:
                trained[first:last] = [True] * (last - first)
            assert "endgeneration" in template or trained == naive_chats.assistant_characters(render, conversation)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@settings(max_examples=20)
@given(conversation=conversations)
def test_one_rendering_tells_what_one_for_each_beginning_does(tokenizer, template, conversation):
    check(tokenizer, template, conversation)


PUBLISHED = [
    *("cohere", "cohere_training"),
    *("gemma3", "gemma3_training"),
    *("lfm2", "lfm2_training", "lfm2_v2"),
    *("llama3", "llama3_1", "llama3_2"),
]
turns = st.lists(st.text(st.sampled_from(WORDS), max_size=8), min_size=1, max_size=7)


@st.composite
def dialogues(draw):
    """A system prompt or none, questions and answers, some with thoughts or calls, and now and then what is odd."""
    contents = draw(turns)
    system = [{"role": "system", "content": contents.pop()}] if draw(st.booleans()) else []
    said = [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]
    for message in said[1::2]:
        odd = draw(st.sampled_from(["", "", "", "thought", "call"]))
        if odd == "thought":
            message["content"] = f"<think>\nfox\n</think>{message['content']}"
        if odd == "call":
            message["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    chat = system + said
    if draw(st.integers(0, 5)) == 0:
        odd = {"role": draw(st.sampled_from(["system", "tool", "user"])), "content": "dogs"}
        chat.insert(draw(st.integers(0, len(chat))), odd)
    return chat


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=40)
@given(conversation=dialogues(), tools=st.sampled_from([None, None, [{"type": "function"}]]))
def test_published_templates_tell_what_one_rendering_for_each_beginning_does(tokenizer, name, conversation, tools):
    found = find_spec("trl")
    path = found and Path(found.origin).parent / "chat_templates" / f"{name}.jinja"
    if not path or not path.exists():
        pytest.skip("needs trl with this template")
    check(tokenizer, path.read_text(), conversation, tools)


@pytest.mark.parametrize("mark", ["\U000f5afb", "\U000f5afc", "\U000f5afd", "\U000f5afe", "\U000f5aff"])
def test_chats_may_hold_the_characters_of_marks(tokenizer, mark):
    for template in (EXACT["chatml"], MARKED["marked"], LOOP + mark + BODY + END + PROMPT):
        check(tokenizer, template, [{"role": "user", "content": f"a{mark}"}, {"role": "assistant", "content": mark}])
