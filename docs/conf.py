"""Configuration of Sphinx: `python -m sphinx -W -n --keep-going docs docs/_build`."""

import os
import sys
from pathlib import Path

from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

sys.path.insert(0, str(Path(__file__).parent.parent))

from packer import __version__  # found on the path above

project = "packer"
author = "the authors of packer"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"packer {release}"
html_copy_source = False
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
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|np|pyarrow|pa|torch|transformers|datasets|collections|pathlib|typing)(\..*)?"),
    (r"py:.*", r"[A-Z]"),
]


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


def setup(app: Sphinx) -> None:
    """Add the transform."""
    app.add_transform(FilesOutsideDocs)
