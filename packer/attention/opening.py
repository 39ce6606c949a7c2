"""A path, a Hub id or a config file -> a model with random weights, small enough to probe in seconds.

Whether documents leak is a matter of a model's code and config, not of its weights: these are never read. What is cut
down is size (layers of a kind that is there already, width, experts, vocabulary); windows, chunks and other thresholds
of length are made short, so that short documents feel them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.attention.hugging_face import accepted
from packer.attention.measuring import one_line, seeded
from packer.attention.thresholds import shorten
from packer.errors import PackerError
from packer.paths import expanded

try:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )
except ImportError as error:
    raise PackerError(f'{error.name} is not installed: pip install "packer[torch]" transformers') from error

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
LARGEST = 4_000_000_000
"""Parameters up to which a model is made: 16 GB of float32, and as much again for gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedModel:
    """A model to probe, and what it has of the one that was named."""

    model: PreTrainedModel
    """On the GPU in bfloat16 where there is one, else on the CPU in float32."""

    layers: int
    """Layers that it has."""

    all_layers: int
    """Layers that the config asks for."""


@seeded()
def open_model(name: str) -> OpenedModel:
    """Make a small model of the kind that a config describes.

    Args:
        name: a folder with a config.json, such a file, or a Hub id (the config is downloaded, no weights).

    Raises:
        PackerError: there is no config, transformers does not know it, or no small model could be made of it.
    """
    config = _text_config(expanded(name))
    maker = _maker(config)
    kept = _kept_layers(name, config, maker)
    failure = ""
    for cuts in CUTS:
        smaller = copy.deepcopy(config)
        try:
            _cut_layers(smaller, kept)
            for cut in cuts:
                cut(smaller)
            _make_attention_matter(smaller)
            model = _made(maker, smaller)
            without_cache = accepted(model, {"use_cache": False})
            with torch.no_grad():
                model(input_ids=torch.ones((1, 3), dtype=torch.long, device=model.device), **without_cache)
        except PackerError:
            raise
        except Exception as error:  # a size that does not fit the others: the next config changes less
            failure = f"{type(error).__name__}: {one_line(error)}"
            continue
        return OpenedModel(model=model, layers=len(kept), all_layers=config.num_hidden_layers)
    raise PackerError(
        f"{name}: transformers {transformers.__version__} makes no model of this config ({failure}); in Python, "
        "packer.attention.probe takes one that you made"
    )


def _text_config(name: str) -> Any:
    """The config that a name stands for; of a model of several parts, that of its language model."""
    path = Path(name)
    if path.exists() and not (path / "config.json" if path.is_dir() else path).is_file():
        raise PackerError(
            f"{name} has no config.json: `packer check` takes a folder with one, such a file, or a Hub id"
        )
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)  # None would ask on stdin
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and what its hub client raises
        raise PackerError(
            f"{name}: transformers {transformers.__version__} reads no model config there "
            f"({one_line(error)}): give a folder with a config.json, such a file, or a Hub id"
        ) from error
    return config.get_text_config()


def _maker(config: Any) -> Any:
    """The auto class for a config: masked language models are those that transformers also knows as such."""
    if config.is_encoder_decoder:
        raise PackerError(f"{config.model_type} has an encoder and a decoder: packed rows are for one or the other")
    decodes = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if masked and not (decodes and getattr(config, "is_decoder", False)):
        return AutoModelForMaskedLM
    if not decodes:
        raise PackerError(
            f"transformers {transformers.__version__} has no language model of type {config.model_type}: packed rows "
            "are for those"
        )
    return AutoModelForCausalLM


def _made(maker: Any, config: Any) -> PreTrainedModel:
    """A model with random weights; on the GPU in bfloat16 where there is one, else on the CPU in float32."""
    with torch.device("meta"):
        size = sum(
            parameter.numel()
            for parameter in maker.from_config(copy.deepcopy(config), trust_remote_code=False).parameters()
        )
    if size > LARGEST:
        raise PackerError(
            f"{config.model_type} has {size:,} parameters in {config.num_hidden_layers} layers, more than {LARGEST:,}: "
            "write a config.json with fewer layers or experts and check that"
        )
    on_gpu = torch.cuda.is_available()
    with seeded():
        model: Any = maker.from_config(copy.deepcopy(config), dtype=torch.float32, trust_remote_code=False)
    made: PreTrainedModel = model.to("cuda", torch.bfloat16) if on_gpu else model
    return made


