"""The isolation probe, the models it is given, and the command `packer check`."""

import json

import pytest
from click.testing import CliRunner

import packer
from packer import PackerError
from packer.cli import cli

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packer.attention import IMPLEMENTATION, load_model  # noqa: E402  needs torch, as all that follows
from packer.attention.load_model import load_small_model  # noqa: E402
from tests.helpers.families import tiny_gemma3, tiny_model, tiny_paligemma  # noqa: E402
from tests.helpers.isolation import NARROW, answers, longrope, save_config  # noqa: E402
from tests.helpers.naive_attention import flash_attn_installed  # noqa: E402


@pytest.fixture(autouse=True)
def _warnings():
    """Verbosity of transformers as it was, because ``packer check`` changes it."""
    yield
    transformers.logging.set_verbosity_warning()


# ---- verdicts ----


def test_a_safe_model_moves_nothing_and_is_as_alone():
    for verdict in packer.check(tiny_model("qwen3")):
        assert verdict.safe
        assert verdict.moved == 0
        assert max(verdict.loss, verdict.gradients) < 1e-5
        assert verdict.reason == verdict.remedy == ""


def test_a_leak_is_measured_explained_and_remedied():
    eager, sdpa, ours = packer.check(tiny_model("opt"))
    assert ours.safe
    for verdict in (eager, sdpa):
        assert verdict.answer == "leaks"
        assert verdict.moved > 0.1
        assert verdict.reason.startswith("changing one document moved others by 0.")
        assert verdict.remedy == "train with packer.attention.use(model)"


def test_the_remedy_is_another_implementation_where_ours_refuses():
    eager, sdpa, ours = packer.check(tiny_model("gemma2"))
    assert eager.safe
    assert sdpa.answer == ours.answer == "refuses"
    assert sdpa.remedy == ours.remedy == 'train with attn_implementation="eager"'
    assert "caps its attention logits" in ours.reason


def test_a_model_that_would_not_show_a_leak_is_unclear():
    model = tiny_model("llama3")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.self_attn.v_proj.weight.zero_()
    assert set(answers(packer.check(model)).values()) == {"unclear"}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("tiny", {}, "the model is 'tiny': give a model of transformers, or run `packer check` with its path"),
        ("llama3", {"implementations": "eager"}, "implementations is 'eager': give a list of names, or leave it out"),
        ("llama3", {"implementations": []}, "implementations is []: give a list of names, or leave it out"),
        ("llama3", {"position_offset": -1}, "position_offset is -1: it must be at least 0"),
    ],
)
def test_wrong_arguments_are_an_error_in_one_line(model, options, message):
    with pytest.raises(PackerError) as error:
        packer.check(model if model == "tiny" else tiny_model(model), **options)
    assert str(error.value) == message


def test_a_model_that_makes_nan_is_not_safe():
    model = tiny_model("llama3")
    with torch.no_grad():
        model.lm_head.weight[5] = torch.nan
    with pytest.raises(PackerError, match=r"LlamaForCausalLM fails on a single document.*a loss that is not a number"):
        packer.check(model, [IMPLEMENTATION])


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float32])
def test_every_dtype_tells_safe_from_leaking(dtype):
    assert set(answers(packer.check(tiny_model("qwen3", dtype=dtype))).values()) == {"safe"}
    assert set(answers(packer.check(tiny_model("qwen3_moe", dtype=dtype))).values()) == {"safe"}
    assert answers(packer.check(tiny_model("opt", dtype=dtype)))["sdpa"] == "leaks"


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["phimoe", "dots1", "gemma4_text", "granite_swa"])
def test_what_rounding_does_in_bfloat16_is_not_called_a_difference(family):
    """Tokens that go to another expert, and sums that nearly cancel, differ by more than many a leak."""
    exact, rounded = (
        answers(packer.check(tiny_model(family, dtype=dtype))) for dtype in (torch.float32, torch.bfloat16)
    )
    assert set(exact.values()) <= {"safe", "refuses"}
    assert rounded == exact


