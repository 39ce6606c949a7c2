"""Attention in rows of trees: every model computes for each path what it computes for the document alone."""

import contextlib
import copy
import gc
import pickle
import random
import re
import weakref
from functools import partial

import pytest

import packer
from packer import PackerError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention.flex_attention import create_mask, flex_attention  # noqa: E402  needs torch, as all that follows
from torch.nn.functional import log_softmax, logsigmoid  # noqa: E402

from packer.attention import IMPLEMENTATION, document_attention  # noqa: E402
from tests.helpers.families import (  # noqa: E402
    ENCODERS,
    FAMILIES,
    NEWER,
    POST,
    RECURRENT,
    VOCABULARY,
    WINDOW,
    tiny_gemma3,
    tiny_model,
)
from tests.helpers.isolation import longrope  # noqa: E402
from tests.helpers.models import gradients, loss_sum  # noqa: E402
from tests.helpers.naive_attention import attend as attend_alone  # noqa: E402
from tests.helpers.naive_trees import Forest, random_forest  # noqa: E402
from tests.helpers.trees_attention import distance, train_trees  # noqa: E402
from tests.helpers.writing import write_lines  # noqa: E402

NOT_PASSED_ON = {"nemotron", "stablelm"}
"""Families whose code passes position_ids to its layers, but no other arguments."""

OURS = [family for family in {**POST, **NEWER} if family not in {*NOT_PASSED_ON, "falcon"}]
BY_MASK = ["llama2", "stablelm", "falcon", "gemma2", "gpt2", "nemotron"]


@pytest.fixture(scope="module", autouse=True)
def _errors_only():
    """Transformers without its warnings."""
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity_warning()


@contextlib.contextmanager
def float64_inside():
    """Norms and routers compute in float64, too, where they would convert it to float32."""
    with pytest.MonkeyPatch.context() as patch:
        to, softmax = torch.Tensor.to, torch.nn.functional.softmax

        def stays(tensor, *args, **kwargs):
            if tensor.dtype == torch.float64 and torch.float32 in (*args, kwargs.get("dtype")):
                return tensor
            return to(tensor, *args, **kwargs)

        def exact_softmax(tensor, *args, **kwargs):
            return softmax(tensor, *args, **{**kwargs, "dtype": torch.float64})

        patch.setattr(torch.Tensor, "to", stays)
        patch.setattr(torch.Tensor, "float", lambda tensor: stays(tensor, torch.float32))
        patch.setattr(torch.Tensor, "type", stays)
        patch.setattr(torch.Tensor, "type_as", lambda tensor, other: stays(tensor, other.dtype))
        patch.setattr(torch.nn.functional, "softmax", exact_softmax)
        yield


def exact(family, **changes):
    return tiny_model(family, dtype=torch.float64, **changes).double()  # some gates are in float32


def train_alone(model, forest):
    """(logits, loss, gradients) of the documents one by one."""
    model.zero_grad()
    logits, total = {}, 0.0
    for number, (tokens, labels) in enumerate(zip(forest.documents, forest.document_labels, strict=True)):
        found = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        loss = loss_sum(found, torch.tensor([labels]))
        loss.backward()
        total += loss.item()
        logits[number] = found[0].detach()
    return logits, total, gradients(model)


@pytest.fixture(scope="module")
def forest():
    """A row with trees of up to 16 documents, 4 deep; plain documents; and padding."""
    found = random_forest(0, vocabulary=VOCABULARY)
    assert len(found.tokens) < 0.7 * sum(map(len, found.documents)), "much is shared"
    assert max(map(len, found.documents)) > 2 * WINDOW, "windows matter"
    return found


# ---- the twin ----


@pytest.mark.parametrize("seed", range(8))
def test_the_path_of_each_document_holds_its_tokens(seed):
    forest = random_forest(seed, vocabulary=9)
    for path, tokens in zip(forest.paths, forest.documents, strict=True):
        assert [forest.tokens[place] for place in path] == tokens
        assert [forest.positions[place] for place in path] == list(range(len(tokens)))


