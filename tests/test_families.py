"""Every family of models: logits, loss and gradients of packed documents are those of the documents alone.

Batches come from packed rows through `packer.batches`. What cannot be the same has to be said: by the implementation,
which raises, or by the probe.
"""

import functools
import importlib.util
import itertools
from contextlib import contextmanager

import numpy as np
import pytest
from packaging.version import Version

import packer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

from packer.attention import IMPLEMENTATION  # noqa: E402  needs torch, as all that follows
from packer.attention.transformers_hook import accepted_arguments  # noqa: E402
from packer.isolation.check_model import check  # noqa: E402
from tests.helpers.families import (  # noqa: E402
    ENCODERS,
    FAMILIES,
    NEWER,
    OTHER_ATTENTION,
    POST,
    RECURRENT,
    SINCE_5_24,
    VOCABULARY,
    tiny_model,
)
from tests.helpers.flash_attention import IN_INTERPRETER  # noqa: E402
from tests.helpers.models import FLASH, gradients, loss_sum, train_alone  # noqa: E402
from tests.helpers.naive_attention import flash_attn_installed  # noqa: E402

MAX_LEN = 24
LENGTHS = [5, 20, 1, 40, 7, 3, 24, 2, 17, 13]


@pytest.fixture(scope="module", autouse=True)
def _errors_only():
    """Transformers without its warnings."""
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity_warning()


@pytest.fixture(scope="module")
def pieces():
    """(document, start): (tokens, labels) of every segment; a part of the tokens is not trained on."""
    random = np.random.default_rng(0)
    found = {}
    for document, length in enumerate(LENGTHS):
        tokens = random.integers(3, VOCABULARY, length).tolist()
        labels = [-100 if place % 5 == 4 else token for place, token in enumerate(tokens)]
        for start in range(0, length, MAX_LEN):
            found[document, start] = (tokens[start : start + MAX_LEN], labels[start : start + MAX_LEN])
    return found


@pytest.fixture(scope="module")
def dataset(pieces, tmp_path_factory):
    """The same documents, packed."""
    source = {"input_ids": [[] for _ in LENGTHS], "labels": [[] for _ in LENGTHS]}
    for (document, _), (tokens, labels) in pieces.items():
        source["input_ids"][document] += tokens
        source["labels"][document] += labels
    out = tmp_path_factory.mktemp("families") / "packed"
    packer.pack(datasets.Dataset.from_dict(source), out, max_len=MAX_LEN, sync=False)
    rows = packer.load(out)
    assert len(rows) > 5
    assert max(len(row["doc_ids"]) for row in rows) > 2, "several documents in a row"
    return rows


@pytest.fixture(scope="module")
def alone(pieces):
    """What a family makes of the documents alone, by (family, dtype); the models are thrown away."""
    return functools.cache(lambda family, dtype: train_alone(tiny_model(family, dtype=dtype), pieces))


@pytest.fixture(scope="module")
def verdicts():
    """What the probe says of a family; several tests ask."""
    return functools.cache(lambda family: check(tiny_model(family)))


def batches_of(dataset, rows):
    return list(packer.batches(dataset, rows=rows, seed=None))


def train_packed(model, dataset, *, rows, without=frozenset()):
    """(logits by segment, loss, gradients) of one step over all rows, `rows` of them in a batch."""
    batches = batches_of(dataset, rows)
    trained = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    names = iter((int(d), int(s)) for row in dataset for d, s in zip(row["doc_ids"], row["doc_starts"], strict=True))
    names = (name for name in names if name[0] >= 0)
    model.zero_grad()
    logits, total = {}, 0.0
    for batch in batches:
        arguments = accepted_arguments(model, batch)
        output = model(**{name: value for name, value in arguments.items() if name not in without}).logits
        loss = loss_sum(output, batch["labels"]) / trained
        loss.backward()
        total += loss.item()
        lengths = batch["cu_seq_lens_q"].diff().tolist()
        logits |= {next(names): piece for piece in output[0].detach().split(lengths)}
    return logits, total, gradients(model)


def distance(found, expected):
    """Largest difference of tensors by name, each relative to its largest value if that is above 1."""
    assert set(found) == set(expected)
    return max(
        ((found[name] - each).abs().max() / each.abs().max().clamp(min=1)).item() for name, each in expected.items()
    )


