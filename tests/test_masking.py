"""Masks for masked language models: counted per segment, and equal for a document in any row and batch."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.column_names import NO_LOSS, PADDING
from packer.loader.batch_formats import mask_tokens
from tests.helpers import naive
from tests.helpers.order import sampler_at
from tests.helpers.packed_rows import make, segments_of, tokens_of

MASK, VOCABULARY, SPECIAL = 3, 40, (0, 1, 2)


def masker(**options):
    options = {"mask_id": MASK, "vocab_size": VOCABULARY, "special_ids": SPECIAL, **options}
    return packer.MaskedLM(**options)


tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)
segment = st.tuples(tokens, st.integers(-1, 5), st.integers(0, 3000))
maskers = st.builds(
    masker,
    probability=st.sampled_from([0.01, 0.15, 0.5, 1.0]),
    mask_share=st.sampled_from([0.0, 0.5, 0.8]),
    random_share=st.sampled_from([0.1, 0.2]),
    seed=st.sampled_from([0, 7, 2**64 - 1]),
)


def mask(segments, mlm, epoch=0):
    """Mask segments (tokens, document, start) in one call, and return (hidden, labels) of each."""
    lengths = np.array([len(tokens) for tokens, _, _ in segments])
    ids = np.concatenate([np.array(tokens, np.int64) for tokens, _, _ in segments])
    documents, starts = (np.array([each[part] for each in segments], np.int64) for part in (1, 2))
    before = ids.copy()
    pair = mask_tokens(ids, lengths, documents, starts, mlm=mlm, epoch=epoch)
    assert (ids == before).all()
    return list(zip(*(np.split(values, np.cumsum(lengths)[:-1]) for values in pair), strict=True))


# ---- which tokens are masked ----


@given(st.lists(segment, min_size=1, max_size=6), maskers, st.sampled_from([0, 3]))
def test_masks_equal_the_naive_ones(segments, mlm, epoch):
    for (tokens, document, start), (hidden, labels) in zip(segments, mask(segments, mlm, epoch), strict=True):
        if document == PADDING:
            expected = tokens, [NO_LOSS] * len(tokens)
        else:
            expected = naive.masked_segment(tokens, document, start, mlm=mlm, epoch=epoch)
        assert (hidden.tolist(), labels.tolist()) == expected


def test_shares_are_those_requested():
    random = np.random.default_rng(0)
    segments = [(random.integers(4, VOCABULARY, 200), document, 0) for document in range(1_000)]
    hidden, labels = map(np.concatenate, zip(*mask(segments, masker()), strict=True))
    before = np.concatenate([tokens for tokens, _, _ in segments])
    chosen = labels != NO_LOSS
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (hidden[chosen] == MASK).mean() == pytest.approx(0.8, abs=0.01)
    changed = chosen & (hidden != MASK) & (hidden != before)
    assert changed.sum() / chosen.sum() == pytest.approx(0.1 * 35 / 36, abs=0.01)  # one draw in 36 is the token
    counts = np.bincount(hidden[changed], minlength=VOCABULARY)[4:]
    assert counts.min() > 0.6 * counts.mean(), "every ordinary token is drawn"
    places = np.bincount(np.flatnonzero(chosen) % 200, minlength=200)
    assert places.min() > 0.5 * places.mean(), "every place is chosen"


# ---- the same in any row and batch ----


def by_position(dataset, batch):
    """Map (document, position) to (hidden, label), for a batch of rows in disk order in the format `hf`."""
    names = [
        (doc, start + place) for row in dataset for doc, start, length in segments_of(row) for place in range(length)
    ]
    return dict(
        zip(names, zip(*(batch[name][0].tolist() for name in ("input_ids", "labels")), strict=True), strict=True)
    )


def test_masks_depend_on_document_and_epoch_but_not_on_row_or_batch(tmp_path):
    pytest.importorskip("torch")
    found = []
    mlm = packer.MaskedLM(mask_id=1, vocab_size=100_000, special_ids=[0], probability=0.3)
    for name, packing in (("one", {}), ("two", {"max_segments": 2, "seed": 5})):
        dataset = packer.load(make(tmp_path / name, **packing))
        for epoch in (0, 1):
            whole = packer.collate(list(dataset), mlm=mlm, epoch=epoch, tensors="numpy")
            found.append(by_position(dataset, whole))
            for row, batch in zip(
                dataset, packer.batches(dataset, rows=1, seed=None, epoch=epoch, mlm=mlm), strict=True
            ):
                assert by_position([row], batch).items() <= found[-1].items()
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0] != found[1]
    assert {(doc, place): label for (doc, place), (_, label) in found[0].items() if label != NO_LOSS}.items() <= {
        (doc, place): token for doc in range(18) for place, token in enumerate(tokens_of(doc, 30))
    }.items()


def test_workers_learn_the_epoch_from_the_sampler(dataset):
    data = pytest.importorskip("torch.utils.data")
    mlm = packer.MaskedLM(mask_id=1, vocab_size=100_000, special_ids=[0])
    sampler = packer.BatchSampler(dataset, global_batch=2)
    loader = data.DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=partial(packer.collate, mlm=mlm, tensors="numpy"),
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for epoch in (0, 1):
        expected = sampler_at(epoch, dataset, global_batch=2)
        for batch, numbers in zip(loader, expected, strict=True):
            other = packer.collate([dataset[row] for row in numbers], mlm=mlm, epoch=epoch, tensors="numpy")
            assert batch["input_ids"].tolist() == other["input_ids"].tolist()
            assert batch["labels"].tolist() == other["labels"].tolist()


# ---- tokenizers and errors ----


def test_special_tokens_are_read_from_the_tokenizer(shared_data):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "bert_uncased")
    mlm = packer.masked_lm(tokenizer, probability=0.2, seed=4)
    assert (mlm.mask_id, mlm.vocab_size, mlm.probability, mlm.seed) == (103, 30_522, 0.2, 4)
    assert set(mlm.special_ids) == {0, 100, 101, 102, 103}


class SpacedTokenizer:
    """The part of a byte-level BPE tokenizer that packer uses."""

    mask_token_id, all_special_ids = 1, (0, 1)

    def get_vocab(self):
        return {"<pad>": 0, "<mask>": 1, "Ġthe": 2, "re": 3, "Ġa": 4, ",": 6}


def test_a_tokenizer_without_a_mask_token_is_refused():
    assert packer.masked_lm(SpacedTokenizer()).vocab_size == 7
    tokenizer = SpacedTokenizer()
    tokenizer.mask_token_id = None
    with pytest.raises(PackerError, match="SpacedTokenizer has no mask token: pass another"):
        packer.masked_lm(tokenizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_id": 40}, "token id 40 is not in 0..39: increase vocab_size"),
        ({"special_ids": [-1]}, "token id -1 is not in 0..39: increase vocab_size"),
        ({"special_ids": range(40)}, "all 40 tokens are special: there must be another one to draw"),
        ({"probability": 0}, "probability is 0: it must be above 0 and at most 1"),
        ({"mask_share": -0.1}, "mask_share is -0.1: it must be from 0 to 1"),
        ({"random_share": 0.3}, "mask_share is 0.8 and random_share 0.3: their sum must be at most 1"),
        ({"seed": -1}, "seed is -1: it must be a whole number from 0 to 2^64 - 1"),
    ],
)
def test_invalid_options_give_a_one_line_error(options, message):
    with pytest.raises(PackerError) as raised:
        masker(**options)
    assert str(raised.value) == message


def test_tokens_outside_the_vocabulary_and_negative_epochs_are_rejected(dataset):
    with pytest.raises(
        PackerError, match=r"a batch has the token \d+, but mlm a vocab_size of 40: pass that of the tokenizer"
    ):
        packer.collate([dataset[0]], mlm=masker())
    with pytest.raises(PackerError, match="epoch is -1: it must be a whole number from 0"):
        packer.collate([dataset[0]], epoch=-1)