def test_a_tree_by_hand():
    forest = Forest().add([[3, 4, 5, 6, 7], [3, 4, 8, 9], [3, 4, 8, 10]]).add([[4, 5]])
    assert forest.tokens == [3, 4, 5, 6, 7, 4, 8, 9, 8, 10, 4, 5]
    assert forest.positions == [0, 1, 2, 3, 4, 1, 2, 3, 2, 3, 0, 1]
    assert forest.visible_until == [10, 5, 5, 5, 5, 10, 8, 8, 10, 10, 12, 12]


# ---- masks ----


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_the_dense_mask_lets_tokens_see_their_paths(seed, depth, window):
    forest = random_forest(seed, vocabulary=30, depth=depth)
    mask = packer.attention.dense_mask(forest.tree, window)
    assert mask.dtype == torch.bool
    assert mask.shape == (1, 1, len(forest.tokens), len(forest.tokens))
    assert torch.equal(mask[0, 0], forest.dense(window))


def by_blocks(mask, tokens):
    """The dense mask that a BlockMask stands for: full blocks, and the others by its function."""
    found = torch.zeros(-(-tokens // 128) * 128, -(-tokens // 128) * 128, dtype=torch.bool)
    each = create_mask(mask.mask_mod, None, None, tokens, tokens, device="cpu")[0, 0]
    for numbers, indices, is_full in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        for row, number in enumerate(numbers[0, 0].tolist()):
            for column in indices[0, 0, row, :number].tolist():
                block = slice(row * 128, row * 128 + 128), slice(column * 128, column * 128 + 128)
                assert not found[block].any(), "a block is listed twice"
                part = each[block]
                found[block][: part.shape[0], : part.shape[1]] = True if is_full else part
                if is_full:
                    assert part.shape == (128, 128)
    return found[:tokens, :tokens]


@pytest.mark.parametrize("window", [None, 1, 150, 700])
@pytest.mark.parametrize("seed", range(3))
def test_the_block_mask_is_the_dense_mask(seed, window):
    forest = random_forest(seed, vocabulary=30, longest=200, branches=8)
    tokens = len(forest.tokens)
    mask = packer.attention.block_mask(forest.tree, window)
    dense = packer.attention.dense_mask(forest.tree, window)[0, 0]
    assert mask.shape == (1, 1, tokens, tokens)
    assert torch.equal(by_blocks(mask, tokens), dense)
    assert window is not None or mask.full_kv_num_blocks.sum() > 0
    if window is None:  # no block is computed in vain
        padded = torch.nn.functional.pad(dense, (0, -tokens % 128, 0, -tokens % 128))
        needed = padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128)).any(3).any(1)
        assert torch.equal(mask.to_dense()[0, 0].bool(), needed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tree: tree[:1],
            "tree is torch.int32 of shape [1, 135], but a batch of 135 tokens needs int32 of shape",
        ),
        (lambda tree: tree.float(), "tree is torch.float32 of shape [2, 135]"),
        (lambda tree: tree.index_fill(1, torch.tensor(4), 4), "place 4 of 135 that it is visible until place 4 and"),
        (lambda tree: tree.index_fill(1, torch.tensor(4), 136), "visible until place 136 and has position 136"),
        (lambda tree: tree.index_fill(1, torch.tensor(4), -1), "visible until place -1 and has position -1"),
    ],
)
def test_a_tensor_that_is_no_tree_is_an_error_in_one_line(forest, change, message):
    tree = change(forest.tree)
    for make in (packer.attention.dense_mask, packer.attention.block_mask):
        with pytest.raises(PackerError, match=re.escape(message)):
            make(tree)


# ---- attention ----


