"""Builds the pages as a site:  scripts/docs site OUT

The pages are laid out in a temporary folder as they lie in the repository, with what they link to: a file that is no
page becomes one that shows it, and a folder becomes a list of its files. docs/README.md has the tree: a heading is a
part of it, and the first column of its tables names the pages. Sphinx then builds them, with warnings as errors. What
it built is checked: every link leads to a file and a heading, and nothing is loaded from another host. Beside the site
lie llms.txt, with a line a page, and llms-full.txt, with all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote

ROOT: Final = Path(__file__).resolve().parents[2]
CONFIGURATION: Final = Path(__file__).resolve().parent / "site"
TREE: Final = "docs/README.md"
HOME: Final = "README.md"
MARK: Final = "llms.txt"  # a folder that has it holds a site, and may be written anew
# Pages of the repository that are none of the site: an index of packages shows the first, others are parts of a page.
NO_PAGES: Final = re.compile(r"docs/package\.md|examples/migration/.*|\.[^/]*/.*")
SHOWN: Final = {
    ".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".service": "ini", ".sh": "bash",
    ".toml": "toml", ".txt": "text", ".csv": "text", ".conf": "text",
}  # fmt: skip
MAX_SHOWN_BYTES: Final = 256 * 1024

_CODE: Final = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`))", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<=\]\()[^)\s]+(?=\)| \")")
_PICTURE: Final = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)" alt="(?P<alt>[^"]*)">\s*</picture>'
)
_FOREIGN: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_ROW: Final = re.compile(r"\| (?P<pages>\[.*?) \| (?P<answers>.*) \|")
_FORWARD: Final = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>streamd</title><meta http-equiv="refresh" content="0; url=README.html">
<a href="README.html">streamd</a></html>
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the tree, by its path in the repository, and what it answers."""

    path: str
    answers: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the tree."""

    title: str
    entries: tuple[Entry, ...]


def list_files() -> list[str]:
    """Returns the files of the repository, as git knows them, by their paths."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def list_pages() -> list[str]:
    """Returns the pages of the site, by their paths in the repository."""
    return [name for name in list_files() if name.endswith(".md") and not NO_PAGES.fullmatch(name)]


def read_tree(text: str) -> list[Section]:
    """Returns the tree in the text of docs/README.md: its headings, with the pages that their tables and lists name."""
    sections = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        entries = [
            Entry(_resolve(TREE, target), row["answers"])
            for line in body.splitlines()
            if (row := _ROW.fullmatch(line))
            for target in _LINK.findall(row["pages"])
        ]
        # What stands in a list below the table: pages with a colon and what they say.
        for item in re.findall(r"^- (\[.*?(?:\n  .*)*)$", body, re.MULTILINE):
            named, _, answers = " ".join(item.split()).partition(": ")
            entries += [Entry(_resolve(TREE, target), answers) for target in _LINK.findall(named)]
        sections.append(Section(title, tuple(entries)))
    return sections


def _resolve(page: str, target: str) -> str:
    """Returns the path in the repository to which a link of a page leads."""
    path = unquote(target.partition("#")[0])
    return os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page  # noqa: PTH118, PTH120 - text


def rewrite_text(text: str, rewrite: Callable[[str], str]) -> str:
    """Returns the text of a page in which `rewrite` has changed the target of each link that is no code."""
    parts = _CODE.split(text)
    # The pattern has two groups: of three parts the first is text, the second code, the third its ticks.
    for place in range(0, len(parts), 3):
        parts[place] = _LINK.sub(lambda link: rewrite(link[0]), parts[place])
    return "".join(part for place, part in enumerate(parts) if place % 3 < 2 and part is not None)  # noqa: PLR2004 - above


