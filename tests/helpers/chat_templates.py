"""Chat templates of every manner, and a tokenizer for them, made in place."""

import json
from functools import cache

import numpy as np
import pyarrow as pa

from packer.options import ReadOptions
from packer.text.tokenizer import END_OF_TEXT, train_byte_level

WORDS = "The quick brown fox, 42 dogs;\n\n  and   Zoë's «naïve» café 中文 😀 user assistant system think\n"

LOOP = "{% for message in messages %}"
BODY = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
END = "{% endfor %}"

# what the assistant wrote can be told from the renderings
EXACT = {
    "chatml": LOOP + BODY + END + PROMPT,
    "default system": "{% if messages[0].role != 'system' %}<|im_start|>system\nHelp!<|im_end|>\n{% endif %}"
    + LOOP
    + BODY
    + END
    + PROMPT,
    "trims": LOOP + BODY.replace("message.content", "message.content | trim") + END + PROMPT,
    "no special tokens": LOOP
    + "### {{ message.role }}:\n{{ message.content }}\n\n"
    + END
    # the blank line before the prompt belongs to the turn before it
    + "{% if add_generation_prompt %}### assistant:\n{% endif %}",
    "without the system message": "{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}<|im_start|>system\n{{ system }}"
    + "<|im_end|>\n"
    + LOOP
    + BODY
    + END
    + PROMPT,
    "system in the first turn": "<s>{% if messages[0].role == 'system' %}"
    "{% set prefix = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set prefix = '' %}{% set rest = messages %}{% endif %}"
    "{%- for message in rest -%}<|im_start|>{{ message.role + '\n' + (prefix if loop.first else '') }}"
    "{{ message.content | trim }}<|im_end|>\n{%- endfor -%}" + PROMPT,
    "systems before": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(system='', first=true, tool=false) %}{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{%- if ns.first %}{% set ns.system = ns.system + message['content'] %}"
    "{% set ns.first = false %}{%- else %}{% set ns.system = ns.system + '\n\n' + message['content'] %}{%- endif %}"
    "{%- endif %}{%- endfor %}<s>{{ ns.system }}{%- for message in messages %}{%- if message['role'] == 'tool' %}"
    "{%- set ns.tool = true -%}{{ '[tool]' + message['content'] }}{%- else %}{%- if ns.tool %}{{ '[/tool]' }}"
    "{%- endif %}{%- set ns.tool = false -%}{%- if message['role'] == 'user' %}{{ 'Q' + message.content }}{%- endif %}"
    "{%- if message['role'] == 'assistant' %}{{ 'A' + message['content'] + '</s>' }}{%- endif %}{%- endif %}"
    "{%- endfor -%}{% if ns.tool %}{{ '[/tool]' }}{% endif %}"
    "{% if add_generation_prompt and not ns.tool %}A{% endif %}",
    "no prompt": LOOP
    + "{% if message.role == 'assistant' %} {{ message.content }}</s>{% else %}[INST] {{ message.content }} [/INST]"
    + "{% endif %}"
    + END,
    "prompt behind every user": LOOP + BODY + "{% if loop.last and message.role == 'user' %}<|im_start|>assistant\n"
    "{% endif %}" + END,
}

MARKED = {
    "marked": LOOP
    + "<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
    + "<|im_end|>\n{% endgeneration %}{% else %}{{ message.content }}<|im_end|>\n{% endif %}"
    + END
    + PROMPT,
    "marked, trimming white space": "{%- for message in messages -%}\n  {{- '<|im_start|>' + message.role + '\n' -}}\n"
    "  {%- if message.role == 'assistant' -%}\n    {%- generation -%}\n      {{- message.content + '<|im_end|>' -}}\n"
    "    {%- endgeneration -%}\n  {%- else -%}\n    {{- message.content + '<|im_end|>' -}}\n  {%- endif -%}\n"
    "  {{- '\n' -}}\n{%- endfor -%}" + PROMPT,
    "marked, rewriting earlier turns": LOOP
    + "<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}{% if loop.last %}<think>"
    + "{% endif %}{{ message.content }}<|im_end|>\n{% endgeneration %}{% else %}{{ message.content }}<|im_end|>\n"
    + "{% endif %}"
    + END,
}