@pytest.mark.nightly
def test_a_kernel_without_float32_is_judged_by_what_rounding_does_to_single_documents():
    with flash_attn_installed():
        (verdict,) = packer.check(tiny_model("dots1", dtype=torch.bfloat16), ["flash_attention_2"])
    assert verdict.safe
    assert verdict.loss > 0.02


SMALL_MISMATCHES = {"phi3": longrope(4), "minicpm3": longrope(2)}


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("family", SMALL_MISMATCHES)
def test_a_small_difference_that_rounding_does_not_explain_is_not_safe(family):
    eager, sdpa, ours = packer.check(tiny_model(family, **SMALL_MISMATCHES[family]))
    assert ours.safe
    for verdict in (eager, sdpa):
        assert verdict.answer == "differs"
        assert 1e-5 < max(verdict.loss, verdict.gradients) < 1e-2


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["axk2", "deepseek_v32", "glm_moe_dsa"])
def test_tokens_selected_by_ties_are_not_safe_in_bfloat16(family):
    """Which of many scores of 0 are the largest depends on the length of the row."""
    verdicts = packer.check(tiny_model(family, dtype=torch.bfloat16, index_n_heads=2))
    assert answers(verdicts) == {"eager": "differs", "sdpa": "differs", IMPLEMENTATION: "refuses"}
    assert "computes with the attention mask, which packer_varlen does not make" in verdicts[-1].reason


# ---- causal models ----


def test_a_causal_model_whose_tokens_see_later_ones_is_not_safe():
    eager, sdpa, ours = packer.check(tiny_paligemma())
    assert (eager.answer, sdpa.answer, ours.answer) == ("unclear", "leaks", "leaks")
    assert "eager and sdpa differ by" in eager.reason
    assert ours.moved == 0
    assert "changing a token moved earlier ones of its document" in ours.reason
    assert all("token_type_ids" in verdict.remedy for verdict in (eager, sdpa, ours))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_both_ways_in_every_implementation_is_not_safe_for_a_causal_model(dtype):
    verdicts = packer.check(tiny_model("gemma3_text", use_bidirectional_attention=True, dtype=dtype))
    assert not any(verdict.safe for verdict in verdicts)
    assert set(answers(verdicts).values()) & {"leaks", "unclear"}
    assert any("changing a token moved earlier ones" in verdict.reason for verdict in verdicts)


@pytest.mark.parametrize(("family", "changes"), [("llama3", {"vocab_size": 3}), ("gpt2", {"vocab_size": 4})])
def test_a_model_with_special_tokens_alone_is_an_error_in_one_line(family, changes):
    with pytest.raises(PackerError, match=r"only [01] of [34] tokens of \w+ are not special, and the probe needs 12"):
        packer.check(tiny_model(family, **changes))


@pytest.mark.nightly
@pytest.mark.parametrize("position", [True, False])
def test_a_difference_as_small_as_rounding_is_not_called_safe_in_bfloat16(position):
    """Queries that are scaled by their place in the batch move packed documents by 3%."""
    changes = {"floor_scale": 8, "num_hidden_layers": 2, "attn_temperature_tuning": True} if position else {}
    for dtype in (torch.float32, torch.bfloat16):
        (verdict,) = packer.check(tiny_model("llama4_text", dtype=dtype, **changes), ["sdpa"])
        assert verdict.answer == ("differs" if position else "safe")


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_that_begin_elsewhere_are_the_remedy_where_they_make_it_safe(dtype):
    model = tiny_model("roberta", pad_token_id=3, dtype=dtype)
    remedy = "train with packer.attention.use(model) on packer.batches(..., position_offset=4)"
    assert {verdict.remedy for verdict in packer.check(model)} == {remedy}
    assert "--max-segments 1" in packer.check(tiny_model("bloom"), ["eager"])[0].remedy


@pytest.mark.parametrize("fault", ["window", "gradients"])
def test_a_window_that_is_lost_and_gradients_that_are_wrong_alone_are_noticed(monkeypatch, fault):
    from packer.attention import transformers_hook

    def faulty(*tensors, window, **options):
        out = segment_attention(*tensors, window=None if fault == "window" else window, **options)
        if fault == "gradients" and out.requires_grad:
            out.register_hook(lambda gradient: 2 * gradient)
        return out

    segment_attention = transformers_hook.segment_attention
    monkeypatch.setattr(transformers_hook, "segment_attention", faulty)
    (verdict,) = packer.check(tiny_model("mistral"), [IMPLEMENTATION])
    assert verdict.answer == "differs"
    if fault == "gradients":
        assert max(verdict.moved, verdict.loss) < 1e-5 < verdict.gradients


