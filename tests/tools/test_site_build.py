"""The site as scripts/docs site builds it: whole, searched as files in a browser, and nothing comes from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from build_site import HOME, ROOT, TREE, build_site, list_pages, read_tree, run_sphinx
from playwright.sync_api import expect
from support.chromium import Go

pytestmark = [pytest.mark.site, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a word of warning, and without a fault."""
    out = tmp_path_factory.mktemp("built") / "site"
    assert build_site(out) == []
    return out


def read_index(site: Path) -> dict[str, Any]:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    return index


def test_every_page_is_built_and_in_the_search_index(site: Path) -> None:
    pages = {page.removesuffix(".md") for page in list_pages()}

    assert [page for page in pages if not (site / f"{page}.html").is_file()] == []
    assert pages | {"config.yaml"} <= set(read_index(site)["docnames"])


def test_every_page_is_in_the_navigation_of_every_page(site: Path) -> None:
    tree = read_tree((ROOT / TREE).read_text(encoding="utf-8"))
    paths = [entry.path.removesuffix(".md") for section in tree for entry in section.entries]
    for page, up in ((HOME, ""), ("docs/data.md", "../"), ("benchmarks/results/soak.md", "../../")):
        text = (site / page).with_suffix(".html").read_text(encoding="utf-8")
        (shown,) = re.findall(r'<nav class="bd-docs-nav.*?</nav>', text, re.DOTALL)
        places = {
            ((site / page).parent / target).resolve().relative_to(site.resolve()).as_posix()
            for target in re.findall(r'href="([^"#]+)"', shown)
        }
        assert {f"{path}.html" for path in paths} - places <= {page.replace(".md", ".html")}, up
        assert [section.title for section in tree if f">{section.title}<" not in shown] == []


def test_it_opens_as_files_and_finds_what_is_looked_for(site: Path, go: Go) -> None:
    visit = go(f"{site.as_uri()}/index.html", offline=True)
    visit.page.wait_for_url("**/README.html")

    for word, title, place in [
        ("receipt", "Architecture", "ARCHITECTURE.html"),
        ("max_fraction", "First-day mistakes", "docs/mistakes.html"),
        ("ConnectError", "The Python package", "docs/python.html"),
        ("quarantine", "Decisions", "docs/decisions.html"),
    ]:
        visit.page.goto(f"{site.as_uri()}/search.html?q={word}")
        found = visit.page.locator("#search-results li a", has_text=re.compile(f"^{title}"))
        expect(found.first).to_have_attribute("href", re.compile(re.escape(place)))
    found.first.click()
    expect(visit.page.locator("h1")).to_contain_text("Decisions")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("[a](b.md)\n", "'b.md'"),
        ("[a](#b)\n", "'b'"),
        ("```python\nx = §\n```\n", 'as "python" resulted in an error'),
        ("![a](b.png)\n", "image file not readable"),
    ],
)
def test_what_sphinx_warns_of_is_a_fault(page: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / HOME).write_text(f"# A\n\n{page}", encoding="utf-8")
    faults = run_sphinx(tmp_path / "pages", tmp_path / "site", [])

    assert said in "\n".join(faults)
    assert "README.md" in "\n".join(faults)