def random_heads(tokens, *, key_heads=2, size=8, value_size=6):
    random_state = torch.Generator().manual_seed(0)
    shapes = [(tokens, 4, size), (tokens, key_heads, size), (tokens, key_heads, value_size)]
    return [torch.randn(shape, generator=random_state, dtype=torch.float64).requires_grad_() for shape in shapes]


def path_by_path(query, key, value, forest, window, scale):
    """Attention along each path, as of a document alone; the last path that goes through a token says its output."""
    out = query.new_zeros(query.shape[0], query.shape[1], value.shape[2])
    for path in forest.paths:
        ends = torch.tensor([0, len(path)])
        before = -1 if window is None else window - 1
        out = out.index_put(
            (torch.tensor(path),),
            attend_alone(query[path], key[path], value[path], ends, before=before, after=0, scale=scale),
        )
    return out


def with_gradients(output, tensors):
    weights = torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape).sin()
    return output.detach(), *torch.autograd.grad((output * weights).sum(), tensors)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("shape", [{}, {"key_heads": 4}, {"key_heads": 1, "value_size": 11}])
def test_attention_in_trees_is_attention_along_their_paths(forest, shape, window, scale):
    tensors = random_heads(len(forest.tokens), **shape)
    found = with_gradients(document_attention.tree_attention(*tensors, forest.tree, window, scale), tensors)
    expected = with_gradients(path_by_path(*tensors, forest, window, scale), tensors)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("window", [None, 5])