class Layout:
    """The pages in a folder for Sphinx, and what they link to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = list_files()
        self.pages = list_pages()
        self._is_laid: set[str] = set()

    def lay_out(self) -> None:
        """Writes all pages."""
        for page in self.pages:
            text = rewrite_text((ROOT / page).read_text(encoding="utf-8"), partial(self._follow, page))
            self._write(page, _PICTURE.sub(partial(self._show_picture, page), text))

    def _follow(self, page: str, target: str) -> str:
        """Lays out what a link leads to, and returns the target that it has in the site."""
        if _FOREIGN.match(target) or target.startswith("#"):
            return target
        path, name = target.partition("#")[0].rstrip("/"), _resolve(page, target)
        if name in self.pages:
            return target
        if (ROOT / name).is_dir():
            self._lay_out_folder(name)
            return f"{path}/files.md"
        if Path(name).suffix in SHOWN:
            self._lay_out_file(name)
            return f"{path}.md"
        self._lay_out_copy(name)
        return target

    def _lay_out_folder(self, name: str) -> None:
        """A page with a list of the files below a folder."""
        if (page := f"{name}/files.md") in self._is_laid:
            return
        self._is_laid.add(page)
        listed = [
            each for each in self._files
            if each.startswith(f"{name}/") and Path(each).suffix in SHOWN
            and (ROOT / each).stat().st_size < MAX_SHOWN_BYTES
        ]  # fmt: skip
        for each in listed:
            self._lay_out_file(each)
        lines = "\n".join(f"- [{inner}]({inner}.md)" for each in listed if (inner := each.removeprefix(f"{name}/")))
        self._write(page, f"---\norphan: true\n---\n# {name}\n\n{lines}\n")

    def _lay_out_file(self, name: str) -> None:
        """A page that shows a file."""
        if name in self._is_laid:
            return
        self._is_laid.add(name)
        text = (ROOT / name).read_text(encoding="utf-8")
        fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall(r"`+", text + "``")))
        code = f"{fence}{SHOWN[Path(name).suffix]}\n{text.rstrip()}\n{fence}\n"
        self._write(f"{name}.md", f"---\norphan: true\n---\n# {name}\n\n{code}")

    def _show_picture(self, page: str, found: re.Match[str]) -> str:
        """A picture for light pages and one for dark ones, as the theme tells them apart."""
        for which in ("light", "dark"):
            self._lay_out_copy(_resolve(page, found[which]))
        return "\n\n".join(
            f"```{{image}} {found[which]}\n:class: only-{which}\n:alt: {found['alt']}\n```"
            for which in ("light", "dark")
        )

    def _lay_out_copy(self, name: str) -> None:
        place = self._folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place)

    def _write(self, page: str, text: str) -> None:
        place = self._folder / page
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


class _PageReader(HTMLParser):
    """What a page of the site has: the anchors in it, where its links lead, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in {"a", "area"}:
            self.links |= {given["href"]} if "href" in given else set()
            return
        self.loads |= {given[name] for name in ("src", "href", "data", "action", "poster") if given.get(name)}
        self.loads |= {each.split()[0] for each in given.get("srcset", "").split(",") if each.strip()}
        self.loads |= set(_list_urls(given.get("style", "")))


def _list_urls(style: str) -> Iterator[str]:
    """The addresses in a style sheet; those of `data:` hold what they show."""
    for found in re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", style):
        address = "".join(found)
        if not address.startswith(("data:", "#")):
            yield address


