"""Attention over segments: the kernels of every torch version, where segments begin, and what is refused."""

import copy
import inspect
import itertools
import pickle
import re
import subprocess
import sys

import pytest

import packer
from packer import PackerError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packer.attention import IMPLEMENTATION, document_attention  # noqa: E402  needs torch, as all that follows
from packer.attention.transformers_hook import _FirstPass, attention, attention_mask  # noqa: E402
from tests.helpers import naive_attention  # noqa: E402
from tests.helpers.attention import LENGTHS, alone, batch_of, positions_of  # noqa: E402
from tests.helpers.families import WINDOW, tiny_gemma3, tiny_model  # noqa: E402

CU_SEQLENS = torch.tensor([0, 5, 6, 18, 23, 32], dtype=torch.int32)
TOKENS = 32


def random_heads(*, heads=4, key_heads=2, size=8, value_size=None, dtype=torch.float64):
    """Query, key and value that want gradients."""
    random = torch.Generator().manual_seed(0)
    shapes = [(TOKENS, heads, size), (TOKENS, key_heads, size), (TOKENS, key_heads, value_size or size)]
    return [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]


def with_gradients(function, tensors):
    """(output, gradients of the tensors) for a loss in which no two outputs weigh the same."""
    output = function(*tensors)
    weights = torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape).sin()
    return output.detach(), torch.autograd.grad((output * weights).sum(), tensors)