def _kept_layers(name: str, config: Any, maker: Any) -> list[int]:
    """Numbers of the layers to keep: the first ones, as many as it takes to have one of every kind, at least two.

    Where the last layers share the keys and values of earlier ones, the same of either part. Layers of kinds a, a, b,
    a, b, of which the last two share: 0, 1, 2 and 3, 4.

    Raises:
        PackerError: transformers makes no model of the config, whatever its size.
    """
    depth = getattr(config, "num_hidden_layers", None)
    if not isinstance(depth, int):
        raise PackerError(
            f"{name}: {config.model_type} has no single number of layers, so that they cannot be cut: make a small "
            "model in Python and hand it to packer.attention.probe"
        )
    try:
        with torch.device("meta"):
            whole = maker.from_config(copy.deepcopy(config), trust_remote_code=False)
    except Exception as error:  # a value that does not exist, or is not there
        raise PackerError(
            f"{name}: transformers {transformers.__version__} makes no model of this config ({type(error).__name__}: "
            f"{one_line(error)}): correct its config.json; in Python, packer.attention.probe takes one that you made"
        ) from error
    layer_types = getattr(config, "layer_types", None) or [None] * depth
    stacks = [each for each in whole.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == depth]
    kinds = [frozenset(type(part).__name__ for part in layer.modules()) for layer in stacks[0]] if stacks else []
    if len(kinds) != len(layer_types):  # not a stack of layers as others are: keep it whole
        return list(range(depth))
    seen = list(zip(kinds, layer_types, strict=True))
    own = depth - (vars(config).get("num_kv_shared_layers") or 0)
    return [*range(_one_of_each(seen[:own])), *range(own, own + _one_of_each(seen[own:]))]


def _one_of_each(kinds: Sequence[Any]) -> int:
    """How many of the first have one of every kind, at least two: [a, a, b, a] -> 3."""
    return max((min(2, len(kinds)), *(kinds.index(kind) + 1 for kind in kinds)))


def _cut_layers(config: Any, kept: Sequence[int]) -> None:
    """Leave the kept layers in a config: in its depth, its lists of one entry a layer, its values for single layers."""
    depth = config.num_hidden_layers
    if len(kept) == depth:
        return
    own_values = {int(layer): values for layer, values in (config.to_dict().get("per_layer_config") or {}).items()}
    if own_values:
        config.per_layer_config = None
    shared = vars(config).get("num_kv_shared_layers") or 0
    if shared:
        config.num_kv_shared_layers = sum(layer >= depth - shared for layer in kept)
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == depth:
            setattr(config, name, type(value)(value[layer] for layer in kept))
    config.num_hidden_layers = len(kept)
    if own_values:
        config.per_layer_config = {place: own_values[layer] for place, layer in enumerate(kept) if layer in own_values}


def _make_attention_matter(config: Any) -> None:
    if hasattr(config, "output_router_logits"):
        config.output_router_logits = False  # a loss over the whole batch is not that of its documents
    if hasattr(config, "initializer_range"):
        config.initializer_range = config.hidden_size**-0.5  # so that attention matters


def _fewer_words_and_experts(config: Any) -> None:
    words = min(config.vocab_size, 512)
    for name, value in list(vars(config).items()):
        if name.startswith("vocab_size") and isinstance(value, int):
            setattr(config, name, min(value, words))
        elif name.endswith("_token_id") and isinstance(value, int) and value >= words:
            setattr(config, name, words - 1)
        elif "intermediate_size" in name and value:  # Gemma 3n has a list, one for each layer
            setattr(config, name, [min(each, 512) for each in value] if isinstance(value, list) else min(value, 512))
        elif name in EXPERTS and isinstance(value, int):
            setattr(config, name, min(value, 16))


def _fewer_heads(config: Any) -> None:
    """Keep 4 heads and the width they make up: 32 heads, 8 of keys, 4096 wide -> 4, 2, 512."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads or heads <= 4:
        return
    key_heads = getattr(config, "num_key_value_heads", None)
    if key_heads:
        config.num_key_value_heads = 4 if key_heads == heads else min(key_heads, 2)
    config.num_attention_heads = 4
    config.hidden_size = config.hidden_size // heads * 4


CUTS = (
    (shorten, _fewer_words_and_experts, _fewer_heads),
    (shorten, _fewer_words_and_experts),
    (shorten,),
    (_fewer_words_and_experts, _fewer_heads),
    (),
)
"""What is made smaller besides the number of layers, the most first; what does not fit together is tried no further."""
