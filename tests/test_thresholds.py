"""Fields of configs that matter from some length on: none of transformers' is missed, and the probe feels them all."""

import ast
import dataclasses
import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402  needs torch, as all that follows
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from packer.attention import IMPLEMENTATION, transformers_hook  # noqa: E402
from packer.attention.load_model import (  # noqa: E402
    HARMLESS,
    THRESHOLDS,
    SmallModel,
    is_unknown_threshold,
    load_small_model,
    shorten_thresholds,
    thresholds_above,
)
from packer.cli.reading_commands import render_verdicts  # noqa: E402
from packer.isolation.check_model import LONGEST, check  # noqa: E402
from tests.helpers.families import tiny_model  # noqa: E402
from tests.helpers.isolation import NARROW, answers, save_config  # noqa: E402

LONGROPE = {
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 4096,
    },
}
DYNAMIC = {
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 8.0},
}


def language_model_configs():
    """(model type, the config of its language model with defaults, or None where there are no defaults)."""
    for kind in sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_MASKED_LM_MAPPING_NAMES}):
        try:
            config = CONFIG_MAPPING[kind]()
        except Exception:  # fields that have no defaults, by every kind of error
            yield kind, None
            continue
        if not config.is_encoder_decoder:
            yield kind, config.get_text_config()


def number_like(value):
    """Whether a field could hold a length: None stands for a number that is not set."""
    if isinstance(value, list | tuple):
        return all(number_like(each) for each in value)
    return value is None or isinstance(value, dict) or (isinstance(value, int | float) and not isinstance(value, bool))


# ---- no field is missed ----


@pytest.mark.nightly
def test_every_field_of_a_config_that_reads_like_a_threshold_is_known():
    """A new version of transformers with a new one: look at what it does, and add it to one of the two lists."""
    unknown = {}
    for kind, config in language_model_configs():
        if config is None:
            fields = dict.fromkeys((field.name for field in dataclasses.fields(CONFIG_MAPPING[kind])), 0)
        else:
            rope = vars(config).get("rope_parameters") or {}
            by_layer = [each for each in rope.values() if isinstance(each, dict)]
            fields = {
                **vars(config),
                **(rope if not by_layer else {}),
                **{k: v for each in by_layer for k, v in each.items()},
            }
        for name, value in fields.items():
            if not name.startswith("_") and number_like(value) and is_unknown_threshold(name):
                unknown.setdefault(name, set()).add(kind)
    assert unknown == {}
    assert not THRESHOLDS.keys() & HARMLESS


def test_every_type_of_rope_is_known():
    fixed = {"axial", "default", "linear", "llama3", "proportional", "yarn"}  # whatever the lengths of documents
    assert set(ROPE_INIT_FUNCTIONS) <= {*fixed, *transformers_hook.BY_LONGEST}


def test_shortened_configs_have_no_threshold_that_the_probe_does_not_reach():
    found = set()
    for kind, config in language_model_configs():
        if config is not None:
            found |= thresholds_above(config, LONGEST).keys()
            shorten_thresholds(config)
            assert thresholds_above(config, LONGEST) == {}, kind
    assert {"sliding_window", "index_topk", "index_block_size", "keep_window_size", "compress_rates"} <= found


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "head_dim"])
def test_sizes_of_a_model_are_no_thresholds(name):
    assert not is_unknown_threshold(name)


def test_a_field_that_nobody_has_looked_at_bounds_the_verdict():
    config = transformers.LlamaConfig(**NARROW)
    assert thresholds_above(config, 20) == {}
    config.recall_window_length = 4096
    assert thresholds_above(config, 20) == {"recall_window_length": 4096}
    config.recall_window_length = 16
    assert thresholds_above(config, 20) == {}


HANDED_ANYWHERE = {
    *("scaling", "dropout", "is_causal", "sliding_window", "attention_mask", "position_ids", "output_attentions"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "deterministic"),
}
"""Arguments that this attention takes, or that do not change what is computed."""


@pytest.mark.nightly
def test_every_argument_that_a_model_hands_to_attention_is_taken_or_refused():
    folder = Path(importlib.util.find_spec("transformers").origin).parent / "models"
    unknown = {}
    for kind in sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_MASKED_LM_MAPPING_NAMES}):
        for path in folder.glob(f"{kind.removesuffix('_text')}/modeling_{kind.removesuffix('_text')}.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "attention_interface":
                    for argument in call.keywords:
                        if argument.arg and argument.arg not in {*HANDED_ANYWHERE, *transformers_hook.REFUSED}:
                            unknown.setdefault(argument.arg, set()).add(kind)
    assert unknown == {}


# ---- the probe feels them ----


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(
    ("family", "changes"),
    [("phi3", {**LONGROPE, "num_key_value_heads": 4, "pad_token_id": 0}), ("llama", DYNAMIC), ("qwen3", DYNAMIC)],
)
def test_rope_by_the_longest_document_is_unsafe_but_for_ours(tmp_path, family, changes):
    head = {"head_dim": 16, "num_hidden_layers": 2, "vocab_size": 200, "eos_token_id": 1, "bos_token_id": 1}
    eager, sdpa, ours = check(
        load_small_model(str(save_config(tmp_path, family, **{**NARROW, **head, **changes}))).model
    )
    assert ours.safe
    for verdict in (eager, sdpa):
        assert verdict.answer == "differs"
        assert "RoPE takes its frequencies from the longest document" in verdict.reason
        assert verdict.remedy == "train with packer.attention.use(model)"


def test_sparse_blocks_that_are_counted_from_the_start_of_the_batch_are_unsafe(tmp_path):
    layers = {"num_hidden_layers": 2, "layer_types": ["full_attention", "minimax_m3_sparse"]}
    sizes = {**NARROW, "head_dim": 16, "index_n_heads": 2, "num_local_experts": 4, "vocab_size": 200}
    opened = load_small_model(str(save_config(tmp_path, "minimax_m3_vl_text", **{**sizes, **layers})))
    eager, sdpa, ours = check(opened.model)
    assert {eager.answer, sdpa.answer} <= {"leaks", "differs"}
    assert ours.answer == "refuses"
    assert "selected blocks of tokens" in ours.reason


def test_a_window_that_ends_with_the_row_and_not_with_the_document_is_unsafe(tmp_path):
    opened = load_small_model(str(save_config(tmp_path, "doge", **NARROW, num_hidden_layers=2, vocab_size=200)))
    assert not any(verdict.safe for verdict in check(opened.model, ["eager", "sdpa"]))


# ---- or says how far it reaches ----


@pytest.mark.parametrize(
    ("family", "changes", "thresholds"),
    [
        ("llama2", DYNAMIC, {"max_position_embeddings": 4096}),
        ("mistral", {"sliding_window": 512}, {"sliding_window": 512}),
        ("mistral", {"sliding_window": 20}, {}),
        ("llama3", {}, {}),
    ],
)
def test_a_model_with_its_own_thresholds_gets_a_verdict_up_to_them(family, changes, thresholds):
    model = tiny_model(family, **changes)
    verdicts = check(model)
    assert set(answers(verdicts).values()) == {"safe"}
    assert all(verdict.thresholds == thresholds for verdict in verdicts)


def test_the_table_says_how_far_the_verdict_reaches():
    model = tiny_model("mistral", sliding_window=4096)
    small = SmallModel(model=model, layers=2, all_layers=2)
    table = "\n".join(render_verdicts(small, check(model, [IMPLEMENTATION])))
    reach = "(shown for batches of up to 4,096 tokens, not beyond sliding_window 4,096)"
    assert reach in table.splitlines()
