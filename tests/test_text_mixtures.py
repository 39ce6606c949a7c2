"""Mixtures with text: rows equal those of sources tokenized separately; verify, resume and errors."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import packer
from packer.cli import cli
from packer.cli.run_summary import manifest_summary
from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.job import Job
from packer.pipeline.tokenizing import tokenize
from tests.chat_templates import EXACT, save_tokenizer
from tests.test_from_text import chats, pack, pairs, shards, texts
from tests.test_from_text import small as small  # fixtures
from tests.test_from_text import tokenizer as tokenizer
from tests.test_kept import write
from tests.writing import write_lines

pytest.importorskip("transformers")

CHATML = EXACT["chatml"]
WEIGHTS = (0.5, 0.3, 0.2)


@pytest.fixture
def sources(tmp_path):
    """Paths of chats, of texts, and of prompts with completions."""
    chat = write_lines(tmp_path / "chats.jsonl", chats())
    pq.write_table(pa.Table.from_pylist(texts()), tmp_path / "web.parquet")
    return [chat, tmp_path / "web.parquet", write_lines(tmp_path / "pairs.jsonl", pairs())]


def weighed(sources):
    return list(zip(sources, WEIGHTS, strict=True))


def tokenized(source, tokenizer, **options):
    out = source.with_name(f"{source.stem}-tokenized")
    text = PackOptions(max_len=1, tokenizer=tokenizer, **options)
    return tokenize(source, options=text, job=Job(output=out, sync=False)).output


# ---- rows ----


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize(
    "options",
    [
        {"mix_tokens": 9000, "seed": 4},
        {"mix_unit": "epochs", "untrained": "drop", "max_len": 16},
        {"algorithm": "wrapped"},
        {"long": "truncate", "align": 4},
    ],
    ids=str,
)
def test_rows_equal_those_of_sources_tokenized_separately(tmp_path, tokenizer, sources, small, options):
    direct = pack(weighed(sources), tmp_path / "direct", tokenizer, shard_size="8KB", workers=2, **options)
    kept = [tokenized(source, tokenizer) for source in sources]
    once = pack(weighed(kept), tmp_path / "once", None, shard_size="8KB", **options)
    assert len(direct.shards) > 1
    assert shards(direct) == shards(once)
    assert direct.totals.documents_straddling >= 0
    mixed = pack(weighed([sources[0], kept[1], sources[2]]), tmp_path / "mixed", tokenizer, shard_size="8KB", **options)
    assert shards(mixed) == shards(direct)
    assert [part.text is not None for part in mixed.source.mixture] == [True, False, True]
    assert list(packer.verify(tmp_path / "direct", sources, tokenizer=tokenizer)) == []
    assert list(packer.verify(tmp_path / "once", kept)) == []
    assert not (tmp_path / "direct" / ".packer").exists()


def test_loss_covers_all_of_a_text_mixed_with_chats(tmp_path, tokenizer, sources):
    pack(weighed(sources), tmp_path / "out", tokenizer)
    trained, tokens = [0, 0, 0], [0, 0, 0]
    for row in packer.load(tmp_path / "out"):
        place = 0
        for length, source in zip(row["seq_lengths"], row["source_ids"], strict=True):
            if source >= 0:
                trained[source] += int((row["labels"][place : place + length] >= 0).sum())
                tokens[source] += int(length) - 1  # except the first of each segment
            place += length
    assert trained[1] == tokens[1]
    assert 0 < trained[0] < tokens[0]
    assert 0 < trained[2] < tokens[2]


def test_loss_covers_all_of_a_token_source_without_labels(tmp_path):
    (tmp_path / "a").mkdir()
    plain = write(tmp_path / "a", "jsonl", {"input_ids": [[1, 2, 3], [4, 5, 6, 7]]})
    masked = write(tmp_path, "parquet", {"input_ids": [[8, 9, 8]], "labels": [[-100, -100, 8]]})
    for order in ([plain, masked], [masked, plain]):
        out = tmp_path / order[0].suffix
        manifest = packer.pack([(source, 1) for source in order], out, max_len=16, mix_unit="epochs")
        assert manifest.totals.tokens_trained == 2 + 3 + 1
        assert manifest.source.labels
        assert list(packer.verify(out, order)) == []
        summary = [*manifest_summary(manifest, output="out", took="1 s")]
        assert "All tokens of source.jsonl are trained" in summary


def test_text_options_apply_to_the_sources_that_they_fit(tmp_path, tokenizer, sources):
    (tmp_path / "b").mkdir()
    body = write_lines(tmp_path / "b" / "body.jsonl", [{"body": each["text"]} for each in texts()])
    mixed = weighed([sources[0], body, sources[2]])
    manifest = pack(mixed, tmp_path / "out", tokenizer, text_column="body", train_on="completion")
    found = [part.text for part in manifest.source.mixture]
    assert [text.columns[0] for text in found] == ["messages", "body", "prompt"]
    assert [text.train_on for text in found] == ["assistant", "all", "completion"]
    named = weighed([sources[0], sources[1], sources[2]])
    plain = pack(named, tmp_path / "plain", tokenizer)
    assert shards(plain) == shards(manifest)
    everything = pack(named, tmp_path / "all", tokenizer, train_on="all")
    assert not everything.source.labels
    for options, words in (
        ({"text_column": "content"}, "text_column is 'content', which none of the 3 sources has"),
        ({"keep_tokens": ["a"]}, "text has no values per token"),
    ):
        with pytest.raises(PackerError, match=words):
            pack(named, tmp_path / "none", tokenizer, **options)
    with pytest.raises(PackerError, match="train_on completion fits none of the 2 sources"):
        pack(named[:2], tmp_path / "none", tokenizer, train_on="completion")
    kept = [tokenized(source, tokenizer) for source in sources]
    with pytest.raises(PackerError, match=r"all 3 sources have the column 'input_ids'.*leave tokenizer out"):
        pack(weighed(kept), tmp_path / "none", tokenizer)


# ---- verify and resume ----


def test_verify_names_the_source_with_changed_text(tmp_path, tokenizer, sources):
    pack(weighed(sources), tmp_path / "out", tokenizer)
    records = chats()
    changed = json.loads(json.dumps(records))
    content = changed[5]["messages"][1]["content"]
    changed[5]["messages"][1]["content"] = " ".join(reversed(content.split()))
    assert changed != records
    write_lines(sources[0], changed)
    (fault,) = packer.verify(tmp_path / "out", sources, tokenizer=tokenizer)
    assert fault.startswith(("document 5 (chats.jsonl line 6) of chats.jsonl", "the source chats.jsonl differs"))
    write_lines(sources[0], records)
    other = save_tokenizer(tmp_path / "other", template=CHATML + " ")
    (fault,) = packer.verify(tmp_path / "out", sources, tokenizer=other)
    assert fault.startswith("the source chats.jsonl: it was packed with another chat_template")
    sources[1] = tokenized(sources[1], tokenizer)
    (fault,) = packer.verify(tmp_path / "out", sources, tokenizer=tokenizer)
    assert fault == "the source web.parquet: it was packed from text, here it holds tokens"


def test_verify_ignores_library_versions(tmp_path, tokenizer, sources, monkeypatch):
    import transformers

    with monkeypatch.context() as patch:
        patch.setattr(transformers, "__version__", "0.0.1")
        pack(weighed(sources), tmp_path / "out", tokenizer)
    assert list(packer.verify(tmp_path / "out", sources, tokenizer=tokenizer)) == []


# ---- errors ----


@pytest.mark.parametrize("workers", [1, 2])
def test_an_invalid_record_is_named_in_its_own_source(tmp_path, tokenizer, sources, workers):
    wrong = write_lines(tmp_path / "wrong.jsonl", [*texts()[:7], {"text": None}])
    with pytest.raises(PackerError, match=r"^wrong.jsonl: document 7 \(wrong.jsonl line 8\): 'text' is null"):
        pack([(sources[0], 1), (wrong, 1)], tmp_path / "out", tokenizer, workers=workers)


# ---- command line ----


def test_the_command_packs_and_verifies_a_mixture_of_text(tmp_path, tokenizer, sources):
    given = [word for source, weight in weighed(sources) for word in ("--source", f"{source}:{weight}")]
    out = str(tmp_path / "out")
    done = CliRunner().invoke(cli, ["pack", *given, "--tokenizer", tokenizer, "--max-len", "64", "-o", out])
    assert done.exit_code == 0, done.output
    assert "pairs.jsonl tokenized with ours, training on completion of prompt+completion" in done.output
    same = pack(weighed(sources), tmp_path / "python", tokenizer, algorithm="auto", max_len=64)
    assert (tmp_path / "out/manifest.json").read_bytes() == same.to_bytes()
    assert str(tmp_path) not in same.to_bytes().decode()
    named = [word for source in sources for word in ("--source", str(source))]
    checked = CliRunner().invoke(cli, ["verify", out, *named, "--tokenizer", tokenizer])
    assert checked.exit_code == 0, checked.output
    missing = CliRunner().invoke(cli, ["verify", out, *named])
    assert (missing.exit_code, "give its path with --tokenizer" in missing.output) == (1, True)
