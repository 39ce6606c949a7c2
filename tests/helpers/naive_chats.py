"""Slow, obvious twin of packer/text/chat_template.py, which renders every beginning of a chat and compares it."""


def renderer(tokenizer, template=None, tools=None):
    """A function that renders messages by a chat template; it returns None if the template refuses them."""

    def render(messages, *, prompt):
        try:
            (text,) = tokenizer.apply_chat_template(
                [messages], chat_template=template, tools=tools, tokenize=False, add_generation_prompt=prompt
            )
        except Exception:
            return None
        return text

    return render


def message_ends(render, messages):
    """Where renderings of the first message, the first two, ... end in the whole; None for one that is no beginning."""
    whole = render(messages, prompt=False)
    parts = [render(messages[:count], prompt=False) for count in range(1, len(messages) + 1)]
    return [len(part) if part is not None and whole.startswith(part) else None for part in parts]


def exchanges(messages):
    """The messages with which exchanges begin, without the first exchange: a question, with systems beside it."""
    asking = ("system", "developer", "user")
    found = []
    for at, message in enumerate(messages):
        first = at
        while first and messages[first - 1]["role"] in asking:
            first -= 1
        if message["role"] == "user" and first and first not in found:
            found.append(first)
    return found


def exchange_starts(render, messages):
    """By message with which an exchange begins: its character, where a rendering of those before shows it, or None."""
    ends = message_ends(render, messages)
    return {first: ends[first - 1] for first in exchanges(messages)}


def assistant_characters(render, messages, masked=()):
    """For every character of a chat whether it is trained; None if a rendering is not the beginning of the whole.

    An answer begins where the model begins to write: behind the messages before it and the generation prompt.
    """
    whole = render(messages, prompt=False)
    trained = [False] * len(whole)
    for turn, message in enumerate(messages):
        if message["role"] != "assistant" or turn in masked:
            continue
        before, after = render(messages[:turn], prompt=True), render(messages[: turn + 1], prompt=False)
        if before is None or after is None or not (whole.startswith(before) and whole.startswith(after)):
            return None
        if len(after) < len(before):
            return None
        trained[len(before) : len(after)] = [True] * (len(after) - len(before))
    return trained


def tokens_of_characters(tokenizer, text, wanted):
    """Tokens of a text, and which of them hold a wanted character."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    return encoded["input_ids"], [at for at, (start, end) in enumerate(offsets) if any(wanted[start:end])]


def tokens_of_starts(tokenizer, text, starts):
    """The tokens that hold these characters, or the next ones where none does."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    found = [next((at for at, (_, end) in enumerate(offsets) if end > start), None) for start in starts]
    return sorted({at for at in found if at is not None})