# ---- trees ----


@pytest.mark.nightly(after=3)
@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("mistral", {"eager": "safe", "sdpa": "safe", IMPLEMENTATION: "safe"}),
        ("gemma3_text", {"eager": "safe", "sdpa": "safe", IMPLEMENTATION: "safe"}),  # a mask for each kind of layer
        ("falcon", {"eager": "safe", "sdpa": "safe", IMPLEMENTATION: "refuses"}),
        ("gemma2", {"eager": "safe", "sdpa": "refuses", IMPLEMENTATION: "refuses"}),
        ("llama4_text", {"eager": "differs", "sdpa": "differs", IMPLEMENTATION: "refuses"}),
        ("qwen3_next", {"eager": "refuses", "sdpa": "refuses", IMPLEMENTATION: "refuses"}),
        ("bert", {"eager": "differs", "sdpa": "differs", IMPLEMENTATION: "refuses"}),
    ],
)
def test_trees_have_a_verdict_for_each_implementation(family, expected):
    verdicts = packer.check(tiny_model(family))
    assert {verdict.implementation: verdict.trees for verdict in verdicts} == expected
    for verdict in verdicts:
        assert (verdict.trees == "safe") == (verdict.trees_reason == "")
        assert "\n" not in verdict.trees_reason


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_trees_are_judged_in_every_dtype(dtype):
    assert all(verdict.trees == "safe" for verdict in packer.check(tiny_model("qwen3_moe", dtype=dtype)))


@pytest.mark.parametrize("fault", ["range", "position", "window"])
def test_a_tree_that_is_computed_wrongly_differs(monkeypatch, fault):
    from packer.attention import transformers_hook

    def faulty(query, key, value, tree, *, window, scale):
        wrong = tree.clone()
        if fault == "range":
            wrong[0, 14] = 24  # a token that two documents share is seen by one
        elif fault == "position":
            wrong[1, 7:14] -= 6  # the window of a branch reaches too far
        return tree_attention(query, key, value, wrong, window=None if fault == "window" else window, scale=scale)

    tree_attention = transformers_hook.tree_attention
    monkeypatch.setattr(transformers_hook, "tree_attention", faulty)
    (verdict,) = packer.check(tiny_model("mistral"), [IMPLEMENTATION])
    assert (verdict.answer, verdict.trees) == ("safe", "differs")
    assert verdict.trees_reason.startswith("documents in a tree and single ones differ by 0.")


def test_attention_without_masks_refuses_trees():
    with flash_attn_installed():
        (verdict,) = packer.check(tiny_model("qwen3"), ["flash_attention_2"])
    assert (verdict.answer, verdict.trees) == ("safe", "refuses")
    assert verdict.trees_reason == "it takes neither a tree nor a mask of one"


def test_flash_attn_is_probed_where_it_is_installed():
    assert "flash_attention_2" not in answers(packer.check(tiny_model("opt")))
    with flash_attn_installed():
        found = answers(packer.check(tiny_model("opt")))
    assert found["flash_attention_2"] == "safe"
    assert found["sdpa"] == "leaks"


@pytest.mark.parametrize("version", [3, 4])
def test_newer_kernels_are_probed_where_they_are_installed(monkeypatch, version):
    name = f"is_flash_attn_{version}_available"
    monkeypatch.setattr(transformers.utils.import_utils, name, lambda: True)
    assert f"flash_attention_{version}" in answers(packer.check(tiny_model("qwen3")))


def test_the_model_is_left_as_it_was():
    model = tiny_model("qwen3", attention="eager", attention_dropout=0.1).eval()
    model.model.norm.weight.grad = torch.ones(32)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert all(verdict.safe for verdict in packer.check(model))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.config._attn_implementation == "eager"
    assert model.config.attention_dropout == model.model.layers[0].self_attn.attention_dropout == 0.1
    assert not model.training
    assert [name for name, each in model.named_parameters() if each.grad is not None] == ["model.norm.weight"]
    assert torch.equal(model.model.norm.weight.grad, torch.ones(32))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    model(input_ids=torch.tensor([[5, 6, 7]]))


