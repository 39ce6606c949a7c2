"""Several packed datasets as one: shares, epochs, ranks and states, and what does not fit together."""

import json
import pickle
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.loader.load import CombinedDataset, apportion
from tests.helpers import naive
from tests.helpers.order import sampler_at, samplers
from tests.helpers.packed_rows import MAX_LEN, make

LENGTHS = {"web": [12] * 45, "code": [5, 7, 12, 12, 3, 9, 12, 12, 12, 12, 8], "maths": [12, 12, 12]}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Packed datasets of 45, 9 and 3 rows, the first of which has several shards."""
    folder = tmp_path_factory.mktemp("several")
    return {name: make(folder / name, lengths, shard_size=12 * 3 * 4 * MAX_LEN) for name, lengths in LENGTHS.items()}


class Stored:
    """What a combined dataset reads of one of its datasets: rows in shards."""

    def __init__(self, number, shard_rows):
        self.shard_rows, self.fingerprint, self.max_len = shard_rows, f"{number + 7:016x}", MAX_LEN
        self.is_remote, self.path, self.tokens = False, str(number), MAX_LEN * sum(shard_rows)

    def __len__(self):
        return sum(self.shard_rows)

    def read(self, rows):
        return [{"row": row} for row in rows]

    def segments(self):
        yield np.arange(len(self) + 1), np.arange(len(self), dtype=np.int32), np.zeros(len(self), np.int64)


@st.composite
def combinations(draw):
    """Datasets of some shards, combined with some rows of each."""
    shards = st.lists(st.integers(1, 6), min_size=1, max_size=4)
    datasets = [Stored(number, draw(shards)) for number in range(draw(st.integers(1, 3)))]
    counts = [draw(st.integers(1, 2 * len(dataset) + 3)) for dataset in datasets]
    return CombinedDataset(datasets, counts, draw(st.one_of(st.none(), st.integers(0, 2**64 - 1))))


def origins(dataset, numbers):
    """(dataset, row in it) of some rows."""
    return [(int(row["source"]), row["row"]) for row in dataset.__getitems__(numbers)] if len(numbers) else []


def epochs_of(dataset, epochs):
    return naive.epochs_of(
        [one.shard_rows for one in dataset.datasets],
        dataset.counts,
        seed=dataset._seed,
        fingerprints=[one.fingerprint for one in dataset.datasets],
        epochs=epochs,
    )


# ---- the rows of an epoch ----


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(1, 10**6))
def test_shares_are_exact_to_a_row(weights, rows):
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    counts = apportion(shares, rows)
    assert sum(counts) == rows
    assert all(abs(count - share * rows) < 1 for count, share in zip(counts, shares, strict=True))


@given(combinations())
def test_rows_are_those_of_the_slow_twin(dataset):
    expected = epochs_of(dataset, 5)
    for epoch, rows in enumerate(expected):
        first = dataset.first_number(epoch)
        assert origins(dataset, range(first, first + len(dataset))) == rows
    assert origins(dataset, range(len(dataset))) == [(int(row["source"]), row["row"]) for row in dataset]


@given(combinations(), st.integers(1, 6))
def test_over_epochs_every_row_of_a_dataset_is_used_equally_often(dataset, epochs):
    seen = Counter(origins(dataset, range(epochs * len(dataset))))
    for number, (one, count) in enumerate(zip(dataset.datasets, dataset.counts, strict=True)):
        times = [seen[number, row] for row in range(len(one))]
        assert sum(times) == epochs * count
        assert max(times) - min(times) <= 1


@given(combinations(), st.integers(0, 3))
def test_the_shards_of_an_epoch_hold_its_rows(dataset, epoch):
    sizes = dataset.shard_rows
    starts = np.cumsum(sizes) - sizes
    ranges = dataset.shard_ranges(epoch).tolist()
    assert [number for _, first, end in ranges for number in range(first, end)] == list(
        range(dataset.first_number(epoch), dataset.first_number(epoch + 1))
    )
    for shard, first, end in ranges:
        stored = dataset.stored_rows(np.arange(first, end))
        assert ((stored >= starts[shard]) & (stored < starts[shard] + sizes[shard])).all()


def test_the_choice_of_rows_is_random_and_another_one_for_each_seed():
    """Each of 30 rows is among the 6 of an epoch equally often: 400 of 2,000 times, give or take 18."""
    times = np.zeros(30)
    for seed in range(2000):
        dataset = CombinedDataset([Stored(0, [10, 20]), Stored(1, [1])], [6, 1], seed)
        times[[row for number, row in origins(dataset, range(7)) if number == 0]] += 1
    assert times.sum() == 12_000
    assert abs(times - 400).max() < 6 * 18


# ---- the sampler ----


@st.composite
def layouts(draw):
    world_size, rows, accumulation = (draw(st.integers(1, most)) for most in (3, 3, 2))
    options = {"world_size": world_size, "rows": rows, "global_batch": world_size * rows * accumulation}
    if draw(st.booleans()):
        return {**options, "lanes": world_size, "window": draw(st.integers(1, 3))}
    return {**options, "balance": draw(st.sampled_from([None, 1, 2, 3]))}


@given(combinations(), layouts(), st.integers(0, 3))
def test_an_epoch_has_its_rows_on_any_ranks(dataset, layout, epoch):
    shown = Counter()
    for sampler in samplers(dataset, layout, epoch=epoch):
        shown.update(origin for numbers in sampler for origin in origins(dataset, numbers))
    assert shown == Counter(epochs_of(dataset, epoch + 1)[epoch])


@settings(max_examples=40)
@given(combinations(), layouts(), st.data())
def test_resumed_anywhere_a_run_goes_on_as_if_undisturbed(dataset, layout, data):
    def shown(sampler, epochs):
        return [origins(dataset, numbers) for _ in range(epochs) for numbers in sampler]

    rank = data.draw(st.integers(0, layout["world_size"] - 1))
    expected = shown(samplers(dataset, layout)[rank], 3)
    stop = data.draw(st.integers(0, len(expected) - 1))
    sampler, before = samplers(dataset, layout)[rank], []
    while len(before) < stop:
        for numbers in sampler:
            before.append(origins(dataset, numbers))
            if len(before) == stop:
                break
    state = json.loads(json.dumps(sampler.state_dict()))
    again = pickle.loads(pickle.dumps(dataset))
    resumed = samplers(again, layout)[rank]
    resumed.load_state_dict(state)
    epochs = 3 - stop // len(sampler)
    assert before + [origins(again, numbers) for _ in range(epochs) for numbers in resumed] == expected


@pytest.mark.parametrize("lanes", [None, 4])
def test_a_run_that_is_resized_sees_the_same_rows(lanes):
    dataset = CombinedDataset([Stored(0, [20, 30, 10]), Stored(1, [7, 5])], [25, 15], 3)

    def steps(world_size, state=None):
        options = {"global_batch": 8, "world_size": world_size, "lanes": lanes}
        ranks = [sampler_at(2, dataset, rank=rank, **options) for rank in range(world_size)]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        rows = [[origins(dataset, numbers) for numbers in rank] for rank in ranks]
        return [sorted(origin for part in step for origin in part) for step in zip(*rows, strict=True)]

    expected = steps(1)
    assert len(expected) == 5
    assert steps(2) == steps(4) == expected
    old = sampler_at(2, dataset, global_batch=8, lanes=lanes)
    state = old.state_dict(batches=2)
    assert steps(4, state) == expected[2:]


def test_a_state_of_other_shares_is_refused(paths):
    one = packer.load({paths["web"]: 0.7, paths["code"]: 0.3})
    state = packer.BatchSampler(one, global_batch=2).state_dict()
    for other in (
        packer.load({paths["web"]: 0.6, paths["code"]: 0.4}),
        packer.load({paths["web"]: 0.7, paths["code"]: 0.3}, seed=1),
        packer.load({paths["code"]: 0.3, paths["web"]: 0.7}),
    ):
        with pytest.raises(PackerError, match="the sampler's state has dataset"):
            packer.BatchSampler(other, global_batch=2).load_state_dict(state)
    packer.BatchSampler(packer.load({paths["web"]: 7, paths["code"]: 3}), global_batch=2).load_state_dict(state)


# ---- opened ----


def test_a_list_of_paths_has_all_rows_of_all(paths):
    singles = [packer.load(path) for path in paths.values()]
    dataset = packer.load(list(paths.values()))
    assert isinstance(dataset, packer.PackedDataset)
    assert len(dataset) == sum(map(len, singles))
    expected = [(number, row) for number, single in enumerate(singles) for row in single]
    for found, (number, row) in zip(dataset, expected, strict=True):
        assert int(found["source"]) == number
        assert all(np.array_equal(found[name], values) for name, values in row.items())
    assert dataset.column_names == list(dataset[0])
    assert np.array_equal(dataset[-1]["input_ids"], singles[-1][-1]["input_ids"])
    with pytest.raises(IndexError):
        dataset[-len(dataset) - 1]


def test_weights_are_shares_and_the_size_is_what_no_row_repeats_in_or_what_one_asks_for(paths):
    web, code = paths["web"], paths["code"]
    dataset = packer.load({web: 0.7, code: 0.3})
    assert (len(dataset), dataset.counts) == (30, (21, 9))  # all 9 rows of code are 30%
    assert packer.load({web: 0.8, code: 0.2}, rows=50).counts == (40, 10)
    assert packer.load({str(web): 1, str(code): 1}, rows=7).counts == (4, 3)
    by_tokens = packer.load({web: 0.5, code: 0.5}, tokens="2.4k")
    assert by_tokens.counts == (102, 102)  # 12 tokens in a row of web, 104 / 9 on average in one of code
    assert packer.load(web, rows=np.int64(10)).counts == (10,)
    assert packer.load([web, code], rows=11).counts == (9, 2)


def test_the_repr_says_the_exact_shares(paths):
    text = repr(packer.load({paths["web"]: 0.8, paths["code"]: 0.2}, rows=50))
    tokens = 40 * 12, 10 * 104 / 9
    assert text.splitlines() == [
        "PackedDataset of 2, rows=50, max_len=12; in an epoch:",
        f"  {str(paths['web'])!r}: {tokens[0] / sum(tokens):.2%} of the tokens, 40 rows, 88.9% of its own",
        f"  {str(paths['code'])!r}: {tokens[1] / sum(tokens):.2%} of the tokens, 10 rows, 111.1% of its own",
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_dataloaders_get_the_batches_and_each_row_says_its_source(paths, workers):
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    dataset = packer.load({paths["web"]: 0.5, paths["maths"]: 0.5}, rows=10)

    collate = partial(packer.collate, keep=["source"])  # Python 3.14 pickles what workers get
    sampler = packer.BatchSampler(dataset, global_batch=2)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=workers)
    seen = Counter()
    for epoch in range(6):
        batches = list(loader)
        expected = list(packer.batches(dataset, rows=2, epoch=epoch, keep=["source"]))
        for batch, other in zip(batches, expected, strict=True):
            assert torch.equal(batch["input_ids"], other["input_ids"])
            assert torch.equal(batch["segments"]["source"], other["segments"]["source"])
            seen.update(zip(batch["segments"]["source"].tolist(), batch["segments"]["doc_ids"].tolist(), strict=True))
    assert {seen[1, document] for document in range(3)} == {10}
    assert {seen[0, document] for document in range(45)} <= {0, 1}


def test_losses_and_masks_tell_documents_of_several_datasets_apart(paths):
    dataset = packer.load([paths["web"], paths["maths"]])
    rows = dataset.__getitems__([number for number, row in enumerate(dataset) if row["doc_ids"][0] == 0])
    assert [int(row["source"]) for row in rows] == [0, 1]
    weights = packer.collate(rows, loss_weights="document", tensors="numpy")["loss_weights"]
    assert weights.sum() == pytest.approx(2)


def test_static_shapes_and_schedules_fit_what_an_epoch_repeats(paths):
    dataset = packer.load({paths["web"]: 1, paths["code"]: 1}, rows=60)
    static = packer.static_shape(dataset, rows=4)
    for batch in packer.batches(dataset, rows=4, static=static, tensors="numpy"):
        assert len(batch["cu_seq_lens_q"]) == static.segments + 1
    assert packer.packed_schedule(dataset, batch_size=60).packing_factor == pytest.approx((1 + 11 / 9) / 2)


def test_documents_of_rows_name_their_dataset(paths):
    rows = packer.rows([paths["web"], paths["code"]])
    assert rows[0][0].source == 0
    assert rows[50][0].source == 1
    assert [rows.dataset.datasets[0].find(3), rows[-1][0].doc_id] == [packer.load(paths["web"]).find(3), rows[-1][0][0]]


def test_indexes_are_combined_with_copied_datasets(tmp_path, paths):
    index = make(tmp_path / "index", LENGTHS["code"], index_only=True)
    source = tmp_path / "index" / "source.arrow"
    dataset = packer.load({paths["web"]: 0.5, index: 0.5}, rows=20, source=[None, source])
    copied = {tuple(row["doc_ids"].tolist()): row for row in packer.load(paths["code"])}
    found = [row for row in dataset if row["source"] == 1]
    assert len(found) == 10
    for row in found:
        expected = copied[tuple(row["doc_ids"].tolist())]
        assert all(np.array_equal(row[name], values) for name, values in expected.items())
    with pytest.raises(PackerError, match=r"has columns .*input_ids.*, and .* doc_ids, doc_starts, seq_lengths: com"):
        packer.load({paths["web"]: 0.5, index: 0.5})


def test_of_many_shards_only_some_are_mapped_at_once(tmp_path, monkeypatch):
    from tests.helpers.loader import maps_of
    from tests.helpers.small import shrink

    shrink(monkeypatch, open_shards=4)
    many = make(tmp_path / "many", LENGTHS["web"], shard_size=12 * 3 * 4 * MAX_LEN)
    dataset = packer.load([many, many])
    assert len(dataset.shard_rows) > 6
    for row in dataset:
        assert row["input_ids"][0] > 0
        assert maps_of(many) <= 4


# ---- what does not fit ----


def test_datasets_that_do_not_fit_together_are_refused_in_one_line(tmp_path, paths):
    from tests.helpers.writing import write_lines

    web = paths["web"]
    trees = tmp_path / "trees"
    record = {"input_ids": [[1, 2, 3], [1, 2, 4]], "labels": [[1, 2, 3]] * 2}
    packer.pack(write_lines(tmp_path / "trees.jsonl", [record]), trees, share_prefixes=True, max_len=MAX_LEN)
    others = {
        "max_len 12, and {} 24: combine": make(tmp_path / "long", LENGTHS["web"], max_len=24),
        "rows with no trees, and {} trees: combine": trees,
        "segments aligned to 1, and {} 4: combine": make(tmp_path / "aligned", LENGTHS["web"], align=4),
        "columns doc_ids, .*labels.*, and {} doc_ids, doc_starts, input_ids, position_ids, seq_lengths: combine": make(
            tmp_path / "unlabeled", LENGTHS["web"], labels=False
        ),
    }
    for message, path in others.items():
        with pytest.raises(PackerError, match=f"{web} has {message.format(path)} datasets") as raised:
            packer.load([web, path])
        assert "\n" not in str(raised.value)


def test_columns_of_other_types_and_of_the_name_source_are_refused(tmp_path, bucket, monkeypatch):
    from tests.helpers.writing import write_lines

    folders = []
    for name, weight, source in (("one", 1, "a"), ("two", 1.5, "b")):
        lines = write_lines(tmp_path / f"{name}.jsonl", [{"input_ids": [1, 2], "weight": weight, "source": source}])
        folders.append(tmp_path / name)
        packer.pack(lines, folders[-1], max_len=8, keep=["weight"])
        packer.pack(lines, tmp_path / f"{name}-source", max_len=8, keep=["source"])
        for file in folders[-1].iterdir():
            (bucket / name / file.name).upload(file)
    monkeypatch.setenv("PACKER_SHARD_CACHE", str(tmp_path / "cache"))
    for pair in (folders, [folders[0], str(bucket / "two")], [str(bucket / "one"), str(bucket / "two")]):
        with pytest.raises(
            PackerError, match=r"columns of the types .*weight list<.*int64>, and .*two .*double>: combine"
        ):
            packer.load(pair)
    assert not list((tmp_path / "cache").glob("*/*.arrow")), "no shard was fetched for it"
    shard = bucket / "two" / packer.load(folders[1]).manifest.shards[0].file
    shard.write_bytes(shard.read_bytes().replace(b"weight", b"\xffeight"))
    with pytest.raises(PackerError, match=f"{shard} cannot be read as an Arrow stream"):
        packer.load([folders[0], str(bucket / "two")])
    with pytest.raises(PackerError, match="one-source has a column source, where rows have the number of"):
        packer.load([tmp_path / "one-source", tmp_path / "two-source"])


def test_texts_of_other_tokenizers_are_refused(tmp_path, tokenizer):
    from tests.helpers.chat_templates import save_tokenizer
    from tests.helpers.writing import write_lines

    adding = save_tokenizer(tmp_path / "adding", adds_bos=True)
    lines = write_lines(tmp_path / "texts.jsonl", [{"text": "some words"}, {"text": "others"}])
    for name, path in (("one", tokenizer), ("two", adding), ("same", tokenizer)):
        packer.pack(lines, tmp_path / name, max_len=64, tokenizer=path)
    assert len(packer.load([tmp_path / "one", tmp_path / "same"])) == 2
    with pytest.raises(PackerError, match=r"one has a tokenizer with hash \w{32}, and .*two \w{32}: combine datasets"):
        packer.load([tmp_path / "one", tmp_path / "two"])


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ((0, 1), {}, "the weight of .*web.* is 0: choose a number above 0, or leave it out"),
        ((-0.5, 1), {}, "is -0.5: choose"),
        ((float("nan"), 1), {}, "is nan: choose"),
        ((1e-9, 1), {}, "an epoch has 9 rows, and none of .*web.*: choose more rows, a larger weight"),
        ((1, 1), {"rows": 0}, "rows is 0: an epoch has a whole number of rows, from 1 to 2\\^40"),
        ((1, 1), {"rows": 2.5}, "rows is 2.5: an epoch has a whole number"),
        ((1, 1), {"rows": 2**63}, "rows is 9223372036854775808: an epoch has a whole number of rows, from 1 to"),
        ((1, 1), {"tokens": 10**40}, r"tokens is 1000+: an epoch of so many has \d+ rows, and needs from 1 to 2\^40"),
        ((1, 1), {"tokens": 1}, r"tokens is 1: an epoch of so many has 0 rows, and needs from 1"),
        ((1, 1), {"rows": 5, "tokens": 5}, "rows is 5, and tokens is 5: an epoch has the size of one of the two"),
        ((1, 1), {"tokens": "many"}, "tokens is 'many': choose a number of tokens, as in 10000000000 or 10B"),
        ((1, 1), {"seed": -1}, "seed is -1: it must be"),
        ((1, 1), {"source": ["a"]}, "source has to be a list with an entry for each of the 2 datasets, or None"),
    ],
)
def test_what_makes_no_combination_is_refused(paths, weights, options, message):
    with pytest.raises(PackerError, match=message):
        packer.load({paths["web"]: weights[0], paths["code"]: weights[1]}, **options)
    with pytest.raises(PackerError, match="there is no path: name at least one packed dataset"):
        packer.load([])


def test_what_only_one_dataset_has_is_looked_for_there(paths):
    dataset = packer.load(list(paths.values()))
    with pytest.raises(PackerError, match="document numbers belong to one dataset: ask that one"):
        dataset.find(3)
    assert dataset.datasets[1].manifest.totals.documents_packed == 11
    with pytest.raises(PackerError, match=r"rows are numbered up to 2\^63: choose a smaller epoch"):
        list(sampler_at(2**62, dataset, global_batch=1))


def test_stats_shows_the_shares_of_packed_datasets(paths):
    from tests.helpers.commands import refused, succeeded

    web, code = paths["web"], paths["code"]
    weighted = f"{web}:0.8", f"{code}:0.2"
    assert succeeded("stats", *weighted) == repr(packer.load({web: 0.8, code: 0.2})) + "\n"
    assert succeeded("stats", web, code) == repr(packer.load([web, code])) + "\n"
    found = json.loads(succeeded("stats", *weighted, "--json"))
    assert (found["rows"], [one["rows"] for one in found["datasets"]]) == (45, [36, 9])
    assert [one["path"] for one in found["datasets"]] == [str(web), str(code)]
    assert "weights are for packed datasets, each of which has one" in refused("stats", f"{web}:0.8", code)
    assert "a report shows one dataset" in refused("stats", *weighted, "--report", "page.html")


# ---- a mixture that changes ----


@settings(max_examples=12)
@given(st.data())
def test_after_a_change_each_dataset_continues_where_it_stopped(data):
    """Four mixtures of three datasets, which come and go, on other ranks each time; a run is resumed in between."""
    shards = st.lists(st.integers(1, 6), min_size=1, max_size=4)
    everything = [Stored(number, data.draw(shards)) for number in range(3)]
    times, state = Counter(), None
    for _ in range(4):
        chosen = data.draw(st.lists(st.sampled_from(everything), min_size=1, max_size=3, unique_by=id))
        counts = [data.draw(st.integers(1, 2 * len(one) + 3)) for one in chosen]
        seed, layout = data.draw(st.sampled_from([None, 0, 5])), data.draw(layouts())
        dataset = CombinedDataset(chosen, counts, seed, {} if state is None else state["used"])
        dataset = pickle.loads(pickle.dumps(dataset))
        for epoch in range(data.draw(st.integers(1, 2))):
            ranks = samplers(dataset, layout, epoch=epoch)
            seen = [origin for rank in ranks for numbers in rank for origin in origins(dataset, numbers)]
            assert Counter(number for number, _ in seen) == dict(enumerate(counts))
            ranges = dataset.shard_ranges(epoch).tolist()
            assert sum(last - first for _, first, last in ranges) == len(dataset)
            times.update((chosen[number].fingerprint, row) for number, row in seen)
            assert max(Counter(seen).values()) <= dataset.most_repeats
            for one in everything:  # no row comes again before all rows of its dataset have come
                of_rows = [times[one.fingerprint, row] for row in range(len(one))]
                assert max(of_rows) - min(of_rows) <= 1
        state = json.loads(json.dumps(ranks[-1].state_dict()))


def test_a_run_goes_on_with_another_mixture_and_resumes_after_the_change(paths):
    web, code, maths = (paths[name] for name in ("web", "code", "maths"))
    first = packer.load({web: 0.8, code: 0.2}, rows=20)
    sampler = packer.BatchSampler(first, global_batch=4)
    seen = Counter((int(row["source"]), row["doc_ids"].tobytes()) for batch in sampler for row in first[batch])
    state = json.loads(json.dumps(sampler.state_dict()))
    second = packer.load({maths: 0.1, web: 0.9}, rows=30, after=state)
    again = packer.BatchSampler(second, global_batch=5)
    batches = list(again)
    rows = [row for batch in batches for row in second[batch]]
    later = Counter(row["doc_ids"].tobytes() for row in rows if row["source"] == 1)
    assert sum(later.values()) == 27
    assert not later.keys() & {row for source, row in seen if source == 0}
    resumed = packer.BatchSampler(packer.load({maths: 0.1, web: 0.9}, rows=30, after=state), global_batch=5)
    resumed.load_state_dict(again.state_dict(2))
    assert list(resumed) == batches[2:]
    unchanged = packer.BatchSampler(packer.load({maths: 0.1, web: 0.9}, rows=30), global_batch=5)
    with pytest.raises(PackerError, match="the sampler's state has dataset"):
        unchanged.load_state_dict(again.state_dict(2))
    alone = packer.load(web, after=state, rows=29)
    assert not {row["doc_ids"].tobytes() for row in alone} & {row for source, row in seen if source == 0}


def test_a_state_in_mid_epoch_damaged_or_of_other_data_cannot_begin_a_mixture(paths, tmp_path):
    dataset = packer.load({paths["web"]: 0.8, paths["code"]: 0.2})
    sampler = packer.BatchSampler(dataset, global_batch=4)
    with pytest.raises(
        PackerError, match="in mid-epoch, or has a dataset twice: change mixtures at the end of an epoch"
    ):
        packer.load(paths["web"], after=sampler.state_dict(1))
    twice = packer.BatchSampler(packer.load([paths["web"], paths["web"]]), global_batch=4)
    with pytest.raises(PackerError, match="has a dataset twice"):
        packer.load(paths["web"], after=twice.state_dict())
    for used in (5, {"a": 5}, {"a": [1, 2]}):
        with pytest.raises(PackerError, match="the rows used in the sampler's state are damaged"):
            packer.load(paths["web"], after={**sampler.state_dict(0), "used": used})
    packed = make(tmp_path / "again", [3, 4, 5])
    state = packer.BatchSampler(packer.load(packed), global_batch=1).state_dict()
    packer.pack(tmp_path / "again" / "source.arrow", packed, max_len=MAX_LEN, seed=1, max_segments=1, overwrite=True)
    with pytest.raises(PackerError, match="packed has other rows than in the earlier mixture: it was packed again"):
        packer.load([packed], after=state)
