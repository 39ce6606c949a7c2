"""What trainers make of an export: the loss of its documents alone. Their own code reads it where it is installed."""

import logging

import pytest

import packer

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
pytest.importorskip("transformers")


from tests.helpers import naive  # noqa: E402
from tests.helpers.documents import MAX_LEN, SOURCES, assert_same_gradients, make_example, make_source  # noqa: E402  these need torch
from tests.helpers.export_trainers import alone_pairs, following, loss_of, mean_loss, tiny_titan  # noqa: E402
from tests.helpers.models import VOCABULARY, gradients, tiny_llama, train_alone  # noqa: E402
from tests.helpers.naive_attention import operators_of_varlen_attn  # noqa: E402
from tests.helpers.torch_jobs import run_two  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.fixture(scope="module", params=SOURCES)
def example(request, tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("source"), make_source(request.param))


@pytest.fixture
def rows_of(example, tmp_path):
    """Rows of an export of the example, as tensors."""

    def exported(target):
        packer.export(example.packed, tmp_path / target, to=target)
        found = datasets.load_dataset(str(tmp_path / target), split="train", cache_dir=str(tmp_path / "cache"))
        return list(found.with_format("torch"))

    return exported


def gradients_of(model, pairs):
    model.zero_grad()
    loss_of(pairs).backward()
    return gradients(model)


@torch.no_grad()
def logits_of(model, tokens, positions):
    return model(input_ids=tokens[None], position_ids=positions[None], use_cache=False).logits[0]


def torchtune_pairs(model, rows):
    for row in rows:
        assert row["seq_lens"].sum() == MAX_LEN
        yield logits_of(model, row["tokens"], row["input_pos"]), following(row["labels"])  # its recipes shift


def maxtext_pairs(model, rows):
    """A document at a time, by its number; the loss is masked by `targets_segmentation`."""
    for row in rows:
        for number in range(1, int(row["inputs_segmentation"].max()) + 1):
            mine = row["inputs_segmentation"] == number
            targets = torch.where(row["targets_segmentation"][mine] != 0, row["targets"][mine], -100)
            yield logits_of(model, row["inputs"][mine], row["inputs_position"][mine]), targets


def megatron_pairs(model, rows):
    for row in rows:
        row = {name: values.tolist() for name, values in row.items()}
        for tokens, labels, mask in naive.megatron_sequences(row):
            if tokens:
                tokens, labels, mask = map(torch.tensor, (tokens, labels, mask))
                yield logits_of(model, tokens, torch.arange(len(tokens))), torch.where(mask == 1, labels, -100)


@pytest.mark.parametrize(
    ("target", "pairs"),
    [
        ("torchtune", torchtune_pairs),
        ("maxtext", maxtext_pairs),
        ("megatron", megatron_pairs),
    ],
)
def test_the_loss_is_that_of_the_documents_alone(example, rows_of, target, pairs):
    model = tiny_llama()
    found = mean_loss(pairs(model, rows_of(target)))
    assert found == pytest.approx(train_alone(model, example.pieces).loss, abs=1e-5)


def test_torchtune_collates_the_rows_and_its_model_keeps_documents_apart(example, rows_of):
    torchtune_data = pytest.importorskip("torchtune.data")
    llama3 = pytest.importorskip("torchtune.models.llama3").llama3
    torch.manual_seed(0)
    model = llama3(
        vocab_size=VOCABULARY, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32, max_seq_len=64,
        intermediate_dim=64, attn_dropout=0.0,
    )  # fmt: skip
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    alone = mean_loss(alone_pairs(lambda tokens: model(tokens[None])[0], example.pieces))
    batch = torchtune_data.padded_collate_packed(rows_of("torchtune"))
    logits = model(batch["tokens"], mask=batch["mask"], input_pos=batch["input_pos"])
    assert mean_loss(zip(logits, map(following, batch["labels"]), strict=True)) == pytest.approx(alone, abs=1e-5)
    loaded = torchtune_data.padded_collate_packed(packer.collate(list(packer.load(example.packed)), format="torchtune"))
    assert all(torch.equal(loaded[name], batch[name]) for name in batch)


def titan_plugin():
    pytest.importorskip("torchtitan.components.dataloader")
    from packer.trainers import torchtitan

    return torchtitan


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["flex", "varlen"])
def test_torchtitan_reads_rows_through_a_loader_and_its_model_keeps_documents_apart(example, attention):
    """Varlen attention is torch's, over stand-ins for its operators."""
    recipe = titan_plugin()
    from tests.helpers.titan_ranks import plain_flex_attention

    model = tiny_titan(attention)
    operators_of_varlen_attn()
    rows = example.rows
    loader = recipe.PackedDataLoader.Config(packed=str(example.packed)).build(
        dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=MAX_LEN, local_batch_size=rows
    )
    inputs, labels = next(iter(loader))

    def forward(inputs):
        return model(inputs["input"], inputs["positions"], model.get_attention_masks(inputs["positions"]))

    def run(tokens):
        positions = torch.arange(len(tokens))[None]
        return model(tokens[None], positions, model.get_attention_masks(positions))[0]

    with plain_flex_attention():
        alone = mean_loss(alone_pairs(run, example.pieces))
        assert mean_loss(zip(forward(inputs), labels, strict=True)) == pytest.approx(alone, abs=1e-5)
        expected = gradients_of(model, alone_pairs(run, example.pieces))
        found = gradients_of(model, zip(forward(inputs), labels, strict=True))
    assert_same_gradients(found, expected, 1e-5)


