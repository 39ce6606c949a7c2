"""The loss of a step is the mean over its trained tokens, for every class of models, in the Trainer and SFTTrainer."""

from itertools import product
from math import inf
from types import SimpleNamespace

import pytest

import packer
from packer import PackerError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.20")
pytest.importorskip("accelerate")

from tests.helpers.documents import assert_same_gradients, make_example, make_source  # noqa: E402  these need torch
from tests.helpers.models import VOCABULARY, recorded_gradients, tiny_llama, tiny_tokenizer, train_alone  # noqa: E402
from tests.helpers.torch_jobs import run_two  # noqa: E402
from tests.helpers.weighted_steps import (  # noqa: E402
    assert_steps_as_alone,
    document_weights,
    make_trainer,
    step_alone,
    token_weights,
    train,
    weighted_source,
)

pytestmark = [
    pytest.mark.usefixtures("no_gpu"),
    pytest.mark.filterwarnings("ignore:`label_smoothing_factor` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`compute_loss_func` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:no token of a batch is trained:UserWarning"),
]

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "router_aux_loss_coef": 0.5}
GRIDS = {"hidden_size": 16, "intermediate_size": 32, "depth": 1, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32}
PATCHES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}


def mrope(*sections, **changes):
    rope = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": list(sections), **changes}
    return {**TEXT, "rope_parameters": rope}


CONFIGS = {
    "Qwen2_5_VL": (mrope(3, 3, 2), {**GRIDS, "fullatt_block_indexes": [0]}),
    "Qwen3VL": (mrope(3, 3, 2), {**GRIDS, "deepstack_visual_indexes": [0]}),
    "Qwen3VLMoe": ({**mrope(3, 3, 2), **EXPERTS}, {**GRIDS, "deepstack_visual_indexes": [0]}),
    "Qwen3_5": ({**mrope(1, 1, 0, partial_rotary_factor=0.25), "layer_types": 2 * ["full_attention"]}, GRIDS),
    "Glm4v": (mrope(3, 3, 2, partial_rotary_factor=1.0), GRIDS),
    "Gemma4": (
        {
            **TEXT,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 6,
            "global_head_dim": 16,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
        },
        PATCHES,
    ),
}
"""For the name of each class, the configs of its text and its images."""

CLASSES = ["Qwen2_5_VL", "Qwen3VL", "Qwen3_5", "Glm4v", "Gemma4"]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("rows"), make_source("masked prompts"))


def model_of(name):
    torch.manual_seed(0)
    text, images = CONFIGS[name]
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=images)
    return getattr(transformers, f"{name}ForConditionalGeneration")._from_config(config, attn_implementation="sdpa")


def options(folder, example, **changes):
    """One step of two micro-batches, of different numbers of rows and trained tokens, over all documents."""
    return {
        "output_dir": str(folder), "per_device_train_batch_size": example.rows - 2, "gradient_accumulation_steps": 2,
        "num_train_epochs": 1, "max_grad_norm": inf, "report_to": [], "disable_tqdm": True,
    } | changes  # fmt: skip


def hf_trainer(model, example, folder, **changes):
    arguments = transformers.TrainingArguments(**options(folder, example, **changes))
    return transformers.Trainer(model, **packer.trainers.hf(example.packed, arguments))


def sft_trainer(model, example, folder, **changes):
    trl = pytest.importorskip("trl")
    arguments = trl.SFTConfig(**options(folder, example, **changes), bf16=False)
    found = packer.trainers.trl(example.packed, arguments)
    return trl.SFTTrainer(model, processing_class=tiny_tokenizer(), **found)


def trained(trainer):
    """Return the loss and the gradients of the only step."""
    with recorded_gradients(trainer.model) as recorded:
        loss = trainer.train().training_loss
    (gradients,) = recorded
    return loss, gradients


