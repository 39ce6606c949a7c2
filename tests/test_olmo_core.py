"""OLMo-core trains packed rows by its own script: where it is installed, as in the environment of a test by night."""

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("olmo_core")

from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig  # noqa: E402
from olmo_core.nn.attention.backend import TorchAttentionBackend  # noqa: E402
from olmo_core.nn.transformer import TransformerConfig  # noqa: E402
from olmo_core.optim import AdamWConfig  # noqa: E402
from olmo_core.script_utils import ExperimentConfig, main  # noqa: E402
from olmo_core.train import Duration, TrainerConfig  # noqa: E402
from olmo_core.train.callbacks import Callback  # noqa: E402
from olmo_core.train.train_module import TransformerTrainModuleConfig  # noqa: E402

from packer import PackerError  # noqa: E402
from packer.trainers.olmo_core import PackedRows  # noqa: E402
from tests.helpers.documents import MAX_LEN, assert_same_gradients, make_example, make_source  # noqa: E402
from tests.helpers.export_trainers import alone_pairs, loss_of  # noqa: E402
from tests.helpers.models import VOCABULARY, gradients  # noqa: E402
from tests.helpers.naive_attention import attend  # noqa: E402

pytestmark = [pytest.mark.usefixtures("no_gpu"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("rows"), make_source("masked prompts"))


class Steps(Callback):
    """Loss and gradients of the documents alone, before the first step, and what is logged of each step."""

    def __init__(self, pieces):
        super().__init__()
        self.pieces, self.losses, self.gradients = pieces, [], []

    def pre_train(self):
        model = self.trainer.train_module.model
        loss = loss_of(alone_pairs(lambda tokens: model(tokens[None])[0], self.pieces))
        loss.backward()
        self.alone_loss, self.alone = loss.item(), gradients(model)
        model.zero_grad()

    def pre_optim_step(self):
        self.gradients.append(gradients(self.trainer.train_module.model))

    def log_metrics(self, step, metrics):
        self.losses += [value for name, value in metrics.items() if name == "train/CE loss"]


def attend_documents(self, qkv, *, cu_doc_lens=None, **_):
    """Attention of the flash backends, which need a GPU: rows lie end to end."""
    rows, tokens = qkv[0].shape[:2]
    bounds = torch.arange(rows + 1) * tokens if cu_doc_lens is None else cu_doc_lens
    return attend(*(each.flatten(0, 1) for each in qkv), bounds, scale=self.scale).view_as(qkv[0])


@pytest.fixture
def train(example, tmp_path, monkeypatch):
    """Function that trains two steps of all rows by a script's command line with overrides."""
    monkeypatch.setattr(TorchAttentionBackend, "forward", attend_documents)

    def run(*overrides):
        steps = Steps(example.pieces)

        def config(_, overrides):
            """A script's configuration, which reads its own files."""
            tokenizer = TokenizerConfig(vocab_size=VOCABULARY, eos_token_id=2, pad_token_id=0)
            return ExperimentConfig(
                model=TransformerConfig.llama_like(
                    d_model=32, vocab_size=VOCABULARY, n_layers=2, n_heads=4, n_kv_heads=2, init_std=0.2,
                    hidden_size_multiple_of=64,
                ),
                dataset=NumpyFSLDatasetConfig(
                    tokenizer=tokenizer, paths=["its-own.npy"], sequence_length=MAX_LEN, work_dir=str(tmp_path)
                ),
                data_loader=NumpyDataLoaderConfig(global_batch_size=example.rows * MAX_LEN, seed=0),
                train_module=TransformerTrainModuleConfig(
                    rank_microbatch_size=example.rows * MAX_LEN, max_sequence_length=MAX_LEN, optim=AdamWConfig(lr=0.01)
                ),
                trainer=TrainerConfig(
                    save_folder=str(tmp_path / "out"), max_duration=Duration.epochs(2), no_checkpoints=True,
                    metrics_collect_interval=1,
                ),
            ).merge(overrides)  # fmt: skip

        def with_steps(*arguments):
            found = config(*arguments)
            found.trainer.add_callback("steps", steps)
            return found

        monkeypatch.setattr(sys, "argv", ["train.py", "--train-single", f"--save-folder={tmp_path}", *overrides])
        main(with_steps)
        return steps

    return run


ITS_OWN = TorchAttentionBackend.forward
HOOK = "--dataset._CLASS_=packer.trainers.olmo_core.Packed"


def test_olmo_core_trains_as_on_documents_alone(example, train):
    steps = train(HOOK, f"--dataset.packed={example.packed}")
    first, second = steps.losses
    assert first == pytest.approx(steps.alone_loss, abs=1e-5)
    assert_same_gradients(steps.gradients[0], steps.alone, 1e-5)
    assert second < first


def test_without_its_boundaries_olmo_core_s_loss_is_another(example, train, monkeypatch):
    get = PackedRows.__getitem__

    def without_boundaries(self, index):
        instance = get(self, index)
        del instance["doc_lens"]
        return instance

    monkeypatch.setattr(PackedRows, "__getitem__", without_boundaries)
    steps = train(HOOK, f"--dataset.packed={example.packed}")
    assert abs(steps.losses[0] - steps.alone_loss) > 0.001


def test_attention_that_cannot_use_boundaries_and_other_lengths_are_refused(example, train, monkeypatch):
    monkeypatch.setattr(TorchAttentionBackend, "forward", ITS_OWN)
    with pytest.raises(RuntimeError, match="doesn't support intra-document masking"):
        train(HOOK, f"--dataset.packed={example.packed}")
    with pytest.raises(PackerError, match="sequence_length is 16: set it to 32, the tokens per row"):
        train(HOOK, f"--dataset.packed={example.packed}", "--dataset.sequence_length=16")


def test_context_parallelism_is_refused(example, train, monkeypatch):
    monkeypatch.setattr("olmo_core.distributed.parallel._WORLD_MESH", SimpleNamespace(mesh_dim_names=("dp", "cp")))
    with pytest.raises(PackerError, match=r"with context parallelism \(cp_config\), .*: train without it"):
        train(HOOK, f"--dataset.packed={example.packed}")


def test_rows_come_from_several_datasets(example, tmp_path):
    config = NumpyFSLDatasetConfig(
        tokenizer=TokenizerConfig(vocab_size=VOCABULARY, eos_token_id=2, pad_token_id=0), sequence_length=MAX_LEN
    )
    for packed in (f"[{example.packed}]", f"{{{example.packed}: 1}}"):
        rows = config.merge([HOOK.removeprefix("--dataset."), f"packed={packed}"]).build()
        assert len(rows) == example.rows
