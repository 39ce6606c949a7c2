"""The diagrams of docs/explanation are those that `docs/make_diagrams.py` draws, and they say what they claim."""

from importlib.util import module_from_spec, spec_from_file_location
from xml.etree import ElementTree

import pytest

from tests.helpers.places import ROOT

SCRIPT = spec_from_file_location("make_diagrams", ROOT / "docs" / "make_diagrams.py")
make_diagrams = module_from_spec(SCRIPT)
SCRIPT.loader.exec_module(make_diagrams)

TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.mark.parametrize("name", make_diagrams.DIAGRAMS)
def test_a_diagram_is_current(name):
    drawn = make_diagrams.picture(make_diagrams.DIAGRAMS[name]())
    assert (make_diagrams.PICTURES / f"{name}.svg").read_text() == drawn, "run python docs/make_diagrams.py"
    assert "prefers-color-scheme:dark" in drawn
    assert [text.text for text in ElementTree.fromstring(drawn).iter(TEXT)]


def test_every_diagram_is_on_a_page():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "explanation").glob("*.md"))
    for name in make_diagrams.DIAGRAMS:
        assert f"../pictures/{name}.svg" in pages