def assert_trains_as_alone(trainer, model, example):
    alone = train_alone(model, example.pieces)
    loss, found = trained(trainer)
    taking_part = [name for name, gradient in alone.gradients.items() if gradient.any()]
    assert loss == pytest.approx(alone.loss, abs=1e-5)
    assert_same_gradients(*({name: each[name] for name in taking_part} for each in (found, alone.gradients)), 1e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_multimodal_classes_train_as_their_documents_alone(example, tmp_path, name):
    model = model_of(name).train()
    assert not model.accepts_loss_kwargs, "the Trainer does not count its trained tokens by itself"
    assert_trains_as_alone(hf_trainer(model, example, tmp_path), model_of(name).train(), example)


def test_causal_models_compute_their_own_loss(example, tmp_path, monkeypatch):
    monkeypatch.delattr("packer.trainers.hf_and_trl.causal_lm_loss")
    trainer = hf_trainer(tiny_llama(), example, tmp_path)
    assert_trains_as_alone(trainer, tiny_llama(), example)


@pytest.mark.parametrize("model", [tiny_llama, pytest.param(lambda: model_of("Qwen3VL").train(), id="Qwen3VL")])
def test_labels_from_a_collator_of_one_s_own_give_the_same_loss(example, tmp_path, model):
    trainer = hf_trainer(model(), example, tmp_path)
    trainer.data_collator = packer.collate
    assert_trains_as_alone(trainer, model(), example)


def test_the_loss_of_experts_is_weighed_by_the_share_of_the_trained_tokens(example, tmp_path):
    trainer, batches = trainer_of_experts(example, tmp_path)
    _, found = trained(trainer)
    model = model_of("Qwen3VLMoe").train()
    packer.attention.use(model)
    items = [(batch["labels"] != -100).sum() for batch in batches]
    for batch, number in zip(batches, items, strict=True):
        (model(**batch).loss * number / sum(items)).backward()
    expected = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    assert any("gate" in name for name in expected)
    assert_same_gradients({name: found[name] for name in expected}, expected, 1e-5)


def test_nothing_is_learned_from_a_step_without_trained_tokens(tmp_path):
    source = {"input_ids": [[1, 2, 3]] * 4, "labels": [[-100] * 3] * 4}
    example = make_example(tmp_path, source, untrained="keep-all", max_len=4)
    trainers = [trainer_of_experts(example, tmp_path)[0], hf_trainer(tiny_llama(), example, tmp_path)]
    for trainer in trainers:
        with pytest.warns(UserWarning, match="no token of a batch is trained"):
            loss, gradients = trained(trainer)
        assert loss == 0
        assert not any(gradient.any() for gradient in gradients.values())


def trainer_of_experts(example, folder):
    """Return a Trainer whose model returns the loss of its experts, and a list that gets its batches."""
    batches = []

    def collate(rows):
        batches.append({**packer.collate(rows), "output_router_logits": True})
        return batches[-1]

    trainer = hf_trainer(model_of("Qwen3VLMoe"), example, folder)
    trainer.data_collator = collate
    return trainer, batches


def test_a_model_whose_loss_is_no_mean_over_the_step_is_refused_with_a_remedy_that_works(example, tmp_path):
    refused = (
        r"accepts_loss_kwargs of Qwen3VLForConditionalGeneration is False: with 2 accumulation steps on 1 ranks, the "
        r"loss would be the mean of the batches' means, .*; set model.accepts_loss_kwargs = True before {}\(model, "
    )
    for make, name, changes in ((sft_trainer, "SFTTrainer", {}), (hf_trainer, "Trainer", {"use_liger_kernel": True})):
        with pytest.raises(PackerError, match=refused.format(name)):
            make(model_of("Qwen3VL"), example, tmp_path, **changes)
    sft_trainer(model_of("Qwen3VL"), example, tmp_path, gradient_accumulation_steps=1)
    model = model_of("Qwen3VL").train()
    model.accepts_loss_kwargs = True
    assert_trains_as_alone(sft_trainer(model, example, tmp_path), model_of("Qwen3VL").train(), example)


def test_label_smoothing_is_refused_where_labels_would_not_be_shifted(example, tmp_path):
    smoothing = {"label_smoothing_factor": 0.1}
    with pytest.raises(PackerError, match=r"is 0.1: the Trainer would not shift labels of Glm4vFor.*; set it to 0"):
        hf_trainer(model_of("Glm4v"), example, tmp_path, **smoothing)
    with pytest.raises(PackerError, match="accepts_loss_kwargs of Gemma4ForConditionalGeneration is False"):
        hf_trainer(model_of("Gemma4"), example, tmp_path, **smoothing)
    trainer = hf_trainer(tiny_llama(), example, tmp_path, **smoothing)
    assert trainer.compute_loss_func is None, "the Trainer would ignore the smoothing"
    assert trained(trainer)[0] > train_alone(tiny_llama(), example.pieces).loss


ADAPTERS = {
    "PROMPT_TUNING": {"is_prompt_learning": True},
    "PREFIX_TUNING": {"is_prompt_learning": True},
    "LORA": {"alora_invocation_tokens": [5]},
}


@pytest.mark.parametrize("make_trainer", [hf_trainer, sft_trainer])
@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_that_mix_documents_are_refused(example, tmp_path, make_trainer, kind):
    """Over the attribute that PEFT gives a model."""
    model = tiny_llama()
    model.peft_config = {"default": SimpleNamespace(peft_type=kind, **ADAPTERS[kind])}
    effect = (
        "is active only from the last invocation tokens of a row on"
        if kind == "LORA"
        else f"adapter of type {kind}: its virtual tokens begin a row"
    )
    with pytest.raises(PackerError, match=f"{effect}.*; take LoRA, or train on documents that are not packed"):
        make_trainer(model, example, tmp_path)
    model.peft_config = {"default": SimpleNamespace(peft_type="LORA", alora_invocation_tokens=None)}
    make_trainer(model, example, tmp_path)


@pytest.mark.parametrize("make_trainer", [hf_trainer, sft_trainer])
def test_ringmaster_is_refused(example, tmp_path, make_trainer):
    trainer = make_trainer(tiny_llama(), example, tmp_path)
    trainer.model.config._attn_implementation = "ringmaster_ulysses"
    with pytest.raises(PackerError, match="the attention of the model is ringmaster_ulysses: in this trainer"):
        trainer.train()


def test_the_noise_of_neftune_on_whole_batches_is_told(example, tmp_path):
    pieces = len(example.pieces)
    arguments = transformers.TrainingArguments(str(tmp_path), per_device_train_batch_size=4, neftune_noise_alpha=5)
    times = f"{(4 * pieces / example.rows) ** 0.5:.2g}"
    with pytest.warns(UserWarning, match=f"neftune_noise_alpha is 5: .* about {times} times weaker than on single"):
        packer.trainers.hf([example.packed] * 2, arguments)


# ---- losses by weights ----


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """An example whose tokens have weights; and the weights of its pieces."""
    return make_weighted(tmp_path_factory.mktemp("weighted"))


def make_weighted(folder):
    source = weighted_source()
    return make_example(folder, source), token_weights(source)


def as_weighed(loss, weighted):
    return weighted[1] if loss == "weight" else document_weights(weighted[0].pieces)


@pytest.mark.parametrize("loss", ["document", "weight"])
@pytest.mark.parametrize(
    ("name", "accumulation"),
    [("hf", 1), ("hf", 2), ("hf", 3), ("trl", 3), *(pytest.param("trl", n, marks=pytest.mark.nightly) for n in (1, 2))],
)
def test_steps_with_a_loss_by_weights_train_as_documents_alone(weighted, tmp_path, name, accumulation, loss):
    if name == "trl":
        pytest.importorskip("trl")
    example, _ = weighted
    found = train(name, example.packed, tmp_path, loss=loss, accumulation=accumulation)
    assert [len(step) for step in found[2]] == {1: [1, 1, 1, 1], 2: [2, 2], 3: [3, 1]}[accumulation]
    assert_steps_as_alone([found], example.pieces, as_weighed(loss, weighted))
    with pytest.raises(AssertionError, match=r"assert \d"):  # a mean over tokens is another
        assert_steps_as_alone([found], example.pieces, lambda key, _: [1] * len(example.pieces[key][0]))


def test_a_trainer_that_rounds_the_sum_of_weights_down_trains_the_same(weighted, tmp_path, monkeypatch):
    """As the Trainer of transformers 5.20. Here, the sum of a step is less than 1."""
    count = transformers.Trainer._get_num_items_in_batch
    monkeypatch.setattr(transformers.Trainer, "_get_num_items_in_batch", lambda *given: count(*given) // 1)
    found = train("hf", weighted[0].packed, tmp_path, loss="weight", accumulation=3)
    assert_steps_as_alone([found], weighted[0].pieces, as_weighed("weight", weighted))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["hf", "trl"])
def test_steps_on_two_ranks_train_as_documents_alone(weighted, tmp_path, name):
    pytest.importorskip("trl")
    run_two("tests.helpers.weighted_steps", tmp_path, weighted[0].packed, name, "document", "weight")
    for loss, accumulation in product(("document", "weight"), (1, 2, 3)):
        ranks = [torch.load(tmp_path / f"{name}-{loss}-{accumulation}-{rank}.pt") for rank in range(2)]
        assert_steps_as_alone(ranks, weighted[0].pieces, as_weighed(loss, weighted))


@pytest.mark.parametrize("loss", ["document", "weight"])
@pytest.mark.parametrize("name", ["hf", "trl"])
def test_the_loss_of_evaluation_has_the_weights_of_the_training(weighted, tmp_path, name, loss):
    pytest.importorskip("trl")
    example, _ = weighted
    trainer = make_trainer(name, example.packed, tmp_path, loss=loss, per_device_eval_batch_size=example.rows)
    model, batch = tiny_llama(dtype=torch.float64), list(example.pieces)
    expected, _ = step_alone(model, example.pieces, [batch], as_weighed(loss, weighted))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-6)


