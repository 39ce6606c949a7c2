"""Templates that write one message after the other are told from their syntax, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.text import open_tokenizer
from packer.text.loops import ends_of, with_ends, without_ends
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
    save_tokenizer,
)

pytest.importorskip("transformers")

LLAMA = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|' + message['role'] + '|>' + message['content'] | trim %}{{ content }}{% endfor %}"
)
ONE_AFTER_THE_OTHER = {
    **{name: EXACT[name] for name in ("chatml", "default system", "trims", "no special tokens", "no prompt")},
    "white space": "{%- for message in messages %}\n    {{- '<' + message.role + '>' }}\n  {{ message.content }}\n"
    "{%- endfor %}\n" + PROMPT,
    "lines": "{% for message in messages %}\n  {% if loop.first %}\nfirst\n  {% endif %}\n{{ message.content }}\n  "
    "{% endfor %}\n" + PROMPT,
    "first of all": "{{ bos_token }}" + LOOP + "{% if loop.index0 == 0 and messages[0]['role'] != 'user' %}!{% endif %}"
    "{{ message.content }}{% for word in message.content.split() %}{{ loop.last }}{% endfor %}{% endfor %}",
    "a count so far": "{% set seen = namespace(count=0) %}" + LOOP + "{% set seen.count = seen.count + 1 %}"
    "{{ seen.count }}" + BODY + END + PROMPT,
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
    "marked": MARKED["marked"],
    "another list": LLAMA,
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
    "broken": LOOP + "{{",
}  # fmt: skip

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
def render(tmp_path_factory):
    tokenizer = open_tokenizer(save_tokenizer(tmp_path_factory.mktemp("tokenizer"), adds_bos=True))

    def rendered(template, messages, *, prompt=False):
        (text,) = tokenizer.apply_chat_template(
            [messages], chat_template=template, tokenize=False, add_generation_prompt=prompt
        )
        return text

    return rendered


@pytest.mark.parametrize("template", ONE_AFTER_THE_OTHER.values(), ids=ONE_AFTER_THE_OTHER)
@given(conversation=conversations, other=conversations)
def test_one_rendering_tells_what_one_for_each_beginning_does(render, template, conversation, other):
    whole = render(template, conversation)
    ends = ends_of(render(with_ends(template), conversation), len(conversation))
    beginnings = [render(template, conversation[:turn]) for turn in range(1, len(conversation) + 1)]
    assert [whole[:end] for end in ends] == beginnings
    prompt = render(template, other, prompt=True).removeprefix(render(template, other))
    for turn, beginning in enumerate(beginnings, 1):
        assert render(template, conversation[:turn], prompt=True) == beginning + prompt


@pytest.mark.parametrize("template", LOOKING_AHEAD.values(), ids=LOOKING_AHEAD)
def test_a_template_that_may_look_ahead_is_rendered_for_each_beginning(template):
    assert with_ends(template) is None


@pytest.mark.parametrize("role", IN_CASES)
@given(conversation=conversations)
def test_a_template_says_when_it_looked_ahead(render, role, conversation):
    template = IN_CASES[role]
    whole, marked = render(template, conversation), render(with_ends(template), conversation)
    assert without_ends(marked) == whole
    ends = ends_of(marked, len(conversation))
    if any(message["role"] == role and message["content"] for message in conversation):
        assert ends is None
    if all(message["role"] != role for message in conversation):
        assert ends is not None
    for turn, end in enumerate(ends or [], 1):
        assert render(template, conversation[:turn]) == whole[:end]
        assert render(template, conversation[:turn], prompt=True).startswith(whole[:end])


def test_what_ends_otherwise_is_told(render):
    chat = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    left = [LOOP + BODY + tag + END for tag in ("{% continue %}", "{% break %}")]
    for template in (ALWAYS_PROMPTING, REWRITING[AT_THE_END], *left):
        assert ends_of(render(with_ends(template), chat), 2) is None
    chat[0]["content"] = "\U000f5afd"
    template = EXACT["chatml"]
    assert ends_of(render(with_ends(template), chat), 2) is None