def distance_to_alone(model, dataset, alone, *, rows):
    """Largest of the differences in logits, loss and gradients."""
    logits, loss, found = train_packed(model, dataset, rows=rows)
    assert max(each.abs().max() for each in alone.gradients.values()) > 0.001, "nothing to compare"
    return max(distance(logits, alone.logits), abs(loss - alone.loss), distance(found, alone.gradients))


@contextmanager
def implementation(name):
    """What an implementation needs; yields the calls of flash_attn's stand-in."""
    if name == FLASH:
        with flash_attn_installed() as calls:
            yield calls
    else:
        yield []


def made(family, name, dtype=torch.float32):
    if name == IMPLEMENTATION:
        return packer.attention.use(tiny_model(family, dtype=dtype))
    return tiny_model(family, attention=name, dtype=dtype)


# ---- what is the same ----

IS_5_24 = Version(transformers.__version__) >= Version("5.24")
"""Since transformers 5.24, falcon, codegen and gptj take masks and attention as others do; lfm3 refuses boundaries."""

SELECTING = ("axk2", "deepseek_v32", "dots3_note_text", "glm_moe_dsa", "hy_v4")
"""An index, which sees the mask of documents, selects the tokens that these attend to."""

LEAK_BY_POSITIONS = {"afmoe", "bert-generation", "biogpt", "opt", *(() if IS_5_24 else ("falcon",))}
"""Their code makes no use of position_ids in the masks of sdpa and eager."""

OURS_SINCE_5_24 = ("codegen", "gptj") if IS_5_24 else ()

WITHOUT_FLASH = {"gpt2", "hrm_text", "minimax_m3-full"}
"""Families whose code finds no dtype for flash_attn, or refuses it; MiniMax M3 takes a kernel of the Hub instead."""

SAFE = [
    *((family, IMPLEMENTATION) for family in {**POST, **NEWER, **ENCODERS} if family != "falcon"),
    *((family, "sdpa") for family in {**POST, **NEWER} if family not in LEAK_BY_POSITIONS),
    *((family, "eager") for family in {**POST, **NEWER} if family not in LEAK_BY_POSITIONS),
    *((family, FLASH) for family in {**POST, **NEWER, **ENCODERS} if family not in WITHOUT_FLASH),
    *((family, "eager") for family in ("gemma2", "gpt_neo", "gptj", "codegen", "granite_swa", "llama4_text")),
    *((family, "eager") for family in ("doge", "vaultgemma")),
    *((family, "eager") for family in ("flint", "gpt_neox_japanese", "granitemoe_swa", "mimo_v2_flash")),
    *((family, "sdpa") for family in ("llama4_text", "doge")),
    *((family, name) for family in SELECTING for name in ("eager", "sdpa") if (family, name) != ("hy_v4", "sdpa")),
    *((family, name) for family in OURS_SINCE_5_24 for name in ("sdpa", IMPLEMENTATION)),
    *((family, FLASH) for family in ("gemma2", "vaultgemma", "gptj", "codegen")),
]


def test_the_families_of_the_post_and_as_many_newer_ones_as_promised_are_covered():
    ours = {family for family, name in SAFE if name == IMPLEMENTATION}
    assert set(POST) - ours == {"falcon"}
    assert ("falcon", FLASH) in SAFE
    assert len(ours & set(NEWER)) >= 25
    assert set(FAMILIES) >= SINCE_5_24 or not IS_5_24


FLOAT32_INSIDE = {
    *("axk1", "beam", "cohere2_moe", "gemma4_unified_text", "glm4_moe_lite", "hy_v3", "kolibri1", "laguna"),
    *("dory", "longcat_flash", "minimax_m3-full", "moshi", "sarvam_mla", "sarvam_moe"),
    *("cohere", "cohere2", "deepseek_v2", "deepseek_v3", "diffllama", "dots1", "ernie4_5_moe", "exaone_moe", "gemma"),
    *("gemma3_text", "gemma3n_text", "gemma4_text", "glm4_moe", "helium", "hunyuan_v1_moe", "minimax_m2", "solar_open"),
}
"""Norms or routers that compute in float32 whatever the model's dtype."""


def in_float32(family, name):
    """Leave families outside the post to the night: the test of the probe trains them in float32, too."""
    return pytest.param(family, name, marks=[pytest.mark.nightly] * (family not in POST))


