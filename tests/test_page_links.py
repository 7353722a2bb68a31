"""Links in the pages lead to files and headings that exist, and so do the pages that messages name."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
FIRST_PAGE_LINES: Final = 100
FENCE: Final = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE: Final = re.compile(r"(`+)(?:(?!\1).)+\1", re.DOTALL)
LINK: Final = re.compile(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)|\b(?:src|srcset|href)=\"([^\"]+)\"")
FOREIGN: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# As messages, comments and help texts name a page, from the root of the repository.
NAMING: Final = ("streamd/", "scripts/", "systemd/", "monitoring/", "tools/", "config.yaml", "pyproject.toml")
MENTION: Final = re.compile(r"(?<![\w/.-])(?:docs|benchmarks|examples|monitoring)/[\w/.-]*\.md(?:#[\w-]+)?")


@cache
def list_files() -> tuple[Path, ...]:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in sorted(listed.split("\0")) if name and (path := ROOT / name).is_file())


def list_pages() -> list[Path]:
    return [path for path in list_files() if path.suffix == ".md"]


@cache
def find_anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#{1,6} +(.+?)[ #]*$", text, re.MULTILINE):
        shown = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        kept = "".join(letter for letter in shown if letter.isalnum() or letter in " -_").strip().replace(" ", "-")
        earlier = sum(bool(re.fullmatch(rf"{re.escape(kept)}(-\d+)?", each)) for each in found)
        found.append(f"{kept}-{earlier}" if earlier else kept)
    return frozenset(found) | frozenset(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def find_links(text: str) -> Iterator[str]:
    """The targets of links and pictures to places in the repository; not those that are code."""
    for groups in LINK.findall(CODE.sub("", FENCE.sub("", text))):
        target = next(filter(None, groups))
        if not FOREIGN.match(target):
            yield target


def find_base(page: Path) -> Path:
    """The folder from which links are read: notes of examples/migration become sections of docs/migration.md."""
    return ROOT / "docs" if page.match("examples/migration/*/notes.md") else page.parent


def is_broken(target: str, page: Path) -> bool:
    path, _, anchor = target.partition("#")
    place = find_base(page) / unquote(path) if path else page
    if not place.exists():
        return True
    return bool(anchor) and (place.suffix != ".md" or unquote(anchor) not in find_anchors(place))


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    assert [target for target in find_links(page.read_text(encoding="utf-8")) if is_broken(target, page)] == []


def test_every_page_that_code_names_exists_with_its_heading() -> None:
    named = {
        f"{path.relative_to(ROOT)}: {mention}"
        for path in list_files()
        if path.relative_to(ROOT).as_posix().startswith(NAMING) and path.suffix != ".md"
        for mention in MENTION.findall(path.read_text(encoding="utf-8", errors="replace"))
        if is_broken(mention, ROOT / "page.md")
    }

    assert named == set()


def test_every_page_of_docs_is_in_the_list_of_pages() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in find_links(index.read_text("utf-8"))}
    pages = {page for page in list_pages() if page.parent in {index.parent, index.parent / "evidence"}}

    assert pages - linked == {index, ROOT / "docs" / "package.md"}  # an index of packages shows the latter


def test_the_first_page_has_at_most_100_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= FIRST_PAGE_LINES


@pytest.mark.parametrize(
    ("target", "broken"),
    [
        ("other.md", False), ("other.md#a-bb-c", False), ("other.md#a-bb-c-1", False), ("#here", False),
        ("folder", False), ("gone.md", True), ("other.md#a-bb-c-2", True), ("#there", True),
        ("other.md#no-heading", True), ("folder#x", True),
    ],
)  # fmt: skip
def test_a_link_without_a_place_is_broken(target: str, broken: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.md").write_text("# A `bb`: c\n\n```sh\n# no heading\n```\n\n## A [bb](x.md), c\n")
    page = tmp_path / "page.md"
    page.write_text("# Here\n")
    assert is_broken(target, page) is broken


def test_links_are_read_from_text_and_pictures_and_not_from_code() -> None:
    text = 'a [b](c.md#d) ![e](f.png)\n<img src="g.png">\n`[h](i.md)`\n\n```python\nx[0](j)\n```\n[k](https://l)'
    assert list(find_links(text)) == ["c.md#d", "f.png", "g.png"]
