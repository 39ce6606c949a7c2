"""Attention within documents in a Hugging Face model: `use`, and errors where its results would be wrong.

With LongRoPE and dynamic RoPE, each document of a batch gets its own frequencies. transformers derives the frequencies
from the longest document, so a document above the threshold changes all others; with dynamic RoPE, it also changes the
documents of the next batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from packer.errors import PackerError, extra

try:
    import torch
    import transformers
    from transformers import PretrainedConfig, PreTrainedModel
except ImportError as error:
    raise PackerError(f"{error.name} is not installed: {extra('torch')}") from error

from packer.attention.document_attention import (
    IMPLEMENTATION,
    KERNEL_DTYPES,
    check_tree,
    find_boundaries,
    longest_path,
    segment_attention,
    tree_attention,
    tree_obstacle,
)

REFUSED = {
    "softcap": "caps its attention logits, which the varlen kernel does not support",
    "s_aux": "has attention sinks, which the varlen kernel does not support",
    "position_bias": "adds a position bias to its attention logits, which the varlen kernel does not support",
    "cache": "uses a paged KV cache, which training does not have",
    "block_indices": "attends to selected blocks of tokens, which the varlen kernel does not support",
    "indices": "attends to selected tokens, which the varlen kernel does not support",
    "sinks": "has attention sinks, which the varlen kernel does not support",
}
"""Unsupported arguments of an attention layer that would change its result -> the error message of each."""

Embedding: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"
"""Output of a rotary module: (cos, sin), or one tensor of complex numbers."""

BY_LONGEST = ("dynamic", "longrope")
"""Types of RoPE whose frequencies transformers derives from the longest document of a batch."""

_IN_USE = "_packer_in_use"
"""Attribute of the modules of a model that `use` has switched. It holds their shared `_InUse`."""

OTHER_ATTENTION = "choose another attn_implementation that `packer check` finds safe"
"""Remedy for a layer that needs an argument in `REFUSED`, or information that it does not pass."""

APART = "pack without --pairs and --share-prefixes"
"""Remedy for a model that cannot train on trees, at least not with this attention."""

_callers: set[type[torch.nn.Module]] = set()
"""Classes of layers that have called this attention in this process."""


def use(model: PreTrainedModel, *, rows_are_documents: bool = False) -> PreTrainedModel:
    """Make a Hugging Face model compute attention only within segments, and return the model.

    On NVIDIA GPUs in float16 or bfloat16 this runs torch's varlen FlashAttention-2, elsewhere SDPA for each segment.
    Sliding windows, grouped heads, head sizes and scales of the model are kept. With LongRoPE and dynamic RoPE, each
    document gets the frequencies for its own length. The batch must contain the segment boundaries: `cu_seq_lens_q` and
    `max_length_q`, as `packer.collate` returns them, or `position_ids` that restart with every segment.

        model = packer.attention.use(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype="bfloat16"))
        for batch in packer.batches(packer.load("dataset-packed-4096"), rows=4):
            model(**batch).loss.backward()

    Batches of format "tree", in which documents with the same beginning share tokens, need this attention. All others,
    such as FlashAttention, ignore `tree` and compute a different result without an error. Trees run FlexAttention on a
    GPU, and SDPA elsewhere. Models that pass state from token to token outside attention refuse trees.

    The model can be compiled afterwards, with `torch.compile` or the Trainer's `torch_compile=True`.

    The forward pass raises PackerError if its result would be wrong: with a KV cache, an attention mask, chunked layers
    that are shorter than a segment, capped logits, attention sinks, dropout, or missing boundaries.

    Args:
        model: model to switch.
        rows_are_documents: whether to accept batches without boundaries; each row is then one document, as in an
            evaluation of single documents.

    Raises:
        PackerError: the model's attention cannot be replaced; torch or transformers is not installed; or transformers
            is too old.
    """
    if isinstance(model, str):
        raise PackerError(f"use takes a model, not its name: pass AutoModelForCausalLM.from_pretrained({model!r})")
    name, text = _register(), model.config.get_text_config()
    parts = [part for part in model.config.sub_configs if getattr(model.config, part) is text]
    model.set_attn_implementation({parts[0]: name} if parts else name)  # an image encoder keeps its own
    if text._attn_implementation != name:
        raise PackerError(
            f"{type(model).__name__} has its own attention, which cannot be replaced: `packer check` lists what is "
            "safe for it"
        )
    for module in longest_rope_modules(model):
        if not any(isinstance(hook, _ByDocument) for hook in module._forward_hooks.values()):
            module.register_forward_hook(_ByDocument(), with_kwargs=True)
    _FirstPass(model)
    in_use = _InUse(rows_are_documents=rows_are_documents, tree_obstacle=tree_obstacle(model))
    for module in model.modules():
        setattr(module, _IN_USE, in_use)
    for part_called in {model, model.base_model}:  # adapters such as PEFT's call the forward method of the model itself
        if _require_boundaries not in part_called._forward_pre_hooks.values():
            part_called.register_forward_pre_hook(_require_boundaries, with_kwargs=True)
            part_called.register_forward_hook(_end_pass, with_kwargs=True, always_call=True)
    return model


def _register() -> str:
    """Register packer's attention with transformers and return its name."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise PackerError(
            f"transformers {transformers.__version__} cannot register an attention: pip install -U transformers"
        ) from error
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, attention_mask)
    return IMPLEMENTATION


