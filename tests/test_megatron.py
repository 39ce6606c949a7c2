"""megatron-core and Megatron-Bridge read exports and batches, and train as on documents alone."""

from types import SimpleNamespace

import numpy as np
import pytest

import packer

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core.models.gpt")
pytest.importorskip("datasets")

from tests.helpers.documents import MAX_LEN, SOURCES, assert_same_gradients, make_example, make_source  # noqa: E402
from tests.helpers.export_trainers import alone_pairs, loss_of  # noqa: E402
from tests.helpers.megatron_bridge import bridge, bridge_folder  # noqa: E402
from tests.helpers.megatron_models import packed_seq_params, run_alone, tiny_gpt  # noqa: E402
from tests.helpers.models import VOCABULARY, gradients  # noqa: E402
from tests.helpers.torch_jobs import run_two  # noqa: E402

pytestmark = [pytest.mark.usefixtures("no_gpu"), pytest.mark.filterwarnings("ignore")]

needs_bridge = pytest.mark.skipif(bridge_folder() is None, reason="needs Megatron-Bridge")
EOS = VOCABULARY - 1


@pytest.fixture
def model():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with tiny_gpt() as model:
        yield model
    torch.distributed.destroy_process_group()


def train_alone(model, pieces):
    """(loss, gradients) of the documents one by one."""
    model.zero_grad()
    loss = loss_of(alone_pairs(lambda tokens: run_alone(model, tokens), pieces))
    loss.backward()
    return loss.item(), gradients(model)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_model_of_megatron_core_trains_on_a_packed_batch_as_on_documents_alone(model, kind, tmp_path):
    example = make_example(tmp_path, make_source(kind))
    loss, expected = train_alone(model, example.pieces)
    batch = packer.collate(list(packer.load(example.packed)), format="megatron")
    params = packed_seq_params(batch["cu_seqlens"][0], batch["max_seqlen"][0])
    model.zero_grad()
    logits = model(batch["tokens"], batch["position_ids"], None, packed_seq_params=params)[0]
    found = loss_of([(logits, batch["labels"][0])])
    found.backward()
    assert found.item() == pytest.approx(loss, abs=1e-5)
    assert_same_gradients(gradients(model), expected, 1e-5)


def source_with_eos(kind="masked prompts"):
    """Documents that fit into a row and end in EOS, the only one in them."""
    source = {name: [each for each in lists if len(each) <= MAX_LEN] for name, lists in make_source(kind).items()}
    return {name: [[min(id, EOS - 1) for id in each[:-1]] + [EOS] for each in lists] for name, lists in source.items()}


def bridge_data(packed, folder, *, align=1, pad_cu_seqlens=False, max_train_samples=None):
    """The training set that Megatron-Bridge builds of an export, by the configuration on its page."""
    packer.export(packed, folder, to="megatron", sync=False, overwrite=True)
    builders = bridge("data.builders.gpt_sft")
    config = builders.GPTSFTDatasetConfig(
        seq_length=MAX_LEN,
        dataset_root=str(folder),
        enable_offline_packing=True,
        offline_packing_specs=bridge("data.packing.config").PackedSequenceSpecs(
            packed_sequence_size=MAX_LEN,
            packed_train_data_path=str(folder),
            packed_metadata_path=str(folder / "_packing_metadata"),
            pad_seq_to_mult=align,
            pad_cu_seqlens=pad_cu_seqlens,
        ),
        dataset_kwargs={"pad_to_max_length": True},
        max_train_samples=max_train_samples,
        do_validation=False,
        do_test=False,
    )
    return builders.GPTSFTDatasetBuilder(config, SimpleNamespace(eos_id=EOS)).build()[0]


def bridge_rows(packed, folder, **options):
    """Micro-batches of one row each, as Megatron-Bridge makes them of an export."""
    data = bridge_data(packed, folder, **options)
    return [data.collate_fn([data[number]]) for number in range(len(data))]


@needs_bridge
def test_megatron_bridge_shuffles_the_rows_of_every_epoch_if_a_number_of_samples_is_set(tmp_path):
    example = make_example(tmp_path, source_with_eos())
    ordered = bridge_data(example.packed, tmp_path / "out")
    rows = [ordered[number]["input_ids"] for number in range(example.rows)]
    shuffled = bridge_data(example.packed, tmp_path / "out", max_train_samples=2 * example.rows)
    found = [shuffled[number]["input_ids"] for number in range(len(shuffled))]
    assert len(found) == 2 * example.rows
    assert found != rows * 2
    assert sorted(found[: example.rows]) == sorted(found[example.rows :]) == sorted(rows)