def batch_of_long_rows(folder):
    """(inputs, labels, pieces) of rows that are long enough for the blocks of FlexAttention's masks."""
    lengths = [60, 33, 17, 64, 2, 41] * 4 + [64] * 2
    tokens = [[(number * place) % VOCABULARY for place in range(length)] for number, length in enumerate(lengths, 1)]
    packer.pack(datasets.Dataset.from_dict({"input_ids": tokens}), folder / "packed", max_len=512, sync=False)
    inputs, labels = packer.collate(list(packer.load(folder / "packed")), format="torchtitan")
    return inputs, labels, {number: (each, each) for number, each in enumerate(tokens)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_flex_attention_of_torchtitan_keeps_documents_apart_by_the_blocks_of_its_masks(tmp_path):
    titan_plugin()
    from tests.helpers.titan_ranks import compiled_flex_attention, plain_flex_attention

    model = tiny_titan("flex")
    inputs, labels, pieces = batch_of_long_rows(tmp_path)

    def run(tokens, positions, seen):
        return model(tokens, positions, model.get_attention_masks(seen))

    def run_alone(tokens):
        positions = torch.arange(len(tokens))[None]
        return run(tokens[None], positions, positions)[0]

    positions = inputs["positions"]
    whole_rows = torch.arange(positions.shape[1]).expand_as(positions)
    with torch.no_grad():
        with plain_flex_attention():
            alone = mean_loss(alone_pairs(run_alone, pieces))
        with compiled_flex_attention():
            packed, leaking = (run(inputs["input"], positions, seen) for seen in (positions, whole_rows))
    assert mean_loss(zip(packed, labels, strict=True)) == pytest.approx(alone, abs=1e-5)
    assert abs(mean_loss(zip(leaking, labels, strict=True)) - alone) > 0.001


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_context_parallelism_of_torchtitan_trains_as_on_documents_alone(tmp_path):
    """Two processes divide long rows; FlexAttention is not compiled, so blocks of masks are not tested."""
    titan_plugin()
    from tests.helpers.titan_ranks import BALANCERS

    inputs, labels, pieces = batch_of_long_rows(tmp_path)
    torch.save(((inputs["input"], inputs["positions"], labels), pieces), tmp_path / "batch.pt")
    run_two("tests.helpers.titan_ranks", tmp_path)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        alone, expected = found["alone"]
        for balancer in BALANCERS:
            assert found[balancer][0] == pytest.approx(alone, abs=1e-5)
            assert_same_gradients(found[balancer][1], expected, 1e-5)
        assert abs(found["without boundaries"][0] - alone) > 0.001


def test_the_loader_for_torchtitan_goes_on_over_epochs_and_from_a_state(example):
    recipe = titan_plugin()

    def loader(rank=0, ranks=1):
        return recipe.PackedDataLoader.Config(packed=str(example.packed)).build(
            dp_world_size=ranks, dp_rank=rank, tokenizer=None, seq_len=MAX_LEN, local_batch_size=2
        )

    first = loader()
    batches = iter(first)
    epoch = [next(batches)[0]["input"].tolist() for _ in range(example.rows // 2)]
    state = first.state_dict()
    again = [next(batches)[0]["input"].tolist() for _ in range(example.rows // 2)]
    assert epoch != again, "another order"
    resumed = loader()
    resumed.load_state_dict(state)
    batches = iter(resumed)
    assert [next(batches)[0]["input"].tolist() for _ in again] == again
    shares = [next(iter(loader(rank, 2)))[0]["input"] for rank in range(2)]
    assert not torch.equal(*shares)
    with pytest.raises(packer.PackerError, match="seq_len is 16: set it to 32, the tokens per row"):
        recipe.PackedDataLoader.Config(packed=str(example.packed)).build(
            dp_world_size=1, dp_rank=0, seq_len=16, local_batch_size=2
        )


def test_grain_batches_the_rows_for_maxtext(example, tmp_path):
    grain = pytest.importorskip("grain")
    numpy = pytest.importorskip("numpy")
    logging.getLogger("absl").setLevel(logging.ERROR)
    packer.export(example.packed, tmp_path / "out", to="maxtext")
    (path,) = (tmp_path / "out").glob("*.parquet")
    rows = grain.experimental.ParquetIterDataset(str(path))
    rows = rows.map(lambda row: {name: numpy.asarray(values, numpy.int32) for name, values in row.items()})
    (batch,) = rows.batch(example.rows)
    expected = packer.collate(list(packer.load(example.packed)), format="segment_ids", tensors="numpy")
    assert {name: values.tolist() for name, values in batch.items()} == {
        name: values.tolist() for name, values in expected.items()
    }
