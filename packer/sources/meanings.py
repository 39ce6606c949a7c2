"""What the fields of a source mean for training: one table of the names that tools write.

Every field of a record, a message or a part of its content, and every column of a tokenized source, is

- used, or carried by --keep;
- known to be irrelevant for training;
- known, but with a meaning that packer cannot keep, and therefore refused by name;
- unknown, and named once in the summary.

Readers, refusals, warnings, advice about columns and docs/reference/fields.md are derived from this table.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import Literal, NamedTuple, TypeAlias

from packer.column_names import ROLES

Place: TypeAlias = Literal["record", "message", "part", "tokens"]
"""Where a field occurs: in a record of text, a message of a chat, a part of a message's content, or as a column of a
tokenized source."""

Means: TypeAlias = Literal[
    # of a record
    "text",
    "prompt",
    "input",  # follows the prompt
    "completion",
    "chat",
    "answer",  # of a preference pair
    "system",
    "tools",
    "template_arguments",
    "history",
    "desirable",  # whether its completion or its answers are a good example
    "media",
    # of a message or a part
    "role",
    "content",
    "template",  # read by chat templates alone
    "calls",  # of tools
    "reasoning",
    "trained",  # whether it is trained
    "untrained",  # whether it is context only
    "weight",  # how much it is trained; also of a record, or of a column of tokens
    "spans",  # which characters of it are trained
    # of a column of tokens
    "token_ids",
    "labels",
    "mask",  # 1 where tokens are trained
    "inverse_mask",  # 1 where tokens are not trained
    "prompt_length",  # number of tokens at the beginning that are not trained
    "attention",
    "exchanges",
    # of a column of rows that another tool has packed
    "lengths",  # of documents
    "padded_lengths",  # the same, and the last one may be padding
    "offsets",  # where documents begin, and where the last one ends
    "starts",  # where documents begin; a mask beside it is shifted left by one
    "positions",  # of each token in its document
    "numbers",  # of the document of each token, from 1; 0 is padding
    "numbers_from_0",  # the same from 0; -1 is padding
    "shifted_labels",  # of the next token
    "shifted_numbers",  # of the document if the next token is trained, else 0
    # of any field
    "nothing",
    "refused",
]


class Field(NamedTuple):
    """A field with its meaning."""

    name: str
    means: Means
    by: str
    """Tools or datasets that write the field."""
    note: str = ""
    """Details of its meaning. For a refused field, a predicate ("has different meanings ...") and the remedy."""
    beside: tuple[str, ...] = ()
    """Fields that must be present for this meaning."""

    only_lists: bool = False
    """Whether only a list with one number per token has this meaning; other values are irrelevant."""


_OF_TREE = (
    "shows that each record is one message of a tree of chats: write each path from the root to a leaf into one "
    "record, as a list 'messages' of objects with role and content, or pass --text-column text to pack texts without "
    "roles"
)
_MEDIA = "LLaVA, LLaMA-Factory, TRL"
_CLASS = "a single number is the class of the document"
_PADDED = "shows that each document has its own padding; remove the padding first"
_REPEATED = "follows from `input_ids` and `answer_start_idx`"
_SPANS = "`begin_offset`, `end_offset` (the last character), and whether the range is trained"
_OF_TEACHER = "in Axolotl, a list of lists belongs to the top k of a teacher"
_OF_PADDING = "is 1 for padding in some tools and for tokens in others; use an attention_mask, which is 0 for padding"
_OF_TEXT = "index of the text that each sequence comes from"
_BOUNDARIES = "repeats the document boundaries of `attention_mask`, for image models"
_RENAME = "has different meanings in different tools; name it loss_mask if it is 1 for trained tokens, or remove it"
_WEIGHTS = (
    *(Field(name, "weight", "weighted losses") for name in ("sample_weight", "loss_weight")),
    Field("loss_multiplier", "weight", "NeMo-RL"),
    Field("loss_weights", "weight", "LLaMA-Factory, packer tokenize"),
    Field("loss_scale", "weight", "ms-swift"),
)
_MARKS = (
    Field("weight", "weight", "OpenAI, ShareGPT, Axolotl"),
    Field("train", "trained", "Axolotl"),
    Field("loss", "trained", "ms-swift, xtuner"),
    Field("loss_scale", "weight", "ms-swift"),
    Field("loss_mask", "trained", "verl"),
    Field("step_loss_mask", "trained", "slime"),
    Field("trainable", "trained", "Tinker"),
    Field("masked", "untrained", "torchtune"),
)

FIELDS: dict[Place, tuple[Field, ...]] = {
    "record": (
        Field("text", "text", "most corpora"),
        Field("prompt", "prompt", "TRL, OpenAI"),
        Field("instruction", "prompt", "Alpaca, Dolly"),
        Field("question", "prompt", "GSM8K and other questions with answers"),
        Field("problem", "prompt", "NuminaMath, Magicoder"),
        Field("query", "prompt", "MetaMath, xLAM"),
        Field("inputs", "prompt", "FLAN, Aya"),
        Field("inputs_pretokenized", "prompt", "P3"),
        Field("input", "input", "Alpaca"),
        Field("context", "input", "Dolly, SQuAD"),
        Field("completion", "completion", "TRL, OpenAI"),
        Field("response", "completion", "Dolly"),
        Field("output", "completion", "Alpaca"),
        Field("answer", "completion", "GSM8K and other questions with answers"),
        Field("solution", "completion", "NuminaMath, Magicoder"),
        Field("answers", "completion", "xLAM"),
        Field("target", "completion", "Firefly"),
        Field("targets", "completion", "FLAN, Aya"),
        Field("targets_pretokenized", "completion", "P3"),
        Field("messages", "chat", "OpenAI, TRL"),
        Field("conversations", "chat", "ShareGPT"),
        Field("conversation", "chat", "WildChat, LMSYS-Chat, Capybara"),
        *(Field(role, "answer", "TRL, preference pairs") for role in ROLES),
        Field("system", "system", "ShareGPT, LLaMA-Factory"),
        Field("system_prompt", "system", "OpenOrca, OpenHermes"),
        Field("tools", "tools", "OpenAI, TRL"),
        Field("chat_template_kwargs", "template_arguments", "TRL"),
        Field("history", "history", "LLaMA-Factory"),
        Field("parent_id", "refused", "OASST", _OF_TREE, beside=("role", "text")),
        Field("label", "desirable", "TRL, KTO"),
        Field("kto_tag", "desirable", "LLaMA-Factory, KTO"),
        *_WEIGHTS,
        *(Field(f"{media}{s}", "media", _MEDIA) for media in ("image", "video", "audio") for s in ("", "s")),
    ),
    "message": (
        Field("role", "role", "OpenAI"),
        Field("from", "role", "ShareGPT"),
        Field("content", "content", "OpenAI"),
        Field("value", "content", "ShareGPT"),
        Field("input", "prompt", "Capybara"),
        Field("output", "completion", "Capybara"),
        *_MARKS,
        Field("train_detail", "spans", "Axolotl", _SPANS),
        Field("reasoning_content", "reasoning", "DeepSeek, Qwen"),
        Field("thinking", "reasoning", "gpt-oss"),
        Field("reasoning", "reasoning", "OpenRouter"),
        Field("name", "template", "OpenAI"),
        Field("tool_calls", "calls", "OpenAI"),
        Field("tool_call_id", "nothing", "OpenAI", "results follow their calls in order; a chat template may read it"),
    ),
    "part": (Field("type", "role", "OpenAI"), Field("text", "content", "OpenAI"), *_MARKS),
    "tokens": (
        Field("input_ids", "token_ids", "Hugging Face tokenizers"),
        Field("labels", "labels", "Hugging Face trainers"),
        *(
            Field(name, "labels", "Hugging Face data collators", _CLASS, only_lists=True)
            for name in ("label", "label_ids")
        ),
        Field("loss_mask", "mask", "Megatron-LM, NeMo, slime, prime-rl", "other numbers are weights of the loss"),
        Field("completion_mask", "mask", "TRL"),
        Field("assistant_masks", "mask", "transformers, TRL"),
        Field("assistant_mask", "mask", "ART"),
        Field("assistant_tokens_mask", "mask", "no known tool; transformers has an argument of this name"),
        Field("response_mask", "mask", "verl, ROLL"),
        Field("target_mask", "mask", "Gemma in JAX", _OF_TEACHER, only_lists=True),
        Field("label_mask", "mask", "OLMo-core"),
        Field("prompt_mask", "inverse_mask", "ROLL"),
        Field("prompt_length", "prompt_length", "Axolotl"),
        Field("answer_start_idx", "prompt_length", "NeMo, Megatron-Bridge"),
        *(Field(name, "weight", "weighted losses", only_lists=True) for name in ("weight", "weights")),
        *_WEIGHTS,
        *(Field(name, "refused", by, _RENAME) for name, by in (("mask", "many tools"), ("action_mask", "OpenRLHF"))),
        Field("padding_mask", "refused", "Automodel", _OF_PADDING),
        Field("special_tokens_mask", "nothing", "Hugging Face tokenizers", "which tokens are special"),
        Field("token_type_ids", "nothing", "Hugging Face tokenizers", "index of the sentence in a pair"),
        Field("offset_mapping", "nothing", "Hugging Face tokenizers", "position of each token in the text"),
        Field("overflow_to_sample_mapping", "nothing", "Hugging Face tokenizers", _OF_TEXT),
        Field("length", "nothing", "Hugging Face tokenizers, ms-swift, Axolotl", _REPEATED),
        Field("num_tokens", "nothing", "xtuner", _REPEATED),
        Field("token_count", "nothing", "NeMo, Megatron-Bridge, datatrove", _REPEATED),
        *(Field(f"context_{what}", "nothing", "NeMo, Megatron-Bridge", _REPEATED) for what in ("ids", "length")),
        Field("answer_ids", "nothing", "NeMo, Megatron-Bridge", _REPEATED),
        Field("attention_mask", "attention", "Hugging Face tokenizers"),
        Field("exchange_starts", "exchanges", "packer tokenize"),
        Field("tokens", "token_ids", "torchtune"),
        Field("inputs", "token_ids", "MaxText"),
        Field("seq_lengths", "lengths", "TRL"),
        Field("seq_lens", "padded_lengths", "torchtune"),
        Field("doc_lens", "lengths", "OLMo-core"),
        Field("cu_doc_lens", "offsets", "OLMo-core"),
        *(Field(f"cu_seqlens{side}", "offsets", "Megatron-LM, flash-attn") for side in ("", "_q", "_k")),
        *(Field(f"cu_seq_lens{side}", "offsets", "transformers") for side in ("", "_q", "_k")),
        Field("seq_start_id", "starts", "NeMo, Megatron-Bridge, Nemotron"),
        Field("position_ids", "positions", "transformers, Axolotl, LLaMA-Factory"),
        Field("positions", "positions", "torchtitan"),
        Field("input_pos", "positions", "torchtune"),
        Field("inputs_position", "positions", "MaxText"),
        Field("segment_ids", "numbers", "JAX trainers"),
        Field("inputs_segmentation", "numbers", "MaxText"),
        Field("sequence_id", "numbers_from_0", "LLM-foundry"),
        Field("seq_idx", "numbers_from_0", "transformers, Mamba"),
        Field("targets", "shifted_labels", "MaxText"),
        Field("targets_segmentation", "shifted_numbers", "MaxText"),
        Field("targets_position", "nothing", "MaxText", "the same as `inputs_position`"),
        Field("packing_params", "nothing", "LLaMA-Factory", _BOUNDARIES),
        *(
            Field(name, "refused", "NeMo Automodel, Megatron-LM", _PADDED)
            for name in ("seq_lens_padded", "cu_seqlens_padded", "cu_seqlens_q_padded")
        ),
        Field("answer", "nothing", "packer tokenize", "index of the document in its record"),
    ),
}
PROMPTS: dict[tuple[str, str], str | None] = {
    ("prompt", "response"): None,
    ("instruction", "output"): "input",
    ("instruction", "response"): "context",
    ("question", "answer"): "context",
}
"""(columns of a prompt and its completion) -> column appended to the prompt."""

OTHER_PROMPTS = (
    *(("problem", "solution"), ("query", "response"), ("query", "answers"), ("question", "response")),
    *(("input", "output"), ("input", "target"), ("inputs", "targets"), ("inputs_pretokenized", "targets_pretokenized")),
)
"""Columns of a prompt and its completion as strings, used only if no others are found: beside messages, they repeat
them."""

JOINED = ("prompt", "completion")
"""Columns of a prompt and its completion that are concatenated, as in TRL. Others are separated by an empty line."""

ROLE_NAMES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool", "function", "ipython")},
    "observation": "tool",
    "function_call": "assistant",
}
"""Roles of messages -> roles that chat templates know."""

SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    **{role: ROLE_NAMES[role] for role in ("user", "assistant", "system", "tool", "observation", "function_call")},
}
"""Roles of messages in ShareGPT's format -> roles that chat templates know."""