@needs_bridge
@pytest.mark.parametrize("pad_cu_seqlens", [False, True])
@pytest.mark.parametrize("align", [1, 4])
def test_megatron_bridge_collates_the_documents_of_an_export(tmp_path, align, pad_cu_seqlens):
    example = make_example(tmp_path, source_with_eos(), align=align)
    rows = bridge_rows(example.packed, tmp_path / "out", align=align, pad_cu_seqlens=pad_cu_seqlens)
    for found, row in zip(rows, packer.load(example.packed), strict=True):
        real = row["doc_ids"] != -1
        counts = row.get("seq_tokens", row["seq_lengths"])[real]
        starts = (np.cumsum(row["seq_lengths"]) - row["seq_lengths"])[real]
        bounds = found["cu_seqlens_q_padded" if align > 1 else "cu_seqlens_q"][0].tolist()
        extents = row["seq_lengths"][real] - (align == 1)
        assert bounds[: len(counts) + 1] == [0, *np.cumsum(extents)]
        assert set(bounds[len(counts) + 1 :]) <= {MAX_LEN}
        logical = np.diff(found["cu_seqlens_q"][0])[: len(counts)]
        assert align == 1 or logical.tolist() == (counts - 1).tolist()
        assert np.diff(bounds).max() <= found["max_seqlen_q"].max()
        trained, is_padding = np.zeros(MAX_LEN, bool), np.ones(MAX_LEN, bool)
        for begin, start, count in zip(bounds, starts, counts, strict=False):
            place, documents = slice(begin, begin + count - 1), slice(start, start + count)
            assert found["tokens"][0, place].tolist() == row["input_ids"][documents][:-1].tolist()
            assert found["labels"][0, place].tolist() == row["input_ids"][documents][1:].tolist()
            assert found["position_ids"][0, place].tolist() == list(range(count - 1))
            trained[place], is_padding[place] = row["labels"][documents][1:] != -100, False
        assert found["loss_mask"][0].tolist() == trained.astype(int).tolist()
        if "padding_mask" in found:  # on the main branch
            assert found["padding_mask"][0].tolist() == is_padding.tolist()


@needs_bridge
def test_rows_that_megatron_bridge_packed_are_divided_into_their_documents(tmp_path):
    algorithms, source = bridge("data.packing.algorithms"), source_with_eos()
    documents = list(zip(source["input_ids"], source["labels"], strict=True))
    examples = [{"input_ids": ids, "loss_mask": [each != -100 for each in labels]} for ids, labels in documents]
    sequences, histogram = algorithms.create_hist(np.array(examples), MAX_LEN)
    assignments, _ = algorithms.create_packing_strategy(histogram, MAX_LEN, "first_fit_decreasing")
    rows = algorithms.fill_packing_strategy(assignments, sequences, MAX_LEN, EOS)
    bridge("data.packing.parquet").write_packed_parquet(rows, tmp_path / "rows.idx.parquet")
    packer.pack(tmp_path / "rows.idx.parquet", tmp_path / "packed", max_len=MAX_LEN, sync=False)
    found = []
    for row in packer.load(tmp_path / "packed"):
        ends = np.cumsum(row["seq_lengths"])
        for end, length, document in zip(ends, row["seq_lengths"], row["doc_ids"], strict=True):
            place = slice(end - length, end)
            found += [(row["input_ids"][place].tolist(), row["labels"][place].tolist())] if document != -1 else []
    # what the first token of a document is, no mask of next tokens says
    expected = [(ids, [-100, *labels[1:]]) for ids, labels in documents]
    assert sorted((ids, [-100, *labels[1:]]) for ids, labels in found) == sorted(expected)


@pytest.mark.nightly
@pytest.mark.slow
def test_context_parallelism_of_megatron_core_trains_as_on_documents_alone(model, tmp_path):
    """Two processes divide documents; also rows of Megatron-Bridge, where it is installed."""
    example = make_example(tmp_path, source_with_eos(), align=4)
    batch = packer.collate(list(packer.load(example.packed)), format="megatron")
    rows = bridge_rows(example.packed, tmp_path / "out", align=4) if bridge_folder() else []
    loss, expected = train_alone(model, example.pieces)
    torch.save((batch, rows), tmp_path / "batch.pt")
    run_two("tests.helpers.megatron_ranks", tmp_path)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name in {"by document", "bridge"} & set(found):
            assert found[name][0] == pytest.approx(loss, abs=1e-5)
            assert_same_gradients(found[name][1], expected, 1e-5)
        assert ("bridge" in found) == (bridge_folder() is not None)
        assert abs(found["by row"][0] - loss) > 0.001
