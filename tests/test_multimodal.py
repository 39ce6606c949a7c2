"""Vision-language models on rows of documents with images: loss and gradients are those of the documents alone."""

import numpy as np
import pytest

import packer
from packer.errors import PackerError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

from tests.helpers.models import gradients, loss_sum  # noqa: E402  this needs torch

IMAGE, START, END = 60, 61, 62
IMAGES = (1, 0, 2, 1, 0, 3, 1, 1, 0, 2)
"""Number of images of each document."""

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
VISION = {"hidden_size": 16, "intermediate_size": 32, "initializer_range": 0.2}
PATCHES = {**VISION, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [3, 3, 2]}}
TOKENS = {"image_token_id": IMAGE, "vision_start_token_id": START, "vision_end_token_id": END}
GRIDS = {"patch_size": 4, "num_heads": 2}


def config_of(family):
    """Return the config of a tiny model."""
    if family == "llava":
        parts = {"text_config": {"model_type": "llama", **TEXT}, "image_token_id": IMAGE}
        vision = {"model_type": "clip_vision_model", **PATCHES}
        return transformers.LlavaConfig(vision_config=vision, vision_feature_layer=-1, **parts)
    if family == "smolvlm":
        parts = {"text_config": {"model_type": "llama", **TEXT}, "image_token_id": IMAGE, "pad_token_id": 0}
        return transformers.SmolVLMConfig(vision_config=PATCHES, scale_factor=2, **parts)
    text = {**TEXT, **MROPE}
    if family == "qwen2_vl":
        vision = {**GRIDS, "depth": 2, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2, "initializer_range": 0.2}
        return transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **TOKENS)
    if family == "qwen2_5_vl":
        vision = {**VISION, **GRIDS, "depth": 2, "out_hidden_size": 32, "fullatt_block_indexes": [1], "window_size": 16}
        return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **TOKENS)
    vision = {**VISION, **GRIDS, "depth": 2, "out_hidden_size": 32, "deepstack_visual_indexes": [0]}
    return transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **TOKENS)


FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "smolvlm")
MROPE_FAMILIES = FAMILIES[:3]


def model_of(family):
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config_of(family), attn_implementation="sdpa")
    return model.double().train()


def images_of(family, count, random):
    """Return (inputs of the model, number of tokens of each image) for some images; no inputs for none."""
    if not count:
        return {}, []
    if family == "llava":
        return {"pixel_values": torch.tensor(random.normal(size=(count, 3, 16, 16)))}, count * [16]
    if family == "smolvlm":
        return {"pixel_values": torch.tensor(random.normal(size=(1, count, 3, 16, 16)))}, count * [4]
    grids = np.column_stack([np.ones(count, int), 2 * random.integers(1, 4, (count, 2))])
    patches = random.normal(size=(grids.prod(axis=1).sum(), 3 * 2 * 4 * 4))
    inputs = {"pixel_values": torch.tensor(patches), "image_grid_thw": torch.tensor(grids)}
    return inputs, (grids.prod(axis=1) // 4).tolist()


def documents_of(family):
    """Return documents as a processor does: tokens, with places for the images between them, and the images."""
    random = np.random.default_rng(7)
    documents = []
    for count in IMAGES:
        images, sizes = images_of(family, count, random)
        tokens = random.integers(1, 50, random.integers(1, 12)).tolist()
        for size in sizes:
            tokens += [START, *size * [IMAGE], END, *random.integers(1, 50, random.integers(1, 9)).tolist()]
        ids = torch.tensor([tokens])
        documents.append({**images, "input_ids": ids, "labels": ids.masked_fill(ids == IMAGE, -100)})
    return documents


def inputs_of(family, document):
    """Return the inputs for a document alone, from which a model of M-RoPE computes its positions."""
    kinds = {"mm_token_type_ids": (document["input_ids"] == IMAGE).int()} if family in MROPE_FAMILIES else {}
    return {**{name: value for name, value in document.items() if name != "labels"}, **kinds}


def packed(family, model, documents):
    """Return the documents as one sequence, with the labels; as docs/how-to/images.md does."""
    parts = []
    for document in documents:
        inputs = inputs_of(family, document)
        positions = torch.arange(document["input_ids"].shape[1])[None]
        if family in MROPE_FAMILIES:
            grid = inputs.get("image_grid_thw")
            kinds = inputs["mm_token_type_ids"]
            own, _ = model.model.get_rope_index(inputs["input_ids"], mm_token_type_ids=kinds, image_grid_thw=grid)
            positions = torch.cat([positions[None], own])
        labels = document["labels"].clone()
        labels[:, 0] = -100
        parts.append({**document, "labels": labels, "position_ids": positions})
    along = {"input_ids": 1, "labels": 1, "position_ids": -1, "image_grid_thw": 0}
    along["pixel_values"] = 1 if family == "smolvlm" else 0
    columns = {name: [part[name] for part in parts if name in part] for name in along}
    return {name: torch.cat(values, along[name]) for name, values in columns.items() if values}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of documents by family: lengths are packed, and all that packer says of a row are its documents."""

    def rows_of(family):
        folder = tmp_path_factory.mktemp(family)
        np.save(folder / "lengths.npy", [document["input_ids"].shape[1] for document in documents_of(family)])
        packer.pack(
            folder / "lengths.npy", folder / "packed", lengths_column="lengths", max_len=128, long="error", sync=False
        )
        return packer.rows(folder / "packed")

    return rows_of


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_documents_alone(family, rows):
    documents, model = documents_of(family), model_of(family)
    alone = sum(loss_sum(model(**inputs_of(family, each)).logits, each["labels"]) for each in documents)
    alone.backward()
    expected = gradients(model)
    assert all(each.any() for name, each in expected.items() if "q_proj.weight" in name or "patch_embed" in name)

    for attention in ("transformers", "packer"):
        if attention == "packer":
            packer.attention.use(model)
        model.zero_grad()
        total = torch.zeros(())
        for row in rows(family):
            batch = packed(family, model, [documents[document] for document, _, _ in row])
            labels = batch.pop("labels")
            loss = loss_sum(model(**batch, use_cache=False).logits, labels)
            loss.backward()
            total += loss.detach()
        torch.testing.assert_close(total, alone.detach(), check_dtype=False)
        torch.testing.assert_close(gradients(model), expected)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("family", MROPE_FAMILIES)
def test_positions_of_images_alone_say_nothing_of_documents(family):
    """The three rows of M-RoPE need the places of tokens in their documents before them."""
    model, documents = model_of(family), documents_of(family)
    batch = packed(family, model, documents)
    without = {**batch, "position_ids": batch["position_ids"][1:]}
    with torch.no_grad():
        assert (model(**without, use_cache=False).loss - model(**batch, use_cache=False).loss).abs() > 1e-3
    packer.attention.use(model)
    with pytest.raises(PackerError, match="the position in the document as the first of 4 rows"):
        model(**without, use_cache=False)