def assert_equals_naive(function, tensors, *, causal, window, scale):
    before, after = (-1 if window is None else window - 1), (0 if causal else -1 if window is None else window - 1)
    expected, expected_gradients = with_gradients(
        lambda *each: naive_attention.attend(*each, CU_SEQLENS, before=before, after=after, scale=scale), tensors
    )
    found, found_gradients = with_gradients(
        lambda *each: function(*each, CU_SEQLENS, max(LENGTHS), causal=causal, window=window, scale=scale), tensors
    )
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for one, other in zip(found_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


CASES = list(
    itertools.product(
        [True, False],
        [None, 1, 4, 9, 100],
        [None, 0.3],
        [
            {},
            {"key_heads": 4},
            {"key_heads": 1, "size": 5},
            {"size": 12, "value_size": 6},
            {"size": 6, "value_size": 9},
        ],
    )
)


@pytest.mark.nightly(after=50)
@pytest.mark.parametrize(("causal", "window", "scale", "shape"), CASES)
def test_sdpa_segment_by_segment_equals_attention_written_out(causal, window, scale, shape):
    tensors = random_heads(**shape)
    assert_equals_naive(document_attention.segment_attention, tensors, causal=causal, window=window, scale=scale)


@pytest.mark.parametrize(
    ("capability", "size", "width"),
    [
        *(((8, 9), size, width) for size, width in ((64, 64), (190, 192), (193, 256), (224, 256), (225, 232))),
        *((capability, 208, 256) for capability in ((8, 6), (8, 7), (12, 0))),
        *((capability, 208, 208) for capability in ((8, 0), (9, 0), (10, 0))),
    ],
)
def test_heads_without_a_backward_pass_on_a_gpu_are_padded_in_training(monkeypatch, capability, size, width):
    class OnGpu:
        device, shape, requires_grad = torch.device("cuda"), (1, 1, size), True

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert document_attention._kernel_width(OnGpu(), 8) == width
    OnGpu.requires_grad = False
    assert document_attention._kernel_width(OnGpu(), 8) == -(-size // 8) * 8


KERNELS = {
    "2.10": naive_attention.varlen_attn_2_10,
    "2.11": naive_attention.varlen_attn_2_11,
    "installed": naive_attention.varlen_attn_installed,
}


@pytest.fixture
def kernel(request, monkeypatch):
    """Calls of a stand-in for torch's kernel of one version."""
    calls = []
    stand_in = KERNELS[request.param](calls)
    monkeypatch.setattr(document_attention, "varlen_attn", stand_in, raising=False)
    monkeypatch.setattr(document_attention, "PARAMETERS", frozenset(inspect.signature(stand_in).parameters))
    return calls


def by_kernel(query, key, value, cu_seqlens, longest, **options):
    options["window"] = None if options["window"] is not None and options["window"] >= longest else options["window"]
    options["scale"] = query.shape[-1] ** -0.5 if options["scale"] is None else options["scale"]
    return document_attention._by_kernel((query, key, value), cu_seqlens, longest, **options)


KERNEL_CASES = [
    (version, *case) for version in KERNELS for case in CASES if version != "2.10" or case[1] in (None, 100)
]  # 2.10 has no window, and 100 tokens are none here


@pytest.mark.parametrize(("kernel", "causal", "window", "scale", "shape"), KERNEL_CASES, indirect=["kernel"])
def test_the_kernel_of_every_torch_version_is_called_as_it_wants(kernel, causal, window, scale, shape):
    assert_equals_naive(by_kernel, random_heads(**shape), causal=causal, window=window, scale=scale)
    (query, cu_seqlens, longest) = kernel[-1]
    assert query.shape[-1] % 8 == 0
    assert cu_seqlens is CU_SEQLENS
    assert longest == 12


def test_what_keeps_from_the_kernel_is_named(monkeypatch):
    query, _, value = random_heads(dtype=torch.bfloat16)
    assert "on cpu" in document_attention.kernel_obstacle(query, value, None)

    class OnGpu:
        """The parts of a tensor on a GPU that decide."""

        device = torch.device("cuda")

        def __init__(self, dtype=torch.bfloat16, size=64):
            self.dtype, self.shape = dtype, (1, 1, size)

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    names = {"scale", "window_size"}
    monkeypatch.setattr(document_attention, "PARAMETERS", names)
    assert document_attention.kernel_obstacle(OnGpu(), OnGpu(), 4) is None
    assert "load the model in bfloat16" in document_attention.kernel_obstacle(OnGpu(torch.float32), OnGpu(), None)
    assert "head size is 264" in document_attention.kernel_obstacle(OnGpu(), OnGpu(size=264), None)
    names.remove("window_size")
    assert document_attention.kernel_obstacle(OnGpu(), OnGpu(), None) is None
    assert "install torch 2.11" in document_attention.kernel_obstacle(OnGpu(), OnGpu(), 4)
    names.clear()
    assert "install torch 2.10" in document_attention.kernel_obstacle(OnGpu(), OnGpu(), None)


def test_the_kernel_of_the_torch_installed_has_a_version_known_here():
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11):
        assert {"query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"} < document_attention.PARAMETERS
        assert {"scale", "window_size"} < document_attention.PARAMETERS


# ---- where segments begin ----


def find(rows=1, row_tokens=TOKENS, *, cu_seq_lens=None, max_length=None, position_ids=None):
    return document_attention.find_boundaries(
        rows, row_tokens, cu_seq_lens, max_length, position_ids, torch.device("cpu")
    )


def test_boundaries_are_those_handed_over_or_where_positions_restart():
    for found in (
        find(cu_seq_lens=CU_SEQLENS, max_length=12),
        find(cu_seq_lens=CU_SEQLENS.long()),
        find(position_ids=positions_of(LENGTHS)),
        find(position_ids=positions_of(LENGTHS) + 2),
    ):
        assert found.cu_seqlens.tolist() == CU_SEQLENS.tolist()
        assert found.cu_seqlens.dtype == torch.int32
        assert found.longest == 12


@pytest.mark.parametrize(
    ("handed", "message"),
    [
        ({}, "neither cu_seq_lens_q nor position_ids reached attention"),
        (
            {"cu_seq_lens": CU_SEQLENS[:1], "max_length": 12},
            r"from 0 to 0, but the batch has 32 tokens.*dispatch_batches",
        ),
        ({"cu_seq_lens": CU_SEQLENS[:3], "max_length": 12}, "from 0 to 6, but the batch has 32 tokens"),
        ({"cu_seq_lens": CU_SEQLENS.clone(), "max_length": 9}, "max_length_q is 9, but the longest segment has 12"),
        ({"position_ids": torch.zeros(3, 1, TOKENS)}, r"position_ids of shape \[3, 1, 32\]"),
        ({"position_ids": torch.zeros(2, TOKENS)}, r"position_ids of shape \[2, 32\]"),
    ],
)
def test_boundaries_that_do_not_fit_are_refused(handed, message):
    with pytest.raises(PackerError, match=message):
        find(**handed)


# ---- a model ----


@pytest.mark.parametrize(
    "handed",
    [
        {},
        {"position_ids": None},
        {"cu_seq_lens_q": None, "cu_seq_lens_k": None},
        {"max_length_q": None, "max_length_k": None},
        {"use_cache": True},
        {"attention_mask": torch.ones(1, TOKENS)},
    ],
    ids=lambda handed: ",".join(handed) or "whole",
)
def test_a_model_needs_cu_seq_lens_or_position_ids(handed):
    model = packer.attention.use(tiny_model("qwen3"))
    if "position_ids" in handed:  # attention is right, positions are not
        apart = (model(**batch_of(**handed)).logits[0] - alone("qwen3")).abs().amax(-1)
        assert apart[: LENGTHS[0]].max() < 1e-5
        return
    torch.testing.assert_close(model(**batch_of(**handed)).logits[0], alone("qwen3"), rtol=0, atol=1e-5)


def test_several_rows_are_told_apart_by_their_positions():
    rows = [[5, 1, 10], [7, 9]]
    whole = batch_of([length for row in rows for length in row])["input_ids"].reshape(2, 16)
    positions = torch.cat([positions_of(row) for row in rows])
    model = packer.attention.use(tiny_model("llama3"))
    found = model(input_ids=whole, position_ids=positions, use_cache=False).logits
    plain = tiny_model("llama3")
    expected = [
        torch.cat([plain(input_ids=ids[None]).logits[0] for ids in each.split(row)])
        for each, row in zip(whole, rows, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("prepare", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_model_copies_and_pickles_before_and_after_its_first_pass(prepare):
    model = packer.attention.use(tiny_model("llama3"))
    for _ in range(2):
        model = prepare(model)
        model(**batch_of()).logits.sum().backward()
        with pytest.raises(PackerError, match="neither cu_seq_lens_q nor position_ids"):
            model(input_ids=batch_of()["input_ids"])
    assert not any(isinstance(hook, _FirstPass) for hook in model._forward_hooks.values())


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_gives_the_same_gradients():
    found = []
    for checkpointing in (False, True):
        model = packer.attention.use(tiny_model("qwen3"))
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**batch_of()).logits.square().mean().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_autocast_computes_in_its_dtype():
    model = packer.attention.use(tiny_model("qwen3"))
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**batch_of()).logits[0]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), alone("qwen3"), rtol=0.1, atol=0.2)