def find_faults(site: Path) -> list[str]:
    """Returns what is wrong with a site: what it loads from elsewhere, and links that lead nowhere in it."""
    pages = {path: _PageReader(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        faults += [f"{name} loads {each} from another host" for each in sorted(page.loads) if _FOREIGN.match(each)]
        for target in sorted(page.links | page.loads):
            if _FOREIGN.match(target):
                continue
            file, _, anchor = target.partition("#")
            place = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            if not place.is_file():
                faults.append(f"{name} links to {target}, which is not there")
            elif anchor and place in pages and unquote(anchor) not in pages[place].anchors:
                faults.append(f"{name} links to {target}, and that page has no such heading")
    for path in sorted(site.rglob("*.css")):
        for address in _list_urls(path.read_text(encoding="utf-8")):
            name = path.relative_to(site).as_posix()
            if _FOREIGN.match(address):
                faults.append(f"{name} loads {address} from another host")
            elif not (path.parent / re.split(r"[?#]", address)[0]).is_file():
                faults.append(f"{name} loads {address}, which is not there")
    return faults


def write_texts(site: Path, sections: Iterable[Section]) -> None:
    """Writes llms.txt, with each page's title, place and what it answers, and llms-full.txt with all of them."""
    home = (ROOT / HOME).read_text(encoding="utf-8")
    (summary,) = re.findall(r"^\*\*Load once.*?(?=\n\n)", home, re.MULTILINE | re.DOTALL)
    lines, texts = ["# streamd", "", f"> {' '.join(summary.replace('**', '').split())}", ""], [home]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for entry in section.entries:
            text = (ROOT / entry.path).read_text(encoding="utf-8")
            title = text.splitlines()[0].removeprefix("# ") if entry.path.endswith(".md") else entry.path
            lines.append(f"- [{title}]({_page_name(entry.path)}.html): {entry.answers}")
            texts.append(text if entry.path.endswith(".md") else f"# {entry.path}\n\n```yaml\n{text}```\n")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(texts), encoding="utf-8")


def _page_name(path: str) -> str:
    """What Sphinx calls the page of a file."""
    return path.removesuffix(".md")


def run_sphinx(laid: Path, built: Path, tree: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Builds the pages of a folder, and returns what Sphinx has to say against them.

    The tree goes onto the home page: for each part its options, as MyST has them, and its pages as Sphinx names them.
    """
    with tempfile.TemporaryDirectory() as trees:
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-E", "-q", "-d", trees]
        command += ["-c", str(CONFIGURATION), str(laid), str(built)]
        environment = {**os.environ, "STREAMD_SITE_TREE": json.dumps(list(tree))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = (done.stderr or done.stdout or "Sphinx failed").replace(f"{laid}/", "").splitlines()
    return said if done.returncode else []


def build_site(out: Path) -> list[str]:
    """Builds the site into a folder, and returns what is wrong with it. What Sphinx refuses changes nothing there."""
    sections = read_tree((ROOT / TREE).read_text(encoding="utf-8"))
    tree = [("", [_page_name(TREE)])]
    tree += [(f":caption: {each.title}\n", [_page_name(entry.path) for entry in each.entries]) for each in sections]
    with tempfile.TemporaryDirectory() as name:
        laid, built = Path(name, "pages"), Path(name, "site")
        Layout(laid).lay_out()
        if faults := run_sphinx(laid, built, tree):
            return faults
        (built / "index.html").write_text(_FORWARD, encoding="utf-8")
        write_texts(built, sections)
        for rest in (".buildinfo", "objects.inv", "_static/webpack-macros.html"):  # of no use to who reads
            (built / rest).unlink(missing_ok=True)
        shutil.rmtree(built / "_sources", ignore_errors=True)  # Sphinx makes it, and puts nothing in
        if out.exists():
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, out)
    return find_faults(out)


def is_replaceable(out: Path) -> bool:
    """Returns whether a site may be written to a place: nothing is there, an empty folder, or a former site."""
    return not out.exists() or (out.is_dir() and (not any(out.iterdir()) or (out / MARK).is_file()))


def main() -> int:
    """Builds the site, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/docs site", description="Builds the pages as a site.")
    parser.add_argument("out", type=Path, help="a folder that is new, empty, or holds a former site")
    out = parser.parse_args().out
    if not is_replaceable(out):
        print(f"{out} holds something else than a site; name a folder that is new or empty", file=sys.stderr)
        return 1
    if faults := build_site(out):
        print(*faults, sep="\n", file=sys.stderr)
        return 1
    print(f"{out / 'index.html'}: {len(list_pages())} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
