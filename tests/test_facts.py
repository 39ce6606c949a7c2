"""Facts are declared once: how they are written, read and checked follows from their types."""

import ast
import json
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import facts
from packer.facts import Account, Facts, MixturePart, SourceIdentity, TextIdentity, Totals, kinds_of
from packer.facts.kinds import Count, Ratio, check_fields

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*/manifest.json"))
COUNTS = st.integers(0, 2**40)


@dataclass(frozen=True, kw_only=True, slots=True)
class File(Facts):
    name: str
    rows: Count
    share: Ratio | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder(Facts):
    files: tuple[File, ...] = ()
    is_open: bool
    first: File | None = None


FILES = st.builds(File, name=st.text(), rows=COUNTS, share=st.none() | st.floats(0, 1))
FOLDERS = st.builds(Folder, files=st.lists(FILES).map(tuple), is_open=st.booleans(), first=st.none() | FILES)


@given(FOLDERS)
def test_facts_round_trip(folder):
    content = json.loads(json.dumps(folder.to_dict()))
    assert Folder.from_dict(content) == folder
    assert Folder.from_dict(content | {"of a later version": [1]}) == folder


def test_defaults_are_left_out_and_keys_are_in_field_order():
    assert Folder(is_open=True).to_dict() == {"is_open": True}
    folder = Folder(is_open=False, files=(File(name="a", rows=1, share=0.0),), first=File(name="b", rows=2))
    assert json.dumps(folder.to_dict()) == (
        '{"files": [{"name": "a", "rows": 1, "share": 0.0}], "is_open": false, "first": {"name": "b", "rows": 2}}'
    )


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ({"rows": 1}, KeyError, "name"),
        ({"name": "a", "rows": -1}, TypeError, "rows is -1, not a whole number from 0 to 9223372036854775807"),
        ({"name": 3, "rows": 1}, TypeError, "name is 3, not a string"),
        ({"name": "a", "rows": 1, "share": None}, TypeError, "share is null, not a number from 0"),
    ],
)
def test_fields_of_another_kind_are_rejected(content, error, words):
    check_fields({"name": "a", "rows": 1, "share": 0.5}, kinds_of(File))
    with pytest.raises(error, match=words):
        check_fields(content, kinds_of(File))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_manifests_round_trip(path):
    content = json.loads(path.read_bytes())
    parts = [(content["totals"], Totals)]
    for generation in content.get("generations", [content]):  # of a dataset that has grown
        parts += [(generation["source"], SourceIdentity), (generation["totals"], Totals)]
    for part, kind in parts:
        check_fields(part, kinds_of(kind))
        assert json.dumps(kind.from_dict(part).to_dict()) == json.dumps(part)


ACCOUNTS = st.builds(
    Account,
    documents_dropped=st.fixed_dictionaries({"empty": COUNTS, "too_long": COUNTS}),
    tokens_dropped=st.fixed_dictionaries({"too_long": COUNTS}),
    **{name: COUNTS for name in kinds_of(Account) if not name.endswith("dropped")},
)


@given(ACCOUNTS, ACCOUNTS)
def test_accounts_add_up(one, other):
    both = one + other
    assert both.documents_packed == one.documents_packed + other.documents_packed
    assert both.tokens_lost == one.tokens_lost + other.tokens_lost
    assert both.documents_dropped["empty"] == one.documents_dropped["empty"] + other.documents_dropped["empty"]
    assert both == other + one


def test_without_versions_leaves_library_versions_out():
    text = TextIdentity(columns=("text",), train_on="all", eos=True, tokenizer="0", tokenizers="1", transformers="2")
    assert text.without_versions() == {"columns": ["text"], "train_on": "all", "eos": True, "tokenizer": "0"}


def test_every_fact_has_a_sentence_of_its_own():
    for name in facts.__all__:
        kind = getattr(facts, name)
        if not (isinstance(kind, type) and issubclass(kind, Facts)) or kind is Facts:
            continue
        path = Path(__file__).parent.parent / Path(*kind.__module__.split(".")).with_suffix(".py")
        (found,) = (
            node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name
        )
        told = {
            before.target.id
            for before, after in zip(found.body, found.body[1:], strict=False)
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr)
        }
        own = set(kind.__annotations__)
        assert own <= told, f"{name}: {own - told}"
        assert own <= {field.name for field in fields(kind)}


def test_a_part_of_a_mixture_has_the_facts_of_its_source():
    shared = set(kinds_of(SourceIdentity)) - {"files", "mixture?"}
    assert shared <= set(kinds_of(MixturePart))
    assert all(kinds_of(SourceIdentity)[name] == kinds_of(MixturePart)[name] for name in shared)
