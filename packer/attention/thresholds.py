"""Config fields that change what a model computes once documents or batches exceed some length.

A window of 4,096 tokens has no effect on documents of 20 tokens, so models are probed with all such fields reduced. A
field that could not be reduced limits the lengths that a verdict covers, and so does a field with an unknown name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SHORT = 8
"""Tokens per window and chunk in probed models: fewer than most documents of the probe have."""

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
"""Names of known thresholds, with the largest value of each in a probed model."""

POSITIONS = ("max_position_embeddings", "original_max_position_embeddings")
"""Fields that are thresholds for some types of RoPE only."""

BY_LONGEST = ("dynamic", "longrope")
"""Types of RoPE whose frequencies transformers derives from the longest document of a batch."""

FIXED_ROPE = ("axial", "default", "linear", "llama3", "proportional", "yarn")
"""Types of RoPE whose frequencies do not depend on lengths."""

HARMLESS = {
    # longest sequence with positions: beyond it the model raises an error, or nothing changes
    *("context_length", "max_position_embeddings", "max_seq_len", "model_max_length", "n_ctx", "n_positions"),
    *("original_max_position_embeddings", "prompt_length", "tpu_short_seq_length"),
    # numbers of blocks, chunks and buckets: if their size matters, it has a field of its own
    *("block_per_row", "block_repeats", "block_sizes", "index_local_blocks", "initial_prior_diagonal_n_blocks"),
    *("initial_prior_first_n_blocks", "local_num_chunks_after", "local_num_chunks_before", "lsh_num_chunks_after"),
    *("lsh_num_chunks_before", "max_relative_positions", "num_buckets", "num_landmarks", "num_random_blocks"),
    *("position_bias_num_buckets", "relative_attention_num_buckets", "segment_means_seq_len", "segment_types"),
    # sizes of the pieces in which the same result is computed
    *("chunk_size", "chunk_size_feed_forward", "chunk_size_lm_head", "mamba_chunk_size", "max_inference_chunksize"),
    # memory of earlier batches, which is not used in training
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


def is_unknown_threshold(name: str) -> bool:
    """Return whether a field has a name like a threshold, and is neither a known one nor known to be harmless."""
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
    """Return the known and possible thresholds of a config above a length in tokens: {"sliding_window": 4096}."""
    values = [(name, _largest(holder[name])) for holder, name in _thresholds(config)]
    return {name: value for name, value in values if value > length}


def rope_limit(config: PretrainedConfig) -> int | None:
    """Return the length in tokens above which a document changes the RoPE frequencies of others; None if none does."""
    limits = []
    for rope in _rope_parameters(config):
        if "dynamic" in rope["rope_type"]:
            limits.append(config.max_position_embeddings)
        elif depends_on_longest(rope["rope_type"]):
            limits.append(rope["original_max_position_embeddings"])
    return min(limits, default=None)


def depends_on_longest(rope_type: str) -> bool:
    """Return whether transformers derives the frequencies of a type of RoPE from the longest document of a batch."""
    return any(name in str(rope_type) for name in BY_LONGEST)


def _thresholds(config: PretrainedConfig) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (dictionary, name) of each threshold in the config, its RoPE parameters and its per-layer overrides."""
    ropes = _rope_parameters(config)
    layers = getattr(vars(config).get("_heterogeneity_spec"), "per_layer_overrides", {})
    for holder in (vars(config), *ropes, *layers.values()):
        for name, value in holder.items():
            if not name.startswith("_") and _largest(value) and _is_threshold(holder, name, ropes):
                yield holder, name


def _is_threshold(holder: dict[str, Any], name: str, ropes: Sequence[dict[str, Any]]) -> bool:
    """Return whether field `name` of a dictionary is a threshold, given the RoPE parameters of the config."""
    if name not in POSITIONS:
        return name in THRESHOLDS or is_unknown_threshold(name)
    ropes = [holder] if "rope_type" in holder else ropes
    if name == "max_position_embeddings":
        return any("dynamic" in rope["rope_type"] for rope in ropes)
    # With llama_4_scaling_beta (Ministral 3), queries are scaled by their position in units of this field.
    return any(rope["rope_type"] == "longrope" or "llama_4_scaling_beta" in rope for rope in ropes)


def _rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Return the RoPE parameters of a config; several if layer types have parameters of their own."""
    parameters = vars(config).get("rope_parameters") or {}
    each = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return [rope for rope in each if "rope_type" in rope]


def _at_most(value: Any, limit: int) -> Any:
    """Limit an integer, or each integer in a list or dictionary: [512, 4] with limit 8 -> [8, 4]."""
    if isinstance(value, dict):
        return {name: _at_most(each, limit) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_at_most(each, limit) for each in value)
    return min(value, limit) if _largest(value) else value


def _largest(value: object) -> int:
    """Return the largest integer in a value, 0 if there is none: {"a": 4, "b": [128]} -> 128."""
    if isinstance(value, dict):
        return max(map(_largest, value.values()), default=0)
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