def names(place: Place, *means: Means) -> tuple[str, ...]:
    """Return the names of the fields with one of these meanings, in the order of the table."""
    return tuple(field.name for field in FIELDS[place] if field.means in means)


def fields_in(place: Place, found: Collection[str]) -> dict[str, Field]:
    """Return the known fields among the names that were found, by name."""
    known = (field for field in FIELDS[place] if field.name in found)
    return {field.name: field for field in known if all(name in found for name in field.beside)}


def refusal(place: Place, found: Collection[str], used: Container[str] = ()) -> str | None:
    """Describe a found field with a meaning that packer cannot keep, and the remedy; None if there is no such field.

    Fields in `used`, such as kept ones, are left out.
    """
    if _REFUSED[place].isdisjoint(found):
        return None
    known = fields_in(place, found).values()
    refused = (field for field in known if field.means == "refused" and field.name not in used)
    return next((f"'{field.name}' {field.note}" for field in refused), None)


def unread(place: Place, found: Collection[str], used: Container[str]) -> list[str]:
    """Return the names that nothing reads: neither used nor known to be irrelevant."""
    return [name for name in found if name not in used and name not in names(place, "nothing", "exchanges")]


def counted_fields(place: str, found: Iterable[str]) -> dict[str, int]:
    """Return names as counts of a batch, which are summed over a source; at most the first `_MOST`."""
    return {f"field {place} {name}": 1 for name in sorted(found)[:_MOST]}


