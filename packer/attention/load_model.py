"""Small models with random weights, created from a config (folder, file or Hub id), for probes that take seconds.

Whether documents leak depends on a model's code and config, not on its weights, which are never read. Models are made
smaller (repeated layers, width, experts, vocabulary). Windows, chunks and other thresholds are shortened, so that they
affect short documents. If a threshold cannot be reduced, the verdict covers only documents below it. The same applies
to an unknown field whose name looks like a threshold.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from packer.attention.transformers_hook import accepted_arguments, rope_parameters

import torch  # isort: skip  # transformers_hook raises PackerError if it is missing
import transformers  # isort: skip
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from packer.errors import PackerError, hub_is_unreachable
from packer.stores.hub import TIMEOUT
from packer.stores.paths import expanded

Factory: TypeAlias = Callable[..., PreTrainedModel]
"""Function of transformers that creates a model with random weights from a config."""

LAYERS = ("depth", "num_hidden_layers", "num_global_layers")
"""Config fields with the number of layers of an image encoder."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Config fields with the number of experts."""

LARGEST = 4_000_000_000
"""Maximum number of parameters of a model: 16 GB in float32, and as much again for gradients."""

SHORT = 8
"""Tokens per window and chunk in probed models; most documents of the probe have more."""

THRESHOLDS = {
    "attention_chunk_size": SHORT,
    "attention_window": SHORT,
    "attention_window_size": SHORT,
    "block_size": 4,
    "compress_rates": SHORT,
    "floor_scale": SHORT,
    "index_block_size": SHORT,
    "index_topk": SHORT,
    "index_topk_blocks": 2,
    "indexer_budget": SHORT,
    "indexer_compress_ratio": 4,
    "keep_window_size": SHORT,
    "local_attention": SHORT,
    "local_attention_window_len": SHORT,
    "local_attn_chunk_length": SHORT,
    "log_scaling_n_floor": SHORT,
    "lsh_attn_chunk_length": SHORT,
    "position_bias_max_distance": SHORT,
    "rel_extent": SHORT,
    "sliding_window": SHORT,
    "sliding_window_size": SHORT,
    "window_size": SHORT,
}
"""Names of known thresholds, with the maximum value of each in a probed model."""

POSITIONS = ("max_position_embeddings", "original_max_position_embeddings")
"""Fields that are thresholds only for some types of RoPE."""

HARMLESS = {
    # longest sequence with positions: for longer ones, the model raises an error or nothing changes
    *("context_length", "max_position_embeddings", "max_seq_len", "model_max_length", "n_ctx", "n_positions"),
    *("original_max_position_embeddings", "prompt_length", "tpu_short_seq_length"),
    # numbers of blocks, chunks and buckets: if their sizes matter, there are separate fields for these
    *("block_per_row", "block_repeats", "block_sizes", "index_local_blocks", "initial_prior_diagonal_n_blocks"),
    *("initial_prior_first_n_blocks", "local_num_chunks_after", "local_num_chunks_before", "lsh_num_chunks_after"),
    *("lsh_num_chunks_before", "max_relative_positions", "num_buckets", "num_landmarks", "num_random_blocks"),
    *("position_bias_num_buckets", "relative_attention_num_buckets", "segment_means_seq_len", "segment_types"),
    # sizes of parts that a result is computed in; they do not change it
    *("chunk_size", "chunk_size_feed_forward", "chunk_size_lm_head", "mamba_chunk_size", "max_inference_chunksize"),
    # lengths of the memory of earlier batches, which training does not use
    *("clamp_len", "mem_len", "reuse_len"),
    # layers, experts, widths and tokens
    *("block_ffn_dim_multiplier", "block_multiple_of", "centroid_intermediate_top_k", "chroma_length"),
    *("compress_rope_theta", "conv_window", "encoder_hash_byte_group_size", "hash_code_len", "local_layer_ids"),
    *("max_patch_length", "max_window_layers", "moe_topk", "mtp_local_layer_ids", "n_layers_per_attn_res_block"),
    *("num_blocks", "num_local_experts", "num_mem_blocks", "num_self_attends_per_block", "patch_size"),
    *("patching_threshold", "prefix_dense_sliding_window_pattern", "sliding_window_pattern", "topk_group"),
    *("local_attention_probs_dropout_prob", "linear_dt_init_floor", "time_step_floor", "qk_l2_clip_threshold"),
    *("rel_l2_clip_threshold", "seq_classif_dropout", "sparse_pred_ignore_index"),
}
"""Names that look like thresholds but are not."""