def test_a_model_that_was_switched_already_is_compared_with_the_plain_way():
    model = packer.attention.use(tiny_model("gemma2"))
    assert answers(packer.check(model)) == {"eager": "safe", "sdpa": "refuses", IMPLEMENTATION: "refuses"}
    assert model.config._attn_implementation == IMPLEMENTATION


def test_the_language_model_of_several_parts_is_judged_and_left_as_it_was():
    model = tiny_gemma3()
    assert answers(packer.check(model, [IMPLEMENTATION, "sdpa", "eager"])) == {
        IMPLEMENTATION: "safe",
        "sdpa": "safe",
        "eager": "safe",
    }
    assert model.config.text_config._attn_implementation == "sdpa"


def test_a_model_that_does_not_run_is_an_error():
    with pytest.raises(PackerError, match=r"LlamaModel fails on a single document.*no attribute 'logits'"):
        packer.check(tiny_model("llama3").model)


# ---- models to probe ----


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("llama", 2),
        ("gemma3_text", 6),  # five of sliding windows, one of full attention
        ("deepseek_v3", 4),  # three dense ones, then experts
        ("jamba", 5),  # mamba, experts, attention
        ("gpt2", 2),
        ("qwen3_moe", 2),
        ("modernbert", 2),
    ],
)
def test_a_full_size_config_makes_a_small_model_with_a_layer_of_every_kind(tmp_path, family, layers):
    opened = load_small_model(str(save_config(tmp_path, family)))
    assert opened.layers == layers
    assert opened.all_layers > layers
    assert sum(parameter.numel() for parameter in opened.model.parameters()) < 50_000_000
    assert type(opened.model).__name__.startswith(type(opened.model.config).__name__[:4])


def test_windows_and_chunks_become_short_enough_to_be_felt(tmp_path):
    (tmp_path / "mistral").mkdir()
    (tmp_path / "llama4").mkdir()
    assert (
        load_small_model(str(save_config(tmp_path / "mistral", "mistral", **NARROW))).model.config.sliding_window == 8
    )
    llama4 = load_small_model(str(save_config(tmp_path / "llama4", "llama4_text", num_hidden_layers=4, **NARROW))).model
    assert llama4.config.attention_chunk_size == 8


LOSS_OF_BATCH = {"output_router_logits": True, "router_aux_loss_coef": 1.0}


GEMMA = {**NARROW, "vocab_size": 200, "vocab_size_per_layer_input": 200, "hidden_size_per_layer_input": 8}


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize("depth", [3, 4, 5, 6])  # as long as "ns", "silu", "gelu", "model"
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_words_as_long_as_the_model_is_deep_are_left_whole(tmp_path, family, depth):
    activation = {"hidden_act": "relu" if depth == 4 else "tanh"}
    opened = load_small_model(str(save_config(tmp_path, family, num_hidden_layers=depth, **NARROW, **activation)))
    assert (opened.layers, opened.all_layers) == (2, depth)
    assert opened.model.config.hidden_act == activation["hidden_act"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "shared", "layers"),
    [("gemma3n_text", 15, 10), ("gemma3n_text", 5, 10), ("gemma3n_text", 0, 5), ("gemma4_text", 10, 10)],
)
def test_layers_that_share_keys_and_values_are_kept_beside_those_they_share(tmp_path, family, shared, layers):
    opened = load_small_model(str(save_config(tmp_path, family, **GEMMA, num_kv_shared_layers=shared)))
    config = opened.model.config
    assert opened.layers == config.num_hidden_layers == layers
    assert config.num_kv_shared_layers == (5 if family == "gemma3n_text" and shared else 4 if shared else 0)
    own = layers - config.num_kv_shared_layers
    assert set(config.layer_types[own:]) <= set(config.layer_types[:own])
    assert answers(packer.check(opened.model, ["sdpa"]))["sdpa"] in ("safe", "unclear")