def test_the_text_part_of_a_model_of_several_parts_is_switched_alone():
    model = packer.attention.use(tiny_gemma3())
    assert model.config.text_config._attn_implementation == IMPLEMENTATION
    assert model.config.vision_config._attn_implementation != IMPLEMENTATION
    model.eval()(**batch_of())


# ---- what is refused ----


@pytest.mark.parametrize("family", ["llama3", "gpt2", "qwen3"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("called", ["model", "forward", "base", "by place"])
def test_a_batch_without_boundaries_is_refused(family, rows, called):
    """TRL sends a mask of ones and nothing else to a model without packing=True."""
    model = packer.attention.use(packer.attention.use(tiny_model(family)))
    ids = batch_of()["input_ids"].reshape(rows, -1)
    mask = torch.ones_like(ids)
    calls = {
        "model": lambda: model(input_ids=ids, attention_mask=mask),
        "forward": lambda: model.forward(input_ids=ids, attention_mask=mask),  # as PEFT calls it
        "base": lambda: model.base_model(input_ids=ids),
        "by place": lambda: model(ids, None if family == "gpt2" else mask),
    }
    with pytest.raises(PackerError, match=r"neither cu_seq_lens_q nor position_ids.*trainers.trl.*rows_are_documents"):
        calls[called]()
    packer.attention.use(model, rows_are_documents=True)
    calls[called]()
    packer.attention.use(model)
    with pytest.raises(PackerError, match="neither cu_seq_lens_q nor position_ids"):
        calls[called]()
    model.set_attn_implementation("sdpa")
    calls[called]()


def test_a_model_that_has_the_attention_by_its_name_alone_is_refused():
    """Its positions may be those that it has made itself, and its RoPE that of the longest document."""
    packer.attention.use(tiny_model("qwen3"))
    model = tiny_model("llama3")
    model.set_attn_implementation(IMPLEMENTATION)
    with pytest.raises(PackerError, match="LlamaAttention was given packer_varlen by its name"):
        model(**batch_of())


@pytest.mark.parametrize("names", [["position_ids"], ["position_ids", "cu_seq_lens_q", "max_length_q"]])
def test_batches_are_evaluated_in_inference_mode(names):
    """Also with a second batch in the same memory."""
    model = packer.attention.use(tiny_model("qwen3")).eval()
    with torch.inference_mode():
        batch = {name: value.clone() if torch.is_tensor(value) else value for name, value in batch_of().items()}
        found = model(**{name: batch[name] for name in ["input_ids", *names]}, use_cache=False).logits[0]
        torch.testing.assert_close(found, alone("qwen3"), rtol=0, atol=1e-5)
        batch["position_ids"].copy_(torch.arange(batch["position_ids"].numel())[None])
        changed = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits[0]
    assert (changed - found).abs().max() > 1e-3


def refusal(family, *, changes=None, **options):
    model = packer.attention.use(tiny_model(family, **options))
    with pytest.raises(PackerError) as raised:
        model(**batch_of(**(changes or {})))
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "llama3",
            {"attention_mask": (torch.arange(TOKENS) < TOKENS - 3)[None].float()},
            "attention_mask masks 3 tokens",
        ),
        ("llama3", {"attention_mask": torch.ones(1, 1, 32, 32, dtype=torch.bool)}, "mask of shape [1, 1, 32, 32]"),
        ("gemma2", {}, "caps its attention logits"),
        ("gpt_oss", {}, "has attention sinks"),
        ("doge", {}, "has an attention mask"),
        ("deepseek_v4", {}, "because it compresses keys along the row, which packer_varlen does not support: choose"),
    ],
)
def test_a_pass_that_the_kernel_cannot_compute_is_refused(family, changes, message):
    assert message in refusal(family, changes=changes)