_LIKE_THRESHOLDS = re.compile(
    r"window|chunk|block|length|_len\b|seq|max_position|positions|n_ctx|context|topk|top_k\b|budget|extent|floor"
    r"|distance|local|span|stride|compress|bucket|clamp|segment|landmark|patch_size|threshold"
)


@contextmanager
def seeded() -> Iterator[None]:
    """Seed torch's random numbers with 0 within the context, and restore their state afterwards."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
        torch.manual_seed(0)
        yield


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallModel:
    """A model to probe, and its number of layers before and after reduction."""

    model: PreTrainedModel
    """The model: in bfloat16 on the GPU, or in float32 on the CPU without a GPU."""

    layers: int
    all_layers: int
    """Number of layers in the original config."""


@seeded()
def load_small_model(name: str) -> SmallModel:
    """Create a small model of the architecture in a config: a folder, a file, or a Hub id.

    Raises PackerError if the config is missing, not supported by transformers, or not for a language model.
    """
    config = language_config(expanded(name))
    factory = _factory(config)
    kept = _kept_layers(name, config, factory)
    failure = ""
    for reductions in REDUCTIONS:
        smaller = copy.deepcopy(config)
        try:
            _cut_layers(smaller.get_text_config(), kept)
            for reduce in reductions:
                reduce(smaller.get_text_config())
            if hasattr(text := smaller.get_text_config(), "initializer_range"):
                text.initializer_range = text.hidden_size**-0.5  # large enough for attention to affect the logits
            model = _create(factory, smaller)
            without_cache = accepted_arguments(model, {"use_cache": False})
            with torch.no_grad():
                model(input_ids=torch.ones((1, 3), dtype=torch.long, device=model.device), **without_cache)
        except PackerError:
            raise
        except Exception as error:  # the reduced sizes do not fit together: the next attempt reduces less
            failure = f"{type(error).__name__}: {one_line(error)}"
            continue
        return SmallModel(model=model, layers=len(kept), all_layers=config.get_text_config().num_hidden_layers)
    raise PackerError(
        f"{name}: transformers {transformers.__version__} cannot create a model from this config ({failure}): create "
        "one in Python and pass it to packer.check"
    )


def language_config(name: str) -> PretrainedConfig:
    """Return the config of a folder, file or Hub id; for a multi-part model, the config of its language model.

    If transformers has a class only for the whole model (Qwen2-VL), return the whole config, with one layer in other
    parts.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    path = Path(name)
    if path.exists() and not (path / "config.json" if path.is_dir() else path).is_file():
        raise PackerError(f"{name} has no config.json: pass a folder with a config.json, such a file, or a Hub id")
    try:
        if not (path.exists() or constants.HF_HUB_OFFLINE or try_to_load_from_cache(name, "config.json")):
            HfApi().model_info(name, timeout=TIMEOUT)
        config: PretrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=False)  # None would ask on stdin
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and errors of its hub client
        if hub_is_unreachable(error):
            raise PackerError(
                f"{name} is not a local path, and the Hugging Face Hub cannot be reached: download its config.json "
                "where there is a network, and give the folder"
            ) from error
        if type(error).__name__ == "HFValidationError":  # its message is about names of repositories
            raise PackerError(f"{name} is no file, no folder, and no Hub id like org/name: check the path") from error
        raise PackerError(
            f"{name}: transformers {transformers.__version__} finds no model config there "
            f"({one_line(error)}): pass a folder with a config.json, such a file, or a Hub id"
        ) from error
    text: PretrainedConfig = config.get_text_config()
    has_class = text.model_type in {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    if text is config or has_class or config.model_type not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return text
    for part in (getattr(config, name) for name in config.sub_configs):
        for depth in LAYERS if part is not text else ():
            if isinstance(getattr(part, depth, None), int):
                setattr(part, depth, 1)
    return config


def _factory(config: PretrainedConfig) -> Factory:
    """Return the function that creates the model of a config: a causal or masked language model, or one with images."""
    text = config.get_text_config()
    if config.is_encoder_decoder or text.is_encoder_decoder:
        raise PackerError(
            f"{config.model_type} has an encoder and a decoder: choose a model with only one, as packed rows require"
        )
    if text is not config:
        return AutoModelForImageTextToText.from_config
    decodes = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if masked and not (decodes and getattr(config, "is_decoder", False)):
        return AutoModelForMaskedLM.from_config
    if not decodes:
        raise PackerError(
            f"transformers {transformers.__version__} has no language model of type {config.model_type}: choose a "
            "causal or masked language model"
        )
    return AutoModelForCausalLM.from_config


def _create(create: Factory, config: PretrainedConfig) -> PreTrainedModel:
    """Return a model with random weights: in bfloat16 on the GPU, or in float32 on the CPU without a GPU."""
    with torch.device("meta"):
        empty = create(copy.deepcopy(config), trust_remote_code=False)
    size = sum(parameter.numel() for parameter in empty.parameters())
    if size > LARGEST:
        raise PackerError(
            f"{config.model_type} has {size:,} parameters in {config.get_text_config().num_hidden_layers} layers, more "
            f"than {LARGEST:,}: reduce the layers or experts in config.json"
        )
    with seeded():
        model = create(copy.deepcopy(config), dtype=torch.float32, trust_remote_code=False)
    if torch.cuda.is_available():
        cast("torch.nn.Module", model).to("cuda", torch.bfloat16)  # in place
    return model


def _kept_layers(name: str, config: PretrainedConfig, create: Factory) -> list[int]:
    """Return the numbers of the layers to keep: the first ones until every kind occurs, and at least two.

    If the last layers share keys and values of earlier layers, the layers to keep are chosen separately among both.
    Example: layers of the kinds a, a, b, a, b, where the last two share -> 0, 1, 2 and 3, 4.
    """
    depth = getattr(config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(depth, int):
        raise PackerError(
            f"{name}: {config.model_type} has no single number of layers, so they cannot be cut: create a small "
            "model in Python and pass it to packer.check"
        )
    try:
        with torch.device("meta"):
            whole = create(copy.deepcopy(config), trust_remote_code=False)
    except Exception as error:  # a missing or invalid value
        raise PackerError(
            f"{name}: transformers {transformers.__version__} cannot create a model from this config "
            f"({type(error).__name__}: {one_line(error)}): correct config.json, or create a model in Python and pass "
            "it to packer.check"
        ) from error
    config = config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or [None] * depth
    stacks = [each for each in whole.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == depth]
    classes = [frozenset(type(part).__name__ for part in layer.modules()) for layer in stacks[0]] if stacks else []
    if len(classes) != len(layer_types):  # not a plain stack of layers: keep all of them
        return list(range(depth))
    kinds = list(zip(classes, layer_types, strict=True))
    unshared = depth - (vars(config).get("num_kv_shared_layers") or 0)
    return [*range(_one_of_each(kinds[:unshared])), *range(unshared, unshared + _one_of_each(kinds[unshared:]))]


def _one_of_each(kinds: Sequence[object]) -> int:
    """Return how many leading layers include every kind, at least two if there are two: [a, a, b, a] -> 3."""
    return max((min(2, len(kinds)), *(kinds.index(kind) + 1 for kind in kinds)))


def _cut_layers(config: PretrainedConfig, kept: Sequence[int]) -> None:
    """Reduce a config to the kept layers: its depth, its lists with one value per layer, and its per-layer values."""
    depth = config.num_hidden_layers
    if len(kept) == depth:
        return
    per_layer = {int(layer): values for layer, values in (config.to_dict().get("per_layer_config") or {}).items()}
    if per_layer:
        config.per_layer_config = None
    shared = vars(config).get("num_kv_shared_layers") or 0
    if shared:
        config.num_kv_shared_layers = sum(layer >= depth - shared for layer in kept)
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == depth:
            setattr(config, name, type(value)(value[layer] for layer in kept))
    config.num_hidden_layers = len(kept)
    if per_layer:
        config.per_layer_config = {place: per_layer[layer] for place, layer in enumerate(kept) if layer in per_layer}


def _reduce_vocabulary_and_experts(config: PretrainedConfig) -> None:
    """Limit a config to 512 tokens, 16 experts and an intermediate size of 512."""
    vocab_size = min(config.vocab_size, 512)
    for name, value in list(vars(config).items()):
        if name.startswith("vocab_size") and isinstance(value, int):
            setattr(config, name, min(value, vocab_size))
        elif name.endswith("_token_id") and isinstance(value, int) and value >= vocab_size:
            setattr(config, name, vocab_size - 1)
        elif "intermediate_size" in name and value:  # Gemma 3n has a list with one value per layer
            setattr(config, name, [min(each, 512) for each in value] if isinstance(value, list) else min(value, 512))
        elif name in EXPERTS and isinstance(value, int):
            setattr(config, name, min(value, 16))


def _reduce_heads(config: PretrainedConfig) -> None:
    """Limit a config to 4 heads of the same size: 32 heads, 8 key heads and a hidden size of 4096 -> 4, 2 and 512."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads or heads <= 4:
        return
    key_heads = getattr(config, "num_key_value_heads", None)
    if key_heads:
        config.num_key_value_heads = 4 if key_heads == heads else min(key_heads, 2)
    config.num_attention_heads = 4
    config.hidden_size = config.hidden_size // heads * 4


def is_unknown_threshold(name: str) -> bool:
    """Return whether a field's name looks like a threshold, but is known neither as a threshold nor as harmless."""
    return bool(_LIKE_THRESHOLDS.search(name)) and name not in THRESHOLDS and name not in HARMLESS


def shorten_thresholds(config: PretrainedConfig) -> None:
    """Reduce the thresholds of a config, in place, below the length of most documents of the probe."""
    original = vars(config).get("original_max_position_embeddings")
    longest = vars(config).get("max_position_embeddings")
    for holder, name in list(_thresholds(config)):
        holder[name] = _at_most(holder[name], THRESHOLDS.get(name, SHORT))
    if original and longest and vars(config)["original_max_position_embeddings"] < original:
        config.max_position_embeddings = SHORT * longest // original  # LongRoPE scales attention by their ratio


def thresholds_above(config: PretrainedConfig, length: int) -> dict[str, int]:
    """Return the known and possible thresholds of a config above a number of tokens: {"sliding_window": 4096}."""
    values = [(name, _largest(holder[name])) for holder, name in _thresholds(config)]
    return {name: value for name, value in values if value > length}


def _thresholds(config: PretrainedConfig) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (dictionary, name) of each threshold in the config, its RoPE parameters and its per-layer overrides."""
    ropes = rope_parameters(config)
    layers = getattr(vars(config).get("_heterogeneity_spec"), "per_layer_overrides", {})
    for holder in (vars(config), *ropes, *layers.values()):
        for name, value in holder.items():
            if not name.startswith("_") and _largest(value) and _is_threshold(holder, name, ropes):
                yield holder, name


def _is_threshold(holder: dict[str, Any], name: str, ropes: Sequence[dict[str, Any]]) -> bool:
    """Return whether field `name` of a dictionary is a threshold. `ropes` are the RoPE parameters of the config."""
    if name not in POSITIONS:
        return name in THRESHOLDS or is_unknown_threshold(name)
    ropes = [holder] if "rope_type" in holder else ropes
    if name == "max_position_embeddings":
        return any("dynamic" in rope["rope_type"] for rope in ropes)
    # With llama_4_scaling_beta (Ministral 3), queries are scaled by their position in units of this field.
    return any(rope["rope_type"] == "longrope" or "llama_4_scaling_beta" in rope for rope in ropes)


def _at_most(value: Any, limit: int) -> Any:
    """Limit an integer, or each integer in a list or dictionary: [512, 4] with limit 8 -> [8, 4]."""
    if isinstance(value, dict):
        return {name: _at_most(each, limit) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_at_most(each, limit) for each in value)
    return min(value, limit) if _largest(value) else value


def _largest(value: object) -> int:
    """Return the largest integer in a value, or 0 if there is none: {"a": 4, "b": [128]} -> 128."""
    if isinstance(value, dict):
        return max(map(_largest, value.values()), default=0)
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


REDUCTIONS = (
    (shorten_thresholds, _reduce_vocabulary_and_experts, _reduce_heads),
    (shorten_thresholds, _reduce_vocabulary_and_experts),
    (shorten_thresholds,),
    (_reduce_vocabulary_and_experts, _reduce_heads),
    (),
)
"""Ways to reduce a config besides its number of layers, tried in order until transformers can run the model."""