def test_flex_attention_computes_the_same(monkeypatch, forest, window):
    """Not compiled, on the CPU, where it has no gradients."""
    tensors = [tensor.detach() for tensor in random_heads(len(forest.tokens))]
    expected = document_attention.tree_attention(*tensors, forest.tree, window, 0.3)
    calls = []

    def eager(*heads, **options):
        calls.append(options)
        return flex_attention(*heads, **options)

    monkeypatch.setattr(document_attention, "flex_obstacle", lambda query, value: None)
    monkeypatch.setattr(document_attention, "_compiled", lambda: eager)
    found = document_attention.tree_attention(*tensors, forest.tree, window, 0.3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert [call["enable_gqa"] for call in calls] == [True]


@pytest.mark.parametrize(
    ("dtype", "size", "obstacle"),
    [
        (torch.bfloat16, 64, None),
        (torch.float32, 16, None),
        (torch.float64, 64, "FlexAttention does not support torch.float64; load the model in bfloat16"),
        (torch.bfloat16, 8, "the head size is 8, and FlexAttention needs 16 or more"),
    ],
)
def test_what_flex_attention_does_not_support_is_named(dtype, size, obstacle):
    class OnGpu:
        device = torch.device("cuda")

    OnGpu.dtype, OnGpu.shape = dtype, (1, 1, size)
    assert document_attention.flex_obstacle(OnGpu, OnGpu) == obstacle


def count_masks(monkeypatch):
    made = []
    original = document_attention.dense_mask
    monkeypatch.setattr(
        document_attention, "dense_mask", lambda tree, window: made.append(window) or original(tree, window)
    )
    return made


def test_a_mask_is_made_once_per_batch_and_kind_of_layer(monkeypatch, forest):
    made = count_masks(monkeypatch)
    model = packer.attention.use(tiny_model("gemma3_text", num_hidden_layers=4, layer_types=LAYERS))
    tree = forest.tree
    for _ in range(2):
        model(**forest.batch(tree=tree)).loss.backward()
    assert made == [WINDOW, None]
    tree[0, 4] = 5
    model(**forest.batch(tree=tree))
    assert made == [WINDOW, None] * 2
    with torch.inference_mode():
        model(**forest.batch())
    assert len(made) == 4 + 4


LAYERS = ["sliding_attention", "full_attention"] * 2


def test_masks_are_freed_with_their_batch(forest):
    tree = forest.tree
    mask = weakref.ref(document_attention.kept(tree, "test", partial(packer.attention.block_mask, tree)))
    assert mask() is not None
    pickle.dumps(tree)
    del tree
    gc.collect()
    assert mask() is None


# ---- models ----


def nightly_unless(families):
    return lambda family: pytest.param(family, marks=[] if family in families else [pytest.mark.nightly])


@pytest.mark.parametrize("family", list(map(nightly_unless(POST), OURS)))
def test_trees_train_as_their_documents_alone(family, forest):
    with float64_inside():
        expected = train_alone(exact(family), forest)
        found = train_trees(packer.attention.use(exact(family)), forest)
    assert distance(found, expected) < (1e-6 if family == "diffllama" else 1e-12)  # it sums in float32


@pytest.mark.parametrize("family", list(map(nightly_unless([]), ["llama2", "mistral", "gemma3_text", "deepseek_v3"])))
@pytest.mark.parametrize("seed", range(1, 9))
def test_other_trees_train_as_their_documents_alone(family, seed):
    forest = random_forest(seed, vocabulary=VOCABULARY, depth=seed % 4 + 1, padding=seed % 3)
    with float64_inside():
        expected = train_alone(exact(family), forest)
        found = train_trees(packer.attention.use(exact(family)), forest)
    assert distance(found, expected) < 1e-12


@pytest.mark.parametrize("family", BY_MASK)
def test_trees_train_as_their_documents_alone_by_a_mask(family, forest):
    attention = "eager" if family == "gemma2" else "sdpa"
    mask = packer.attention.dense_mask(forest.tree)
    if attention == "eager":  # adds its mask
        window = packer.attention.dense_mask(forest.tree, WINDOW)
        least = torch.finfo(torch.float64).min
        mask, window = (
            torch.zeros(each.shape, dtype=torch.float64).masked_fill(~each, least) for each in (mask, window)
        )
        mask = {"full_attention": mask, "sliding_attention": window}
    with float64_inside():
        expected = train_alone(exact(family, attention=attention), forest)
        found = train_trees(exact(family, attention=attention), forest, attention_mask=mask, tree=None)
    assert distance(found, expected) < 1e-12


@pytest.mark.parametrize("fault", ["range", "position", "tree position"])
def test_one_wrong_range_or_position_is_noticed(fault, forest):
    wrong = copy.deepcopy(forest)
    changes = {}
    first = next(place for place, until in enumerate(forest.visible_until) if until - place > 30)  # a shared token
    if fault == "range":
        wrong.visible_until[first] = forest.visible_until[first] - 1
    elif fault == "position":
        wrong.positions[first + 1] += 1
        changes = {"tree": forest.tree}
    else:
        changes = {"tree": forest.tree.clone()}
        changes["tree"][1, first + 1] += 1
    family = "mistral" if fault == "tree position" else "llama2"
    with float64_inside():
        expected = train_alone(exact(family), forest)
        found = train_trees(packer.attention.use(exact(family)), wrong, **changes)
    assert distance(found, expected) > 1e-5


def test_the_loss_of_the_model_is_that_of_its_trained_tokens(forest):
    """Labels are not shifted, and the first token of a branch has none unless it follows its parent."""
    found = packer.attention.use(tiny_model("llama3"))(**forest.batch()).loss
    trained = sum(label != -100 for labels in forest.document_labels for label in labels[1:])
    assert sum(label != -100 for label in forest.labels) == trained
    torch.testing.assert_close(found, torch.tensor(train_alone(tiny_model("llama3"), forest)[1] / trained).float())


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(monkeypatch, forest, reentrant):
    model = packer.attention.use(tiny_model("mistral"))
    expected = train_trees(model, forest)
    made = count_masks(monkeypatch)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    first, second = (model(**forest.batch()).loss for _ in range(2))
    plain = model(input_ids=torch.tensor([[5, 6, 7]]), position_ids=torch.arange(3)[None], use_cache=False).logits
    (first + plain.sum()).backward()
    second.backward()
    assert made == [WINDOW] * 2
    assert distance(train_trees(model, forest), expected) < 1e-6


# ---- preference pairs ----


def dpo_loss(chosen, rejected, reference):
    """DPO's sigmoid loss as TRL writes it, with beta 0.1, of sums of log-probabilities."""
    return -logsigmoid(0.1 * ((chosen - reference[0]) - (rejected - reference[1])))


def log_probability(logits, tokens, trained):
    """Sum of the log-probabilities of the tokens that are trained, each predicted one place before."""
    each = log_softmax(logits[:-1], dim=-1).gather(-1, tokens[1:, None])[:, 0]
    return (each * trained[1:]).sum()


@pytest.mark.parametrize("is_static", [False, True])
def test_dpo_of_packed_pairs_is_that_of_the_pairs(tmp_path, is_static):
    """From the source to the loss, as a training loop would compute it."""
    pairs = [preference_pair(number) for number in range(12)]
    packer.pack(write_lines(tmp_path / "pairs.jsonl", pairs), tmp_path / "out", max_len=48, pairs=True)
    with float64_inside():
        model = exact("qwen3")
        expected = 0.0
        for pair in pairs:
            sums = []
            for role in ("chosen", "rejected"):
                tokens, labels = (torch.tensor(pair[f"{role}_{name}"]) for name in ("input_ids", "labels"))
                sums.append(log_probability(model(input_ids=tokens[None]).logits[0], tokens, labels != -100))
            loss = dpo_loss(*sums, (-20.0, -21.0))
            loss.backward()
            expected += loss.item()
        expected_gradients = gradients(model)

        model.zero_grad()
        model, rows = packer.attention.use(model), packer.load(tmp_path / "out")
        static = packer.static_shape(rows, rows=2) if is_static else None
        found = 0.0
        for batch in packer.batches(rows, rows=2, format="tree", keep=["doc_ids"], static=static):
            segments, labels = batch.pop("segments"), batch.pop("labels")[0]
            logits = model(**batch).logits[0]
            names = list(zip(segments["segment_of_token"].tolist(), segments["answer_of_token"].tolist(), strict=True))
            for segment in {name[0] for name in names if name[1] == 0}:
                sums = []
                for answer in (0, 1):
                    trained = torch.tensor([name == (segment, answer) for name in names]) & (labels != -100)
                    sums.append(log_probability(logits, batch["input_ids"][0], trained))
                loss = dpo_loss(*sums, (-20.0, -21.0))
                loss.backward(retain_graph=True)
                found += loss.item()
    assert found == pytest.approx(expected, abs=1e-12)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=0, atol=1e-12)