def test_a_cache_that_holds_tokens_is_refused_as_that_of_prefix_tuning_would_be():
    model = packer.attention.use(tiny_model("llama3"))
    cache = model(**batch_of(use_cache=True)).past_key_values
    with pytest.raises(PackerError, match="1 queries and 33 keys, as with a KV cache or prefix tuning"):
        model(input_ids=torch.tensor([[5]]), position_ids=torch.tensor([[32]]), past_key_values=cache, use_cache=True)


def test_dropout_is_refused_in_training_and_ignored_in_evaluation():
    assert "has an attention dropout of 0.1" in refusal("llama3", attention_dropout=0.1)
    packer.attention.use(tiny_model("llama3", attention_dropout=0.1)).eval()(**batch_of())


def test_chunks_are_refused_where_a_segment_is_longer():
    assert f"attends in chunks of {WINDOW} tokens" in refusal("llama4_text")
    short = batch_of([WINDOW, 3, WINDOW])
    found = packer.attention.use(tiny_model("llama4_text"))(**short).logits
    expected = tiny_model("llama4_text", attention="sdpa")(**short).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["bloom", "falcon", "mpt"])
def test_a_model_with_attention_of_its_own_is_refused(family):
    with pytest.raises(PackerError, match="has its own attention, which cannot be replaced"):
        packer.attention.use(tiny_model(family))


def test_a_model_that_never_calls_it_is_refused_at_its_first_pass():
    model = packer.attention.use(tiny_model("mamba"), rows_are_documents=True)
    with pytest.raises(PackerError, match=f"MambaForCausalLM never called {IMPLEMENTATION}"):
        model(input_ids=torch.tensor([[5, 6, 7]]))


class Layer(torch.nn.Module):
    """An attention layer as transformers makes them."""

    is_causal = True

    def __init__(self, **config):
        super().__init__()
        self.config, self.layer_idx = transformers.PreTrainedConfig(**config), 0


def attend(layer, **options):
    layer._packer_in_use = packer.attention.use(tiny_model("llama3"))._packer_in_use
    query, key, value = (tensor.detach().transpose(0, 1)[None] for tensor in random_heads())
    return attention(layer, query, key, value, None, **options)


WITH_WINDOW = {"layer_types": ["sliding_attention"], "sliding_window": 4}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({}, {"position_bias": torch.zeros(1)}, "adds a position bias"),
        ({}, {"cache": object()}, "uses a paged KV cache, which training does not have"),
        (WITH_WINDOW, {}, "Layer 0 has a window of 4 tokens but does not pass it to attention"),
    ],
)
def test_a_layer_that_needs_what_its_arguments_do_not_have_is_refused(config, options, message):
    with pytest.raises(PackerError, match=message):
        attend(Layer(**config), cu_seq_lens_q=CU_SEQLENS, **options)
    attend(Layer(**config), cu_seq_lens_q=CU_SEQLENS, sliding_window=4)


def test_a_layer_that_drops_the_boundaries_is_refused():
    with pytest.raises(PackerError, match="neither cu_seq_lens_q nor position_ids reached attention"):
        attend(Layer())


def test_a_replica_of_data_parallel_is_refused():
    with pytest.raises(PackerError, match=r"DataParallel splits cu_seq_lens_q .* torchrun"):
        attend(Layer()._replicate_for_data_parallel(), cu_seq_lens_q=CU_SEQLENS, max_length_q=12)


def test_a_mask_that_lets_some_tokens_see_the_next_is_refused():
    causal, full = (lambda row, head, query, key: key <= query), (lambda row, head, query, key: key >= 0)
    for mask in (causal, full):
        assert attention_mask(q_length=8, kv_length=8, mask_function=mask) is None

    def image(row, head, query, key):
        return (key <= query) | ((query // 4 == 0) & (key // 4 == 0))

    with pytest.raises(PackerError, match=re.escape("lets 3 of 8 tokens attend to the next one")):
        attention_mask(q_length=8, kv_length=8, mask_function=image)


# ---- without torch or transformers ----


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(
    ("missing", "call"), [("torch", "use(None)"), ("transformers", "use(None)"), ("transformers", "probe(None)")]
)
def test_what_is_not_installed_is_named(missing, call):
    code = f"import sys; sys.modules[{missing!r}] = None; import packer; packer.attention.{call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    remedy = 'install packer with its extra "torch", in a checkout by pip install ".[torch]"'
    assert f"PackerError: {missing} is not installed: {remedy}" in done.stderr