@pytest.mark.parametrize(("family", "name"), [in_float32(*each) for each in SAFE if each[1] in (IMPLEMENTATION, FLASH)])
def test_packed_documents_train_as_alone(family, name, dataset, alone):
    """Row by row, where boundaries are handed over.

    The test of the probe compares all but flash_attn's, which the probe does not run, with several rows in a batch.
    """
    expected = alone(family, torch.float32)
    for rows in (3,) if IN_INTERPRETER else (1, 3) if name == FLASH else (1,):
        with implementation(name) as calls:
            found = distance_to_alone(made(family, name), dataset, expected, rows=rows)
        assert found < 1e-5, rows
        if name == FLASH:
            assert all(torch.equal(queries, keys) for queries, keys, _ in calls)
            seen = {(*cu_seqlens.tolist(), longest) for cu_seqlens, _, longest in calls}
            handed = {(*batch["cu_seq_lens_q"].tolist(), batch["max_length_q"]) for batch in batches_of(dataset, rows)}
            one_document = {each for each in handed if len(each) == 3}  # for which some call the plain kernel
            assert handed - one_document <= seen <= handed


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize(
    "family", [family for family, name in SAFE if name == IMPLEMENTATION and family not in FLOAT32_INSIDE]
)
def test_packed_documents_train_as_alone_in_float64(family, dataset, alone):
    model = made(family, IMPLEMENTATION, torch.float64)
    assert distance_to_alone(model, dataset, alone(family, torch.float64), rows=3) < 1e-10


# ---- what is not, and has to be said ----


@pytest.mark.nightly(after=4)  # two plain ones, sliding windows, experts
@pytest.mark.parametrize("family", FAMILIES)
def test_the_probe_says_safe_where_packed_is_as_alone_and_only_there(family, dataset, alone, verdicts):
    """Against a measurement of its own: rows of a packed dataset, another loss, other lengths."""
    safe = {verdict.implementation for verdict in verdicts(family) if verdict.safe}
    assert {name for each, name in SAFE if each == family and name != FLASH} <= safe
    for verdict in verdicts(family):
        if verdict.answer == "refuses":
            with pytest.raises(Exception, match=r".") as raised:
                train_packed(made(family, verdict.implementation), dataset, rows=3)
            assert not isinstance(raised.value, AssertionError)
        elif verdict.answer != "unclear":
            model = made(family, verdict.implementation)
            found = distance_to_alone(model, dataset, alone(family, torch.float32), rows=3)
            assert found < 1e-5 if verdict.safe else found > 1e-3, verdict


KNOWN = {
    "deepseek_v4": {"eager": "leaks", "sdpa": "refuses", IMPLEMENTATION: "refuses"},
    "minimax_m3": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "refuses"},
    "zaya": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "leaks"},
    "falcon": {**dict.fromkeys(("eager", "sdpa"), "safe" if IS_5_24 else "leaks"), IMPLEMENTATION: "refuses"},
    "falcon-rw": {**dict.fromkeys(("eager", "sdpa"), "unclear" if IS_5_24 else "leaks"), IMPLEMENTATION: "refuses"},
    "bloom": {"eager": "leaks", IMPLEMENTATION: "refuses"},
    "mpt": {"eager": "leaks", IMPLEMENTATION: "refuses"},
    **{
        family: {"eager": "leaks", "sdpa": "refuses", IMPLEMENTATION: "refuses"}
        for family in ("big_bird", "cpmant", "megatron-bert", "openai-gpt", "rembert", "roformer")
    },
    "xglm": {"eager": "leaks", IMPLEMENTATION: "refuses"},
    "opt": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "safe"},
    "gpt_oss": {IMPLEMENTATION: "refuses"},
    "gemma2": {"eager": "safe", IMPLEMENTATION: "refuses"},
    "bert": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "safe"},
    "modernbert": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "safe"},
    "roberta": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "differs"},
    "xlm-roberta": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "differs"},
    "bert-generation": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "safe"},
    "mimo_v2_flash": {"eager": "safe", "sdpa": "refuses", IMPLEMENTATION: "refuses"},
    "llama4_text": {"eager": "safe", "sdpa": "safe", IMPLEMENTATION: "refuses"},
    "jamba": {"sdpa": "leaks", IMPLEMENTATION: "leaks"},
    "minimax": {"sdpa": "leaks", IMPLEMENTATION: "leaks"},
    "recurrent_gemma": {"sdpa": "leaks", IMPLEMENTATION: "leaks"},
    "mamba": {"eager": "leaks", IMPLEMENTATION: "refuses"},
    "mamba2": {"eager": "leaks", IMPLEMENTATION: "refuses"},
    "rwkv": {"eager": "leaks", IMPLEMENTATION: "refuses"},
    **{
        family: {"sdpa": "refuses", IMPLEMENTATION: "refuses"}
        for family in ("kimi_linear", "nemotron_h", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
    },
    "afmoe": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "safe"},
    "glm5_next-indexed": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "refuses"},
    "inkling_text": {"eager": "leaks", "sdpa": "leaks", IMPLEMENTATION: "refuses"},
    **{
        family: dict.fromkeys(("eager", "sdpa", IMPLEMENTATION), "refuses")
        for family in ("glm5_next", "inkling2_loop_text", "inkling2_text", "lara_mini", "qwen4_exp_text")
    },
    "lfm3": {"sdpa": "refuses" if IS_5_24 else "leaks", IMPLEMENTATION: "refuses"},
    "xlstm": {"eager": "leaks", IMPLEMENTATION: "refuses"},
}


