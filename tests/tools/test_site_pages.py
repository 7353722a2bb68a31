"""What scripts/docs site makes the site of: the tree of pages, the links in them, and the check of what was built."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from build_site import HOME, ROOT, TREE, find_faults, is_replaceable, list_pages, read_tree, rewrite_text, write_texts


def test_each_page_is_in_the_tree_once() -> None:
    named = Counter(
        entry.path for section in read_tree((ROOT / TREE).read_text(encoding="utf-8")) for entry in section.entries
    )

    assert {path for path in named if path.endswith(".md")} == set(list_pages()) - {HOME, TREE}
    assert [path for path, times in named.items() if times > 1] == []
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_tree_is_by_job_and_each_page_says_what_it_answers() -> None:
    sections = read_tree((ROOT / TREE).read_text(encoding="utf-8"))

    assert [each.title for each in sections] == [
        "Tutorial", "Guides", "Reference", "How it works", "Decisions", "Evidence",
    ]  # fmt: skip
    assert [entry.path for section in sections for entry in section.entries if not entry.answers] == []


def test_a_tree_is_read_from_tables_and_lists() -> None:
    table = "| page | what |\n|---|---|\n| [c](c.md), [d](../D.md) | E? |"
    (section,) = read_tree(f"# A\n\n## B\n\n{table}\n\n- [f](g/f.md), [h](h.md#i): what\n  it is\n- no page")

    assert section.title == "B"
    assert [(entry.path, entry.answers) for entry in section.entries] == [
        ("docs/c.md", "E?"), ("D.md", "E?"), ("docs/g/f.md", "what it is"), ("docs/h.md", "what it is"),
    ]  # fmt: skip


def test_links_are_rewritten_in_text_and_not_in_code() -> None:
    page = 'a [b](c) `[d](e)` ![f](g "h")\n\n```md\n[i](j)\n```\n\n``[k](`l)`` [m](n)\n\n    [o](p)\n'

    assert rewrite_text(page, str.upper) == page.replace("(c)", "(C)").replace("(g ", "(G ").replace(
        "(n)", "(N)"
    ).replace("(p)", "(P)")
    assert rewrite_text(page, str) == page


def test_texts_of_all_pages_lie_beside_the_site(tmp_path: Path) -> None:
    write_texts(tmp_path, read_tree((ROOT / TREE).read_text(encoding="utf-8")))
    short, full = ((tmp_path / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))

    assert short.startswith("# streamd\n\n> Load once, train many. ")
    assert "\n- [First steps](docs/first-steps.html): How do I install it" in short
    heads = [(ROOT / page).read_text(encoding="utf-8").splitlines()[0] for page in list_pages() if page != TREE]
    assert [head for head in heads if f"{head}\n" not in full] == []


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ('<a href="other.html#there">', ""),
        ('<a href="https://elsewhere.org/x">', ""),
        ('<img src="a.png"><a href="#here" id="here">', ""),
        ('<a href="gone.html">', "page.html links to gone.html, which is not there"),
        ('<a href="other.html#gone">', "page.html links to other.html#gone, and that page has no such heading"),
        ('<script src="https://cdn.org/x.js">', "page.html loads https://cdn.org/x.js from another host"),
        ('<link rel="stylesheet" href="//cdn.org/x.css">', "page.html loads //cdn.org/x.css from another host"),
        ('<img srcset="http://cdn.org/x.png 2x">', "page.html loads http://cdn.org/x.png from another host"),
        ('<p style="background: url(http://cdn.org/y)">', "page.html loads http://cdn.org/y from another host"),
        ('<img src="gone.png">', "page.html links to gone.png, which is not there"),
    ],
)
def test_a_link_that_leads_nowhere_and_what_is_loaded_from_elsewhere_are_faults(
    page: str, fault: str, tmp_path: Path
) -> None:
    (tmp_path / "other.html").write_text('<h1 id="there">')
    (tmp_path / "a.png").touch()
    (tmp_path / "page.html").write_text(page)

    assert find_faults(tmp_path) == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("style", "fault"),
    [
        ("a { src: url('data:x') url(b.css?y#z) }", ""),
        ("@import 'https://fonts.org/x.css';", "a.css loads https://fonts.org/x.css from another host"),
        ("a { src: url(gone.woff2) }", "a.css loads gone.woff2, which is not there"),
    ],
)
def test_so_are_those_of_styles(style: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "b.css").touch()
    (tmp_path / "a.css").write_text(style)

    assert find_faults(tmp_path) == ([fault] if fault else [])


def test_a_folder_with_anything_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "site").mkdir()
    assert is_replaceable(tmp_path / "new")
    assert is_replaceable(tmp_path / "mine")

    (tmp_path / "mine" / "notes.txt").touch()
    (tmp_path / "site" / "llms.txt").touch()
    assert not is_replaceable(tmp_path / "mine")
    assert not is_replaceable(tmp_path / "mine" / "notes.txt")
    assert is_replaceable(tmp_path / "site")
