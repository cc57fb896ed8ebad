"""Sphinx configuration of the documentation site, which `make docs` builds."""

import hloipu

project = "hloipu"
author = "the hloipu authors"
release = hloipu.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"hloipu {release}"
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]
myst_all_links_external = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
suppress_warnings = ["myst.xref_missing", "docutils", "misc.highlighting_failure"]
"""Links to files of the tree, docstrings in Markdown, code with an ellipsis."""