def test_a_loss_over_the_whole_batch_is_left_out_of_the_comparison(tmp_path):
    folder = save_config(tmp_path, "mixtral", num_local_experts=4, **NARROW, **LOSS_OF_BATCH)
    assert set(answers(packer.check(load_small_model(str(folder)).model)).values()) == {"safe"}


def test_the_language_model_of_several_parts_is_probed(tmp_path):
    opened = load_small_model(str(save_config(tmp_path, "gemma3")))
    assert type(opened.model).__name__ == "Gemma3ForCausalLM"


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "mllama"])
def test_a_model_with_images_that_has_no_language_model_class_is_probed_whole(tmp_path, family):
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    text = {**NARROW, "vocab_size": 200, "num_hidden_layers": 3, "pad_token_id": 0}
    if family == "mllama":
        text |= {"cross_attention_layers": [1]}
    elif family == "glm4v":
        text |= {"rope_parameters": rope}
    else:
        text |= {"rope_parameters": {**rope, "partial_rotary_factor": 1.0, "mrope_section": [4, 2, 2]}}
    narrow = {"hidden_size": 64, "out_hidden_size": 64, "embed_dim": 64, "num_heads": 4, "attention_heads": 4}
    vision = {**narrow, "intermediate_size": 64, "depth": 8} if family != "mllama" else narrow
    opened = load_small_model(str(save_config(tmp_path, family, text_config=text, vision_config=vision)))
    assert type(opened.model).__name__.endswith("ForConditionalGeneration")
    assert (opened.layers, opened.all_layers) == (2, 3)
    assert answers(packer.check(opened.model, [IMPLEMENTATION])) == {IMPLEMENTATION: "safe"}
    assert sum(parameter.numel() for parameter in opened.model.parameters()) < 20_000_000


def test_the_same_config_makes_the_same_weights_and_leaves_the_random_state(tmp_path):
    save_config(tmp_path, "gpt2")
    state = torch.random.get_rng_state()
    one, other = (load_small_model(str(path)).model for path in (tmp_path, tmp_path / "config.json"))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_model_too_large_is_refused_with_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(load_model, "LARGEST", 1_000_000)
    with pytest.raises(PackerError, match=r"gpt2 has 1,\d+,\d+ parameters in 2 layers, more than 1,000,000"):
        load_small_model(str(save_config(tmp_path, "gpt2")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no config.json"),
        ("{", "finds no model config there"),
        ('{"model_type": "no-such-model"}', "finds no model config there"),
        ('{"model_type": "t5"}', "t5 has an encoder and a decoder"),
        ('{"model_type": "vit"}', "has no language model of type vit"),
        ('{"model_type": "llama", "num_attention_heads": 3, "hidden_size": 32}', "finds no model config there"),
        (
            '{"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3, "hidden_size": 64}',
            "cannot create a model from this config",
        ),
        (
            '{"model_type": "mixtral", "hidden_act": "silly"}',
            "cannot create a model from this config .*silly.*correct config",
        ),
        ('{"model_type": "qwen4_exp", "text_config": {"hidden_size": 64}}', "cannot create a model from this config"),
        ('{"model_type": "blt"}', "blt has no single number of layers"),
    ],
)
def test_a_config_of_no_use_is_an_error_in_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(PackerError, match=message) as raised:
        load_small_model(str(tmp_path))
    assert "\n" not in str(raised.value)


# ---- the command ----


def check(*arguments):
    return CliRunner().invoke(cli, ["check", *map(str, arguments)])


def test_check_prints_a_verdict_for_each_implementation(tmp_path):
    result = check(save_config(tmp_path, "gpt2", n_embd=64, n_head=4))
    assert result.exit_code == 0, result.output
    head, columns, *rows, legend, trees = result.stdout.splitlines()
    assert head == "GPT2LMHeadModel: 2 of 12 layers, random weights, float32 on cpu"
    assert columns.split("  ")[0] == "attention"
    assert [row.split()[:3] for row in rows] == [[name, "safe", "0"] for name in ("eager", "sdpa", IMPLEMENTATION)]
    assert legend.startswith("(others moved:")
    assert trees == "(trees: safe with packer.attention.use(model))"


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(
    ("family", "changes", "line"),
    [
        ("falcon", {"hidden_size": 128, "num_attention_heads": 4}, "safe with a mask only, by eager or sdpa; Falcon"),
        (
            "qwen3_next",
            {**NARROW, "num_experts": 16},
            "not supported; Qwen3NextForCausalLM cannot train on trees, because",
        ),
    ],
)
def test_check_says_what_trees_need(tmp_path, family, changes, line):
    lines = check(save_config(tmp_path, family, **changes)).stdout.splitlines()
    assert [each for each in lines if each.startswith(f"(trees: {line}")]