def fields_counted(place: str, counts: Iterable[str]) -> list[str]:
    """Return the names that `counted_fields` converted to counts, sorted."""
    return sorted(key.removeprefix(f"field {place} ") for key in counts if key.startswith(f"field {place} "))


_MOST = 100  # maximum number of names counted in a batch: a record may have one field per value
_REFUSED = {place: {*names(place, "refused")} for place in FIELDS}

TOOLS, TEMPLATE_KWARGS, HISTORY = names("record", "tools", "template_arguments", "history")
SYSTEMS = names("record", "system")
OF_CHATS = (*SYSTEMS, TOOLS, TEMPLATE_KWARGS)
"""Columns that are read in addition to messages."""
OF_PROMPTS = (*SYSTEMS, HISTORY, TOOLS)
"""Columns of a prompt that only a chat template can write: system prompt, earlier turns, and tools."""

PLACEHOLDERS = {name: f"<{name.removesuffix('s')}>" for name in names("record", "media")}
"""Placeholders in texts for the values of media columns, as in LLaVA and LLaMA-Factory."""

REASONING = names("message", "reasoning")
"""Names under which chat templates read the reasoning of an answer."""

MARKS = {place: names(place, "trained", "untrained", "weight") for place in FIELDS}
"""Fields of a message, or of a part of its content, that mark it as trained or untrained, or weight its loss."""