@dataclass(kw_only=True, slots=True)
class _InUse:
    """State shared by the modules of a model that `use` has switched."""

    rows_are_documents: bool
    """Whether batches without boundaries are accepted."""

    tree_obstacle: str | None
    """Why trees cannot be exact in this model; None if no reason was found."""

    tree_passes: int = 0
    """Number of forward passes with trees that have begun and not ended, in the model and its base model."""


def _require_boundaries(model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forward pre-hook: refuse a batch without boundaries, in which each row would be treated as one document."""
    in_use: _InUse = getattr(model, _IN_USE)
    if kwargs.get("tree") is not None:
        in_use.tree_passes += 1
        _check_tree_batch(model, kwargs, in_use)
        return
    if len(args) > 1:
        kwargs = kwargs | inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    if in_use.rows_are_documents or not (kwargs.get("cu_seq_lens_q") is None and kwargs.get("position_ids") is None):
        return
    if model.config.get_text_config()._attn_implementation == IMPLEMENTATION:  # false if the model was switched back
        raise PackerError(
            "the batch has neither cu_seq_lens_q nor position_ids, so documents in a row would attend to each other: "
            "make batches with packer.collate (in TRL, by packer.trainers.trl); or, if every row is one document, call "
            "packer.attention.use(model, rows_are_documents=True)"
        )


def _end_pass(model: PreTrainedModel, _args: object, kwargs: dict[str, Any], _output: object) -> None:
    """Forward hook: end a pass that `_require_boundaries` began, also after an error."""
    if kwargs.get("tree") is not None:
        in_use: _InUse = getattr(model, _IN_USE)
        in_use.tree_passes = max(in_use.tree_passes - 1, 0)  # 0 if another hook refused the batch earlier


def _check_tree_batch(model: PreTrainedModel, batch: Mapping[str, Any], in_use: _InUse) -> None:
    """Raise PackerError if this model would not compute a batch of trees exactly."""
    name, config, tree = type(model).__name__, model.config.get_text_config(), batch["tree"]
    if config._attn_implementation != IMPLEMENTATION:
        if batch.get("attention_mask") is None:
            raise PackerError(
                f"{name} was switched to {config._attn_implementation}, which ignores the batch's tree: call "
                "packer.attention.use(model) again, or pass attention_mask=packer.attention.dense_mask(tree)"
            )
        return
    if in_use.tree_obstacle:
        raise PackerError(f"{name} cannot train on trees, because {in_use.tree_obstacle}: {APART}")
    if batch.get("position_ids") is None:
        raise PackerError(
            f"the batch has a tree but no position_ids, so {name} would make positions without regard to it: pass "
            "those of packer.collate"
        )
    check_tree(tree, batch["position_ids"].shape[-1] * batch["position_ids"].shape[-2])
    limit, longest = rope_limit(config), longest_path(tree)
    if limit is not None and longest > limit:
        raise PackerError(
            f"a document has {longest:,} tokens, and above {limit:,} {name} takes its RoPE frequencies from the length "
            f"of each document, which tokens that several share cannot have: {APART}"
        )


def accepted_arguments(model: PreTrainedModel, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of a batch that the model's forward method accepts as arguments."""
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(batch)
    return {name: value for name, value in batch.items() if name in parameters}


class _FirstPass:
    """Forward hook that checks that a model's first pass called this attention, and then removes itself.

    Compiled passes are checked while they are traced. The hook then remains, but adds nothing to the compiled code.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.handle = model.register_forward_hook(self.check)
        self.layers = tuple({type(module) for module in model.modules()})

    def check(self, model: PreTrainedModel, *_: object) -> None:
        """Raise PackerError if none of the model's layers has called this attention."""
        if not torch.compiler.is_compiling():
            self.handle.remove()
        in_use = model.config.get_text_config()._attn_implementation == IMPLEMENTATION
        if in_use and not _any_called(self.layers):
            raise PackerError(
                f"{type(model).__name__} never called {IMPLEMENTATION}: it has its own attention, in which "
                "documents may attend to each other; `packer check` lists what is safe for it"
            )


# The next three functions run while a model is traced, and add nothing to the compiled code. If compiled code updated
# this state itself, torch would guard it and recompile after every change.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _note_call(layer: type[torch.nn.Module]) -> None:
    _callers.add(layer)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _any_called(layers: tuple[type[torch.nn.Module], ...]) -> bool:
    return not _callers.isdisjoint(layers)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_replaced() -> bool:
    """Return whether torch's context_parallel has replaced SDPA, which it does within its context."""
    return torch.nn.functional.scaled_dot_product_attention.__module__.startswith("torch.distributed")


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    position_ids: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    tree: torch.Tensor | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Return the attention of a layer, `[rows, tokens, heads, value_size]`, as transformers' AttentionInterface does.

    Queries, keys and values are `[rows, heads, tokens, size]`. `sliding_window` is the number of tokens that a token
    attends to, including itself. If attention is not causal, it holds on both sides. A `tree`, as in `dense_mask`,
    replaces the segments. Raises PackerError if another argument, such as one in `REFUSED`, would change the result.
    """
    _note_call(type(module))
    _check_boundaries(module, cu_seq_lens_q, tree)
    _check_sequences(module, query)
    name, (rows, _, tokens, _) = type(module).__name__, query.shape
    if attention_mask is not None:
        raise PackerError(
            f"{name} has an attention mask of shape {list(attention_mask.shape)}, but packed rows have none: leave "
            "attention_mask out of the batch; a model that creates its own mask needs another attn_implementation"
        )
    _check_keys(module, tokens, key.shape[2])
    if dropout:
        raise PackerError(
            f"{name} has an attention dropout of {dropout:g}, which the varlen kernel does not support: load the model "
            "with 0 (attention_dropout, attn_pdrop or attention_probs_dropout_prob in its config)"
        )
    for argument, why in REFUSED.items():
        if others.get(argument) is not None:
            raise PackerError(f"{name} {why}: {OTHER_ATTENTION if tree is None else APART}")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    query, key, value = (_kernel_dtype(tensor, value).transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    if tree is None:
        found = find_boundaries(rows, tokens, cu_seq_lens_q, max_length_q, position_ids, query.device)
        _check_layer(module, sliding_window, found.longest)
        attended = segment_attention(query, key, value, *found, causal=causal, window=sliding_window, scale=scaling)
    else:
        if not causal:
            raise PackerError(
                f"{name} attends to later tokens, and those after a shared token differ between documents: {APART}"
            )
        _check_layer(module, sliding_window, longest_path(tree), remedy=APART)
        attended = tree_attention(query, key, value, tree, window=sliding_window, scale=scaling)
    return attended.reshape(rows, tokens, *attended.shape[1:]).contiguous(), None


def attention_mask(
    *,
    q_length: int | None = None,
    kv_length: int | None = None,
    mask_function: Callable[..., torch.Tensor] | None = None,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: object,
) -> None:
    """Return no mask; with the signature of transformers' AttentionMaskInterface.

    mask_function: function from (row, head, query, key) indices to whether the query sees the key.

    Raises:
        PackerError: the mask would differ from the segment boundaries: some tokens are masked, or only some tokens
            attend to later ones.
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        masked = int((~attention_mask.bool()).sum())
        raise PackerError(
            f"attention_mask masks {masked:,} tokens, which {IMPLEMENTATION} does not support: leave the mask and the "
            "padding out of the batch, as packer.collate does"
        )
    if mask_function is None or q_length != kv_length or torch.compiler.is_compiling():
        return
    tokens = kv_length or 0
    places = torch.arange(max(tokens - 1, 0), device=device)
    sees_next = mask_function(torch.zeros_like(places), torch.zeros_like(places), places, places + 1)
    if bool(sees_next.any()) and not bool(sees_next.all()):
        raise PackerError(
            f"this model lets {int(sees_next.sum()):,} of {tokens:,} tokens attend to the next one (as in an image), "
            f"which {IMPLEMENTATION} does not support: {OTHER_ATTENTION}"
        )


def _check_boundaries(module: torch.nn.Module, cu_seq_lens: torch.Tensor | None, tree: torch.Tensor | None) -> None:
    """Raise PackerError if boundaries did not reach a layer, or belong to other rows."""
    in_use: _InUse | None = getattr(module, _IN_USE, None)
    if in_use is None:
        raise PackerError(
            f"{type(module).__name__} was given {IMPLEMENTATION} by its name, without boundaries in the whole model: "
            "switch the model by packer.attention.use(model)"
        )
    if in_use.tree_passes and tree is None:
        raise PackerError(
            f"the batch has a tree that did not reach {type(module).__name__}, because this model does not pass it on: "
            f"{APART}"
        )
    if (cu_seq_lens is not None or tree is not None) and getattr(module, "_is_replica", False):
        raise PackerError(
            "torch.nn.DataParallel splits cu_seq_lens_q among the GPUs but not the rows that it belongs to: start one "
            "process per GPU, with torchrun --nproc-per-node or accelerate launch, or set CUDA_VISIBLE_DEVICES=0"
        )


def _check_sequences(module: torch.nn.Module, query: torch.Tensor) -> None:
    """Raise PackerError if processes divide the tokens of the batch. They may divide heads if the tensors are local."""
    found, placements = "", getattr(query, "placements", None)
    if _is_replaced():
        found = "runs under torch's context_parallel, as of accelerate (cp_size)"
    elif placements is not None:
        found = f"gets a DTensor, placed as {placements}"
    if found:
        raise PackerError(
            f"{type(module).__name__} {found}, but {IMPLEMENTATION} needs all tokens of a document in one process: "
            "train with tensor or data parallelism, or in a trainer whose context parallelism has boundaries"
        )


def _check_keys(module: torch.nn.Module, tokens: int, keys: int) -> None:
    """Raise PackerError if the numbers of keys and queries of a layer differ."""
    if keys != tokens:
        why = (
            f"because it compresses keys along the row, which {IMPLEMENTATION} does not support: {OTHER_ATTENTION}"
            if "compress" in (_layer_kind(module) or "")
            else f"as with a KV cache or prefix tuning, but {IMPLEMENTATION} requires one key per token: generate with "
            'model.set_attn_implementation("eager"), and train LoRA instead of prefix tuning'
        )
        raise PackerError(f"{type(module).__name__} has {tokens:,} queries and {keys:,} keys, {why}")


def _check_layer(
    module: torch.nn.Module, sliding_window: int | None, longest: int, *, remedy: str = OTHER_ATTENTION
) -> None:
    """Raise PackerError if the model's config requires something that the layer did not pass to attention."""
    config, kind = getattr(module, "config", None), _layer_kind(module)
    chunk, window = getattr(config, "attention_chunk_size", None), getattr(config, "sliding_window", None)
    name = type(module).__name__
    if chunk is not None and longest > chunk and kind in (None, "chunked_attention"):
        raise PackerError(
            f"{name} attends in chunks of {chunk:,} tokens, which {IMPLEMENTATION} does not support, and a segment has "
            f"{longest:,} tokens: pack with --max-len {chunk}, or {remedy}"
        )
    if kind == "sliding_attention" and sliding_window is None and window is not None and longest > window:
        raise PackerError(
            f"{name} {module.layer_idx} has a window of {window:,} tokens but does not pass it to attention: {remedy}"
        )


def _layer_kind(module: torch.nn.Module) -> str | None:
    """Return the kind of a layer in `layer_types` of its config; None if it is unknown."""
    layer, kinds = getattr(module, "layer_idx", None), getattr(getattr(module, "config", None), "layer_types", None)
    return kinds[layer] if kinds and layer is not None and layer < len(kinds) else None


def _kernel_dtype(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to the kernel's dtype. Some models normalize queries and keys in float32."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor.to(value.dtype) if value.dtype in KERNEL_DTYPES else tensor


@contextmanager
def document_frequencies(model: PreTrainedModel) -> Iterator[None]:
    """Use separate frequencies for each document within the context, with any attention implementation."""
    hooks = [
        module.register_forward_hook(_ByDocument(always=True), with_kwargs=True)
        for module in longest_rope_modules(model)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def rope_limit(config: PretrainedConfig) -> int | None:
    """Return the length in tokens above which a document changes the RoPE frequencies of others; None without one."""
    limits = []
    for rope in rope_parameters(config):
        if "dynamic" in rope["rope_type"]:
            limits.append(config.max_position_embeddings)
        elif depends_on_longest(rope["rope_type"]):
            limits.append(rope["original_max_position_embeddings"])
    return min(limits, default=None)


def depends_on_longest(rope_type: str) -> bool:
    """Return whether transformers derives the frequencies of a RoPE type from the longest document of a batch."""
    return any(name in str(rope_type) for name in BY_LONGEST)


def rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Return the RoPE parameters of a config; several if layer types have their own parameters."""
    parameters = vars(config).get("rope_parameters") or {}
    each = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return [rope for rope in each if "rope_type" in rope]


def longest_rope_modules(model: PreTrainedModel) -> list[Any]:
    """Return the modules of the language model whose frequencies depend on the longest document."""
    config_class = type(model.config.get_text_config())
    found = []
    for module in model.modules():
        rope_type = getattr(module, "rope_type", "")
        types = rope_type.values() if isinstance(rope_type, dict) else [rope_type]
        if any(map(depends_on_longest, types)) and isinstance(getattr(module, "config", None), config_class):
            found.append(module)
    return found


class _ByDocument:
    """Forward hook of a rotary embedding that recomputes its output with separate frequencies per document length."""

    def __init__(self, *, always: bool = False) -> None:
        self.always = always
        """Whether the hook applies to any attention implementation, not only to packer's."""

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: object) -> Embedding | None:
        if not self.always and module.config._attn_implementation != IMPLEMENTATION:
            return None
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        parameters, rope_type = module.config.rope_parameters, module.rope_type
        if isinstance(rope_type, dict):
            layer_type = arguments["layer_type"]
            parameters, rope_type = parameters[layer_type], rope_type[layer_type]
        if not depends_on_longest(rope_type):  # another layer type of the same model
            return None
        positions = arguments.pop("position_ids")
        if positions.ndim != 2:
            raise PackerError(
                f"{type(module).__name__} derives its frequencies from the longest document, and position_ids of shape "
                f"{list(positions.shape)} do not show where documents begin: pack with --max-segments 1"
            )
        with torch.no_grad():
            if "dynamic" in rope_type:
                return _dynamic_rope(module, arguments, positions)
            return _longrope(module, arguments, positions, parameters["original_max_position_embeddings"])


def _dynamic_rope(module: Any, arguments: dict[str, Any], positions: torch.Tensor) -> Embedding:
    """Return the module's output for dynamic RoPE, which has different frequencies for each length above the limit."""
    lengths, limit = document_lengths(positions), module.original_max_seq_len
    longer = torch.unique(lengths[lengths > limit]).tolist()
    found: Embedding | None = None
    for group in (lengths <= limit, *(lengths == length for length in longer)):
        module.forward(position_ids=torch.zeros_like(positions), **arguments)  # resets the frequencies
        output = module.forward(position_ids=positions.where(group, 0), **arguments)
        found = output if found is None else _where(group, output, found)
    assert found is not None
    return found


def _longrope(module: Any, arguments: dict[str, Any], positions: torch.Tensor, limit: int) -> Embedding:
    """Return the module's output for LongRoPE, which has one set of frequencies above the limit and one below.

    The code does not read tensor values in Python, which would break a compiled graph.
    """
    is_long = document_lengths(positions) > limit
    short = module.forward(position_ids=positions.where(~is_long, 0), **arguments)
    long = module.forward(position_ids=positions.where(is_long, 0), **arguments)
    return _where(is_long, long, short)


def document_lengths(positions: torch.Tensor) -> torch.Tensor:
    """Return the length of each token's document, shaped like `positions`: [[0, 1, 2, 0, 1]] -> [[3, 3, 3, 2, 2]]."""
    tokens = positions.shape[1]
    places = torch.arange(tokens, device=positions.device).expand_as(positions)
    ends = torch.ones_like(positions, dtype=torch.bool)
    ends[:, :-1] = positions.diff(dim=1) != 1
    end = places.where(ends, tokens).flip(1).cummin(dim=1).values.flip(1)  # last token of each token's document
    return positions.gather(1, end) + 1


def _where(condition: torch.Tensor, output: Any, other: Any) -> Embedding:
    """Return `output` for tokens that meet the condition, else `other`. Both are tensors, or tuples (cos, sin)."""
    if isinstance(output, tuple):
        return tuple(torch.where(condition[..., None], *pair) for pair in zip(output, other, strict=True))
    return torch.where(condition[..., None], output, other)