def test_weights_come_from_the_workers_of_a_data_loader(example):
    found = packer.trainers.hf(example.packed, loss="document")
    loader = torch.utils.data.DataLoader(
        found["train_dataset"], batch_size=2, collate_fn=found["data_collator"], num_workers=1
    )
    for batch, rows in zip(loader, packer.batches(found["train_dataset"], rows=2, seed=None), strict=True):
        assert (batch["labels"] == rows["labels"]).all()
        assert ((batch["labels"].weights > 0) == (rows["labels"] != -100)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"use_liger_kernel": True},
            "use_liger_kernel of SFTTrainer is True: its loss has no weights; set it to False",
        ),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor of SFTTrainer is 0.1: .*; set it to 0"),
        ({"loss_type": "dft"}, "loss_type of SFTTrainer is dft: its loss has no weights; set it to nll"),
    ],
)
def test_settings_with_a_loss_of_their_own_are_refused_beside_weights(example, tmp_path, settings, message):
    trl = pytest.importorskip("trl")
    arguments = trl.SFTConfig(**options(tmp_path, example, **settings), bf16=False)
    with pytest.raises(PackerError, match=message):
        packer.trainers.trl(example.packed, arguments, loss="document")
    packer.trainers.trl(example.packed, arguments, loss="token")


def test_a_loss_that_is_unknown_or_has_no_weights_or_leaves_weights_unused_is_refused(example, weighted, tmp_path):
    with pytest.raises(PackerError, match="loss is 'sequence': choose token, document, weight"):
        packer.trainers.hf(example.packed, loss="sequence")
    with pytest.raises(
        PackerError, match="rows have weights of the loss: set loss to weight, or to token to ignore them"
    ):
        packer.trainers.hf(weighted[0].packed)
    packer.trainers.hf(weighted[0].packed, loss="token")
    with pytest.raises(PackerError, match="loss is weight, and the rows have no weights: choose token or document"):
        packer.trainers.hf(example.packed, loss="weight")

    def without_weights(found):
        return {**found, "data_collator": packer.collate}

    trainer = make_trainer("hf", example.packed, tmp_path, loss="document", tune=without_weights)
    with pytest.raises(PackerError, match=r"loss is document, but a batch has no weights: keep packer's data_coll"):
        trainer.train()