(SPANS,) = names("message", "spans")
"""Field of a message that marks trained characters of its content."""

(CALLS,) = names("message", "calls")
"""Field of a message with tool calls."""

DESIRABLE = names("record", "desirable")
"""Columns that tell whether the completion of a record is a good example, as KTO needs it."""

(ATTENTION,) = names("tokens", "attention")
"""Column that is 1 for tokens and 0 for padding."""

(EXCHANGE_STARTS,) = names("tokens", "exchanges")
"""Column with the indices of the tokens that begin an exchange of a chat (a question with its answers): lists of
integers, ascending.

When packer tokenizes a chat, a token that straddles two exchanges belongs to the later one.
"""

MASKS = (*names("tokens", "mask", "inverse_mask"), ATTENTION)
"""Columns of 0 and 1 per token, as trainers and tokenizers write them."""

LISTS: tuple[Means, ...] = ("lengths", "padded_lengths", "offsets", "starts")
"""Meanings of columns of packed rows that have one value per document."""

BOUNDS = names("tokens", *LISTS, "positions", "numbers", "numbers_from_0")
"""List columns that mark where documents begin, in rows that another tool packed."""

LABELS, INVERSE_MASKS, PROMPT_LENGTHS, WEIGHTS = (
    names("tokens", means) for means in ("labels", "inverse_mask", "prompt_length", "weight")
)
"""Columns by meaning. The first label column is the default of --labels-column."""

WEIGHTS_OF_RECORDS = names("record", "weight")
"""Columns with the weight of a record of text in the loss."""

WEIGHTED_MASKS = ("loss_mask",)
"""Columns of `MASKS` that hold weights in the tools that write them."""

SAYING = (*LABELS, *MASKS, *PROMPT_LENGTHS, *WEIGHTS, *names("tokens", "refused"))
"""Columns that mark trained tokens or padding."""

SHIFTED = names("tokens", "shifted_labels", "shifted_numbers")
"""List columns that mark whether the next token is trained, in rows that the same tool packed."""

ONLY_LISTS = (*BOUNDS, *SHIFTED, *(field.name for field in FIELDS["tokens"] if field.only_lists))
"""Columns of `SAYING`, `BOUNDS` and `SHIFTED` that have their meaning only as a list of numbers."""