def test_check_says_a_line_for_each_bad_verdict_and_exits_with_3_when_none_is_safe(tmp_path):
    result = check(save_config(tmp_path, "bloom", hidden_size=128, n_head=4))
    assert result.exit_code == 3
    bad = result.stdout.splitlines()[-3:]
    assert bad[0].startswith("eager leaks: changing one document moved others by 0.")
    assert bad[1].startswith("sdpa refuses: BloomForCausalLM has no sdpa attention")
    assert bad[2].startswith(f"{IMPLEMENTATION} refuses: BloomForCausalLM has its own attention")
    assert all("; no implementation here is safe: pack with --max-segments 1" in line for line in bad)
    assert result.stderr == ""


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(("name", "code"), [("sdpa", 3), (IMPLEMENTATION, 0), ("eager", 3), ("flash_attention_2", 3)])
def test_check_exits_with_3_unless_the_implementation_asked_for_is_safe(tmp_path, name, code):
    narrow = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64}
    result = check(save_config(tmp_path, "bert", **narrow), "--attn", name)
    assert result.exit_code == code
    assert any(line.startswith(name) for line in result.stdout.splitlines())


def test_check_takes_the_position_of_the_first_token(tmp_path):
    folder = save_config(tmp_path, "roberta", hidden_size=64, num_attention_heads=4, intermediate_size=64)
    without = check(folder)
    assert without.exit_code == 3
    assert without.stdout.splitlines()[-1].endswith("packer.batches(..., position_offset=2)")
    assert check(folder, "--position-offset", 2).exit_code == 0


def test_check_json_has_the_verdicts_and_what_was_probed(tmp_path):
    result = check(save_config(tmp_path, "gpt2", n_embd=64, n_head=4) / "config.json", "--json")
    content = json.loads(result.stdout)
    verdicts = content.pop("verdicts")
    assert content == {
        "model": str(tmp_path / "config.json"),
        "architecture": "GPT2LMHeadModel",
        "layers": 2,
        "all_layers": 12,
        "dtype": "float32",
        "device": "cpu",
    }
    assert [verdict["implementation"] for verdict in verdicts] == ["eager", "sdpa", IMPLEMENTATION]
    assert set(verdicts[0]) == {
        *("implementation", "answer", "moved", "loss", "gradients", "reason", "remedy", "thresholds"),
        *("trees", "trees_reason"),
    }
    assert all(verdict["answer"] == "safe" and verdict["moved"] == 0 for verdict in verdicts)


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(("family", "code"), [("qwen3", 0), ("minicpm3", 0), ("deepseek_v32", 3)])
def test_check_of_a_model_in_bfloat16_as_on_a_gpu_probes_float32_as_well(monkeypatch, family, code):
    changes = {**SMALL_MISMATCHES, "deepseek_v32": {"index_n_heads": 2}}.get(family, {})
    model = tiny_model(family, dtype=torch.bfloat16, **changes)
    opened = load_model.SmallModel(model=model, layers=2, all_layers=2)
    monkeypatch.setattr(load_model, "load_small_model", lambda name: opened)
    result = check("model")
    assert result.exit_code == code, result.output
    assert "bfloat16 and float32 on cpu" in result.stdout
    expected = answers(packer.check(tiny_model(family, **changes)))
    assert {row.split()[0]: row.split()[1] for row in result.stdout.splitlines()[2:5]} == expected


def test_check_of_nothing_is_one_line_and_exit_1(tmp_path):
    result = check(tmp_path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"packer: {tmp_path} has no config.json")
