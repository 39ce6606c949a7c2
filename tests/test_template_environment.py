"""Chat templates write the same text as with transformers, and refuse the same."""

import jinja2
import pytest

from packer.sources.documents import DocumentError
from packer.text.conversations import Chat, messages_of, tools_of
from packer.text.rendering import Templates
from packer.text.tokenizer import of_transformers
from tests.helpers.chat_templates import ALWAYS_PROMPTING, EXACT, MARKED, REWRITING, auto_tokenizer, save_tokenizer

pytest.importorskip("transformers")

CHATS = [
    [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": " <b> & 'é' \n"}],
    [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "fox"}], "number": 3, "none": None, "some": [1.5, True]},
        {"role": "assistant", "content": "a", "thinking": "hm", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "content": "{}", "name": "f"},
    ],
    [{"role": "assistant", "reasoning": "r", "content": "b"}, {"role": "assistant", "reasoning_content": "q"}],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<é>"}}]

TEMPLATES = {
    **EXACT,
    **MARKED,
    **REWRITING,
    "always prompting": ALWAYS_PROMPTING,
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}[{{ messages | length }}]",
    "all of a message": "{% for message in messages %}{{ message | tojson }}{{ message }}{% endfor %}",
    "tools": "{{ tools | tojson(indent=2) }}{{ tools is none }}{{ documents }}{{ tools | tojson(sort_keys=1) }}",
    "JSON": "{{ messages | tojson(ensure_ascii=true, separators=(',', ':')) }}{{ '<é>' | tojson }}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }};{% endfor %}",
    "arguments": "{{ flag }}{{ nested.a[0] }}{{ enable_thinking is defined }}{{ custom_tools }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{% continue %}x{% endfor %}",
    "white space": "  {% if true %}\n  a\n  {% endif %}\n{#- c -#}\n  {{- ' b ' -}}\n\n",
    "namespace": "{% set ns = namespace(a=1, self=2) %}{% set ns.a = 3 %}{{ ns.a }}{{ ns.self }}",
    "namespace, private": "{% set ns = namespace(_a=1) %}",
    "namespace, private later": "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "dict": "{{ dict(a=1, **{'b': 2}) }}{{ dict.fromkeys('ab') }}",
    "attributes of dict": "{{ dict.__class__ }}{{ dict.mro }}",
    "refusal": "{% if messages | length != 2 %}{{ raise_exception('Two messages only') }}{% endif %}",
    "change of a list": "{{ messages.append(1) }}",
    "change of a message": "{% for m in messages %}{{ m.update(a=1) }}{% endfor %}",
    "way out of the sandbox": "{{ ''.__class__.__mro__ }}",
    "another way": "{{ cycler.__init__.__globals__ }}",
    "a third way": "{{ raise_exception.__globals__ }}{{ self._TemplateReference__context }}",
    "undefined": "{{ nothing }}{{ messages[0].nothing }}{{ nothing.of_it }}",
    "syntax": "{% for m in messages %}",
    "unknown tag": "{% generate %}",
    "unknown filter": "{{ messages | nothing }}",
    "division": "{{ 1 / 0 }}",
    "include": "{% include '/etc/passwd' %}",
    "generation, with names of its own": "{% set x = 1 %}{% for m in messages %}{% set y = m.role %}{% generation %}"
    "{{ loop.index }}{{ x }}{{ y }}{{ z }}{% set x = 2 %}{% set y = 3 %}{% set z = 4 %}{{ x }}{{ y }}{{ z }}"
    "{% endgeneration %}{{ x }}{{ y }}{{ z }}{% endfor %}{{ x }}",
    "generation, in a recursive loop": "{% for m in [[1, [2, [3]]]] recursive %}{% generation %}{{ loop.depth }}"
    "{% if m is sequence %}{{ loop(m) }}{% else %}{{ m }}{% endif %}{% endgeneration %}{% endfor %}",
    "generation, captured": "{% set x %}{% generation %}{% macro f(a) %}{{ a }}{% endmacro %}  {{ f(1) }}  "
    "{% endgeneration %}{% endset %}{{ x | trim }}{{ f }}{% filter upper %}{% generation %}a{% endgeneration %}"
    "{% endfilter %}",
    "generation, with the caller's name": "{% macro f() %}{% generation %}{{ caller() }}{% endgeneration %}"
    "{% endmacro %}{% call f() %}x{% endcall %}",
    "generation, with more arguments": "{% macro f() %}{% generation %}{{ varargs }}{{ kwargs }}{% endgeneration %}"
    "{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, a=2) }}",
    "generation, left by a loop": "{% for m in messages %}{% generation %}{{ m.role }}{% break %}{% endgeneration %}"
    "{% endfor %}",
    "generation, with a loop that is left": "{% for m in messages %}{% generation %}{{ m.role }}{% for x in 'ab' %}"
    "{% if x == 'b' %}{% continue %}{% endif %}{{ x }}{% endfor %}{% endgeneration %}{% endfor %}",
    "keys that dictionaries have attributes for": "{% for m in messages %}{% for k, v in m.items() %}{{ k }}{{ v }}"
    "{% endfor %}{{ m.get('role') }}{% endfor %}{% set d = {'items': 1, 'copy': 2, '__class__': 3, 'a': 4} %}"
    "{{ d.items is number }}{{ d['items'] }}{{ d.copy is number }}{{ d.__class__ }}{{ d.a }}{{ d.b }}",
    "nested generation": "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}",
    "macros": "{% macro f(m) %}{{ m.role }}{{ caller() }}{% endmacro %}{% call f(messages[0]) %}x{% endcall %}",
}


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    return auto_tokenizer(save_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_and_errors_are_those_of_transformers(auto, name):
    ours, source = Templates(of_transformers(auto), TEMPLATES[name]), TEMPLATES[name]
    for messages in CHATS:
        for prompt in (False, True):
            for tools, kwargs in ((None, {}), (TOOLS, {"flag": True, "nested": {"a": (1,)}, "bos_token": "B"})):
                try:
                    wanted = auto.apply_chat_template(
                        [messages],
                        chat_template=source,
                        tools=tools,
                        tokenize=False,
                        add_generation_prompt=prompt,
                        **kwargs,
                    )[0]
                except Exception as error:
                    wanted = (type(error), str(error))
                    if isinstance(error, SyntaxError):  # of Python, from what jinja2 made of the template
                        found = ours.attempt(Chat(messages_of(messages, "messages")), messages, prompt=prompt)
                        assert isinstance(found, jinja2.TemplateError)
                        assert "its syntax is wrong ('break' outside loop" in str(found)
                        continue
                chat = Chat(messages_of(messages, "messages"), tools=tools_of(tools), kwargs=kwargs)
                found = ours.attempt(chat, chat.messages, prompt=prompt)
                assert (found if isinstance(found, str) else (type(found), str(found))) == wanted


@pytest.mark.parametrize(
    "random", ["{{ messages | random }}", "{{ lipsum() }}", "{% filter random %}ab{% endfilter %}"]
)
def test_a_template_writes_nothing_random(auto, random):
    """Equal packs would have other bytes."""
    chat = Chat(messages_of(CHATS[0], "messages"))
    with pytest.raises(DocumentError, match=r"does not render it: .*('random'|'lipsum')"):
        Templates(of_transformers(auto), random).render(chat)


def test_a_template_sees_nothing_but_json():
    """Values of Arrow such as times have methods, which the sandbox does not know."""
    import datetime

    message = {"role": "user", "content": "x", "time": datetime.datetime(2026, 1, 1), "parts": [{"raw": b"x"}]}
    (checked,) = messages_of([message], "messages")
    assert checked == {"role": "user", "content": "x", "time": "<datetime>", "parts": [{"raw": "<bytes>"}]}
    assert tools_of([{"name": datetime.date(2026, 1, 1)}]) == [{"name": "<date>"}]


def test_values_that_are_nested_too_deeply_are_one_line():
    deep = []
    for _ in range(3_000):  # Python 3.15 needs one frame for a level, others more
        deep = [deep]
    with pytest.raises(DocumentError, match="'messages' message 0 has hundreds of lists or objects within"):
        messages_of([{"role": "user", "content": "x", "more": deep}], "messages")
    with pytest.raises(DocumentError, match="'tools' has hundreds of lists"):
        tools_of([{"more": deep}])


@pytest.mark.parametrize("name", ["padding", "return_dict", "max_length"])
def test_arguments_that_do_not_change_the_text_are_left_out(auto, name):
    templates = Templates(of_transformers(auto), "{{ padding }}{{ return_dict }}{{ max_length }}x")
    assert templates.render(Chat(CHATS[0], kwargs={name: 5, "sanitize_control_tokens": False})) == "x"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "tokenize", "continue_final_message"])
def test_arguments_that_are_not_for_templates_are_refused(auto, name):
    with pytest.raises(
        DocumentError, match=rf"TypeError 'chat_template_kwargs' has {name}, which is not an argument of"
    ):
        Templates(of_transformers(auto), "x").render(Chat(CHATS[0], kwargs={name: True}))
