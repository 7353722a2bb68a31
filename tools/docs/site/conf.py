"""Sphinx's settings for the site; tools/docs/build_site.py lays the pages out and calls it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project: Final = "streamd"
copyright: Final = ""  # noqa: A001 - Sphinx's name
html_show_copyright: Final = False
extensions: Final = ["myst_parser"]
root_doc: Final = "README"
source_suffix: Final = {".md": "markdown"}
nitpicky: Final = True

# The pages are what GitHub shows, and nothing of MyST's own besides: its other marks would change what stands in them.
myst_heading_anchors: Final = 6
myst_links_external_new_tab: Final = False
myst_disable_syntax: Final = ["dollarmath", "myst_block_break", "myst_line_comment", "myst_role", "myst_target"]

html_theme: Final = "pydata_sphinx_theme"
html_title: Final = "streamd"
html_static_path: Final = [os.path.join(os.path.dirname(__file__), "style.css")]  # noqa: PTH118, PTH120 - two names
html_context: Final = {"default_mode": "auto"}
html_css_files: Final = ["style.css"]
templates_path: Final = [os.path.dirname(__file__)]  # noqa: PTH120 - Sphinx wants a string
html_sidebars: Final = {"**": ["navigation.html"]}
html_copy_source: Final = False
html_show_sourcelink: Final = False
# The lines below a hit are fetched from its page, which a browser refuses for files; the index itself is a script.
html_show_search_summary: Final = False
html_theme_options: Final = {
    "navbar_center": [],
    "navbar_end": ["theme-switcher"],
    "footer_end": [],
    "footer_start": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "navigation_depth": 2,
}


def setup(app: Sphinx) -> None:
    """Gives the first page the tree of pages, which docs/README.md has as tables."""
    sections: list[tuple[str, list[str]]] = json.loads(os.environ["STREAMD_SITE_TREE"])

    def add_trees(_app: Sphinx, page: str, text: list[Any]) -> None:
        if page == root_doc:
            text[0] += "".join(
                f"\n\n```{{toctree}}\n:hidden:\n{title}\n" + "\n".join(f"/{each}" for each in pages) + "\n```\n"
                for title, pages in sections
            )

    app.connect("source-read", add_trees)
