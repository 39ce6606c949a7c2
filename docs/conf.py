"""Configuration of Sphinx: `python -m sphinx -W -n --keep-going docs docs/_build`."""

import os
import sys
from pathlib import Path

from docutils.nodes import Element
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

sys.path.insert(0, str(Path(__file__).parent.parent))

from packer import __version__  # found on the path above

project = "packer"
author = "the authors of packer"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_static"]
html_theme = "furo"
html_title = f"packer {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_show_copyright = False
smartquotes = False  # they would change code
highlight_language = "text"

# Headings are anchors, as they are on GitHub. A link to a file outside docs/ becomes a download of that file.
myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]

# Docstrings: Google style, with single backticks for code.
default_role = "literal"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_preprocess_types = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch", "transformers"]
python_use_unqualified_type_names = True

# Types of other packages: the build is offline, so there is no inventory to look them up in.
INTERNAL = (  # `format.md` describes the fields of the first three; PackArguments has those of PackOptions
    "packer.json_records.SourceIdentity",
    "packer.json_records.Totals",
    "packer.json_records.ShardEntry",
    "packer.shards.manifest.ShardTable",  # a sequence of entries
    "PackArguments",
    "StatsArguments",
    "packer.stores.remote_path.RemotePath",  # users write addresses
    "AnyPath",  # a path or such an address
    "packer.json_records.PlanTotals",
    "packer.report.measures.Waiting",
    "OneSource",  # whatever `packer.pack` takes as a source
    "PackedPaths",  # whatever `packer.load` takes as a path
    "LossWeights",  # "token", "document" or "weight"
    "SourceLike",  # whatever `packer.pack` takes as a source
)
nitpick_ignore = [
    ("py:class", name)
    for name in (
        *INTERNAL,
        "Path",
        "Dataset",
        "DatasetDict",
        "transformers.PreTrainedModel",
        "ProcessGroup",
        "SFTConfig",
        "Tensor",
        "TrainerCallback",
        "TrainingArguments",
        "torch.Tensor",
        "NDArray",
        "optional",
    )
]
nitpick_ignore_regex = [(r"py:.*", r"(numpy|np|collections|pathlib)\..*"), (r"py:obj", r"typing\.Annotated.*")]


class FilesOutsideDocs(SphinxTransform):
    """Make links to Markdown files outside docs/ downloads, which MyST does for files of any other type by itself."""

    default_priority = 500

    def apply(self, **_: object) -> None:
        """See `docutils.transforms.Transform.apply`."""
        for link in list(self.document.findall(addnodes.pending_xref)):
            if link.get("refdomain") != "doc" or link["reftarget"] in self.env.found_docs:
                continue
            file = Path(self.env.srcdir, f"{link['reftarget']}.md")
            if file.is_file():
                target = os.path.relpath(file, Path(self.env.doc2path(self.env.docname)).parent)
                download = addnodes.download_reference(reftarget=target, refdoc=self.env.docname, refexplicit=True)
                download += link.children
                link.replace_self(download)


def mark_literal_blocks(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Make indented blocks of a docstring, which are code or tables, literal blocks of reStructuredText."""
    for number in range(len(lines) - 1, 1, -1):
        before = next((line for line in reversed(lines[:number]) if line), " ")
        if lines[number].startswith("    ") and not lines[number - 1] and not before.startswith(" "):
            lines[number:number] = ["::", ""]


def find_by_last_name(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: Element) -> Element | None:
    """Resolve a type by its last name, as it stands in an annotation: `Progress` is `packer.progress.Progress`."""
    domain = env.domains.python_domain
    found = [name for name in domain.objects if name.rpartition(".")[2] == node["reftarget"]]
    if node["refdomain"] != "py" or len(found) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], found[0], node, text)


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.add_transform(FilesOutsideDocs)
    app.connect("autodoc-process-docstring", mark_literal_blocks, priority=400)  # before napoleon
    app.connect("missing-reference", find_by_last_name)