def preference_pair(number):
    draw = random.Random(number)
    prompt, *answers = ([draw.randrange(3, VOCABULARY) for _ in range(draw.randint(1, 12))] for _ in range(3))
    values = {}
    for role, answer in zip(("chosen", "rejected"), answers, strict=True):
        values[f"{role}_input_ids"] = prompt + answer
        values[f"{role}_labels"] = [-100] * len(prompt) + answer
    return values


# ---- what is refused ----


def refusal(model, forest, **changes):
    model = packer.attention.use(model)
    with pytest.raises(PackerError) as raised:
        train_trees(model, forest, **changes)
    assert "\n" not in str(raised.value)
    assert model._packer_in_use.tree_passes == 0
    return str(raised.value)


@pytest.mark.nightly(after=8)
@pytest.mark.parametrize("family", sorted({*RECURRENT} - {"rwkv"}))
def test_models_that_mix_tokens_outside_attention_are_refused(family, forest):
    message = refusal(tiny_model(family), forest)
    assert re.search(r"cannot train on trees, because (it has layers of \w+|its \w+ mixes or selects)", message)
    assert message.endswith("pack without --pairs and --share-prefixes")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama4_text", {}, "it has layers of chunked_attention"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "its tokens attend to later ones"),
        ("stablelm", {}, "the batch has a tree that did not reach StableLmAttention"),
        ("nemotron", {}, "the batch has a tree that did not reach NemotronAttention"),
        ("phi3", longrope(4), "a document has 18 tokens, and above 12 Phi3ForCausalLM takes its RoPE frequencies"),
        ("gemma2", {}, "caps its attention logits, which the varlen kernel does not support: pack without --pairs"),
        ("gpt_oss", {}, "has attention sinks"),
        ("llama3", {"attention_dropout": 0.1}, "has an attention dropout of 0.1"),
    ],
)
def test_models_that_cannot_be_exact_are_refused(family, changes, message, forest):
    assert message in refusal(tiny_model(family, **changes), forest)