# what follows changes what came before, or a generation prompt ends the text
REWRITING = {
    "think block in the last turn": LOOP
    + "<|im_start|>{{ message.role }}\n{% if loop.last and message.role == 'assistant' %}<think>\n\n</think>\n\n"
    + "{% endif %}{{ message.content }}<|im_end|>\n"
    + END
    + PROMPT,
    "system in the last user's turn": LOOP
    + "{% if message.role == 'user' %}[{% if message.content == messages[-1].content or messages | length - "
    + "loop.index <= 1 %}SYSTEM {% endif %}{{ message.content }}]{% else %}{{ message.content }}</s>{% endif %}"
    + END,
    "end of text behind the last turn": LOOP + BODY + END + "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% else %}<|endoftext|>{% endif %}",
}
ALWAYS_PROMPTING = LOOP + BODY + END + "<|im_start|>assistant\n"


@cache
def trained():
    """A byte-level tokenizer.json of a few hundred tokens that knows ChatML."""
    tokenizer = train_byte_level([WORDS] * 4, 340)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "</s>", "<s>"])
    return tokenizer


def save_tokenizer(folder, *, template=None, adds_bos=False, adds_eos=False):
    """Write a tokenizer folder; BOS is <s> and EOS is </s>, added to every text on request."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(trained().to_str())
    single = ["<s>"] * adds_bos + ["$A"] + ["</s>"] * adds_eos
    if adds_bos or adds_eos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(single), special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token=END_OF_TEXT, chat_template=template
    )
    fast.save_pretrained(folder)
    return str(folder)


def auto_tokenizer(path):
    """The tokenizer of transformers, with which packer's is compared."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path))


def text_options(**options) -> ReadOptions:
    """Options of a pack whose rows do not matter."""
    return ReadOptions(**options)


def lists(column: pa.ListArray) -> list[list[int]]:
    """The lists of a column of `Encoder.encode`."""
    return column.to_pylist()


def trained_at(labels: list[int]) -> list[int]:
    return np.flatnonzero(np.array(labels, np.int64) != -100).tolist()


CLOSING = (
    LOOP
    + "{% if not loop.first %}</s>\n{% endif %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    + END
    + "</s>\n"
    + PROMPT
)
"""A turn is closed at the beginning of the next one, and after the loop."""

GLM = (
    "[gMASK]{% for message in messages %}<|{{ 'observation' if message.role == 'tool' else message.role }}|>\n"
    "{{ message.content }}{% if message.tool_calls %}<call>{{ message.tool_calls[0].function | tojson }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""A turn ends where the next role's marker begins; the model stops at <|user|> and <|observation|>."""
GLM_ENDS = ("<|user|>", "<|observation|>")


def save_glm(folder, *, template=GLM, ends=(*GLM_ENDS, END_OF_TEXT)):
    """Write a tokenizer folder whose generation_config.json names `ends`; without any, there is no such file."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = train_byte_level([WORDS] * 4, 340)
    tokenizer.add_special_tokens(["[gMASK]", "<|assistant|>", "<|system|>", *GLM_ENDS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT, chat_template=template)
    fast.save_pretrained(folder)
    if ends:
        ids = [tokenizer.token_to_id(token) for token in ends]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids if len(ids) > 1 else ids[0]}))
    return str(folder)


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

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS]" + tools | tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- out[:-1] + ', "id": "' + tool_call.id + '"}' + (", " if not loop.last else "]" + eos_token) }}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {%- if not message.tool_call_id is defined or message.tool_call_id | length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id }}
        {{- '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
"""As Mistral 7B v0.3: tools stand before the last question, and roles must alternate."""