BY_DAY = ("falcon", "falcon-rw", "bloom", "opt", "jamba")
"""Small families that have every answer between them."""


@pytest.mark.nightly(after=len(BY_DAY))
@pytest.mark.parametrize("family", [*BY_DAY, *(each for each in KNOWN if each in FAMILIES and each not in BY_DAY)])
def test_known_leaks_are_named(family, verdicts):
    found = {verdict.implementation: verdict.answer for verdict in verdicts(family)}
    assert {name: found[name] for name in KNOWN[family]} == KNOWN[family]


LEAK_BY_FLASH = ("gpt_neo", "jamba", "minimax", "recurrent_gemma", "zaya")


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("family", [*dict.fromkeys([*LEAK_BY_FLASH, *RECURRENT, *OTHER_ATTENTION])])
def test_flash_attention_leaks_in_these_families_and_otherwise_refuses_what_it_cannot_keep_apart(family):
    with flash_attn_installed():
        (verdict,) = check(tiny_model(family), [FLASH])
    expected = "safe" if (family, FLASH) in SAFE or family == "falcon-7b" else "refuses"
    assert verdict.answer == ("leaks" if family in LEAK_BY_FLASH else expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "version"),
    [
        *itertools.product(("qwen3", "mistral", "gemma2"), (2, 3, 4)),
        *((family, 4) for family in ("gpt_oss", "mimo_v2_flash", "flint", "granite_swa")),  # with attention sinks
    ],
)
def test_python_of_flash_attention_keeps_documents_apart(family, version, dtype):
    if not importlib.util.find_spec("flash_attn"):
        pytest.skip("flash-attn is not installed; tests/test_flash_attention.py installs it")
    with flash_attn_installed(version) as calls:
        (verdict,) = check(tiny_model(family, dtype=dtype), [f"flash_attention_{version}"])
    assert verdict.safe
    assert calls


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("family", RECURRENT)
def test_layers_that_carry_state_are_never_called_safe_without_their_kernels(family, verdicts):
    assert not any(verdict.safe for verdict in verdicts(family))
    assert all("--max-segments 1" in verdict.remedy for verdict in verdicts(family))


REFUSED_BOUNDARIES = ("lara_mini", "inkling2_loop_text", "inkling2_text", "qwen4_exp_text", "qwen3_5_text")
"""Families whose convolutions refuse segment numbers without a kernel."""


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("family", [family for family in REFUSED_BOUNDARIES if family in FAMILIES])
def test_layers_that_refuse_boundaries_without_their_kernels_leak_with_positions_alone(family, dataset, alone):
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        train_packed(made(family, "eager"), dataset, rows=3)
    boundaries = {"seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
    logits, _, _ = train_packed(made(family, "eager"), dataset, rows=3, without=boundaries)
    assert distance(logits, alone(family, torch.float32).logits) > 0.01


@pytest.mark.nightly
def test_attention_that_is_not_ours_is_refused_or_not_in_the_table_of_others():
    for family in OTHER_ATTENTION:
        (verdict,) = check(tiny_model(family), [IMPLEMENTATION])
        assert verdict.answer == ("safe" if family in OURS_SINCE_5_24 else "refuses"), family


# ---- encoders by mask ----