@pytest.mark.parametrize("family", ENCODERS)
def test_attention_both_ways_is_refused(family, forest):
    assert "attends to later tokens" in refusal(tiny_model(family), forest)


def test_convolutions_are_found_by_their_modules_alone():
    model = tiny_model("llama3")
    model.model.layers[0].mixer = torch.nn.Conv1d(32, 32, 1)
    assert document_attention.tree_obstacle(model) is None
    model.model.layers[0].mixer = torch.nn.Conv1d(32, 32, 4, groups=32)
    assert "its Conv1d mixes or selects tokens" in document_attention.tree_obstacle(model)
    images = tiny_gemma3()
    images.model.vision_tower.mixer = torch.nn.Conv1d(32, 32, 4)
    assert document_attention.tree_obstacle(images) is None


def test_short_documents_keep_the_frequencies_of_long_rope():
    short = Forest().add([[3, 4, 5, 6], [3, 4, 5, 7, 8], [3, 9]])
    with float64_inside():
        expected = train_alone(exact("phi3", **longrope(4)), short)
        found = train_trees(packer.attention.use(exact("phi3", **longrope(4))), short)
    assert distance(found, expected) < 1e-12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_ids": None}, "the batch has a tree but no position_ids"),
        (
            {"tree": torch.zeros(2, 7, dtype=torch.int32)},
            "tree is torch.int32 of shape [2, 7], but a batch of 135 tokens",
        ),
        ({"attention_mask": torch.zeros(1, 135)}, "attention_mask masks 135 tokens"),
    ],
)
def test_batches_that_are_not_whole_are_refused(changes, message, forest):
    assert message in refusal(tiny_model("llama3"), forest, **changes)


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in OURS])
def test_other_models_are_never_called_safe_for_trees(family):
    (verdict,) = packer.check(tiny_model(family), [IMPLEMENTATION])
    assert verdict.trees == "refuses"
    with pytest.raises((PackerError, TypeError)):
        packer.attention.use(tiny_model(family))(**random_forest(0, vocabulary=VOCABULARY).batch())


@pytest.mark.parametrize("family", sorted(NOT_PASSED_ON))
def test_a_tree_that_is_not_passed_on_is_noticed_without_the_hooks_of_the_model(family, forest):
    """As adapters such as PEFT's call a model."""
    with pytest.raises(PackerError, match="the batch has a tree that did not reach"):
        packer.attention.use(tiny_model(family)).forward(**forest.batch())


def test_rows_that_are_documents_can_be_trees(forest):
    model = packer.attention.use(tiny_model("stablelm"), rows_are_documents=True)
    model(input_ids=torch.tensor([[5, 6, 7]]))
    with pytest.raises(PackerError, match="did not reach StableLmAttention"):
        model(**forest.batch())
    model(input_ids=torch.tensor([[5, 6, 7]]))


def test_a_model_switched_elsewhere_needs_a_mask(forest):
    model = packer.attention.use(tiny_model("llama3"))
    expected = model(**forest.batch()).logits
    model.set_attn_implementation("sdpa")
    with pytest.raises(PackerError, match=r"switched to sdpa, which ignores the batch's tree: .*dense_mask\(tree\)"):
        model(**forest.batch())
    masked = model(**forest.batch(attention_mask=packer.attention.dense_mask(forest.tree))).logits
    torch.testing.assert_close(masked, expected, rtol=0, atol=1e-5)
