"""Measures the package at several revisions and writes docs/house.md.

    scripts/docs house [NAME=REVISION ...] [--page docs/house.md]

A revision is anything that git knows, read by `git archive`; `.` is the working tree. Without any: before the package
was laid out by processes, after it, and now. The last one is held to the targets.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from import_graph import ImportGraph, read_graph
from measure_code import Measurement, Module

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "house.md"
WORKING_TREE: Final = "."
MOVE_SUBJECT: Final = "Lay the package out by the process that runs each part"

# Every class that stands for one batch on its way from plan to trainer: the last name of its module, and its own name
# without leading underscores, in every form that both have had. A record stands for a batch when it holds the batch's
# key, or what is in it; events hold it or only name a slot, which is looked up. A class and the one that it extends,
# such as the engine's Task and the wire's FillRows, are one. Add new names here, and leave the old ones.
BATCH_RECORDS: Final = frozenset(
    {
        *(("schedule", "Wish"), ("fair_share", "Wish"), ("actions", "Produce"), ("actions", "ProduceBatch")),
        *(("pool", "Entry"), ("slot_pool", "Entry"), ("slot_pool", "SlotEntry"), ("workload", "Job")),
        *(("in_flight", "Job"), ("production", "Job"), ("production", "Production"), ("batch_job", "Job")),
        *(("batch_job", "Production"), ("batch_job", "BatchJob"), ("batch_job", "Task"), ("tasks", "Task")),
        *(("worker_messages", "Task"), ("deliveries", "Lying"), ("deliveries", "Parcel"), ("batch_sender", "Lying")),
        *(("batch_sender", "Parcel"), ("batch_sender", "OutgoingBatch"), ("messages", "BatchReady")),
        *(("session", "Offer"), ("inbox", "Delivery"), ("handoff", "Delivery"), ("recut", "Fetched")),
        *(("recut", "Loose"), ("rebatch", "Fetched"), ("rebatch", "Loose"), ("session", "ReceivedBatch")),
        *(("handoff", "ReceivedBatch"), ("leases", "ReceivedBatch"), ("batch", "Batch")),
    }
)
BATCH_EVENTS: Final = frozenset({("events", "BatchProduced"), ("events", "ProductionFailed"), ("actions", "SendBatch")})

TRAINER_LIBRARIES: Final = {"msgspec", "numpy", "zmq"}
_OF_THEIR_OWN: Final = {"cython_runtime", "typing_extensions"}  # modules that pyzmq brings
_IMPORT_S: Final = 60.0
_IMPORT_PROGRAM: Final = """
import sys
before = set(sys.modules)
import streamd
streamd.connect, streamd.local
print(*{name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
"""


@dataclass(frozen=True, slots=True)
class Revision:
    """The package at one revision. `libraries` are those that `import streamd` and its clients bring."""

    name: str
    commit: str
    code: Measurement
    graph: ImportGraph
    root_folders: int
    root_modules: int
    libraries: frozenset[str]

    @property
    def batch_records(self) -> int:
        return sum(_is_batch_record(module.name, node) for module, node in _list_class_nodes(self.code))


def _list_class_nodes(code: Measurement) -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in code.modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                yield module, node


def _is_batch_record(module: str, node: ast.ClassDef) -> bool:
    """Whether a class stands for one batch; see BATCH_RECORDS."""
    names = module.rpartition(".")[2], node.name.lstrip("_")
    fields = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return names in BATCH_RECORDS or (names in BATCH_EVENTS and "key" in fields)


@dataclass(frozen=True, slots=True)
class Target:
    """What the last revision is held to. `figure` is what it has, `is_reached` whether that is good enough."""

    text: str
    figure: Callable[[Revision], str]
    is_reached: Callable[[Revision], bool]


def at_most(text: str, figure: Callable[[Revision], float], limit: float, form: str = ".0f") -> Target:
    """A target that a figure may not exceed."""
    return Target(text, lambda at: format(figure(at), form), lambda at: figure(at) <= limit)


TARGETS: Final = (
    at_most("at most 25 % of the function names have one word", lambda at: at.code.one_word_share, 0.25, ".1%"),
    at_most("no class name is defined in two modules", lambda at: len(at.code.reused_classes), 0),
    at_most("at most 40 function names are in four modules or more", lambda at: len(at.code.reused_functions), 40),
    at_most("at most 60 modules have one importer", lambda at: len(at.code.one_importer), 60),
    at_most("at most 11 folders are in the package's root", lambda at: at.root_folders, 11),
    at_most("at most 4 modules are in the package's root", lambda at: at.root_modules, 4),
    at_most("at most 8 record types stand for one batch", lambda at: at.batch_records, 8),
    Target(
        "`import streamd` brings pyzmq, NumPy and msgspec alone",
        lambda at: ", ".join(sorted(at.libraries)),
        lambda at: at.libraries <= TRAINER_LIBRARIES,
    ),
)

ROWS: Final[tuple[tuple[str, Callable[[Revision], str]], ...]] = (
    ("modules", lambda at: str(len(at.code.modules))),
    ("lines", lambda at: f"{at.code.total_lines:,}"),
    ("lines of code", lambda at: f"{at.code.count_lines('code'):,}"),
    ("folders in the package's root", lambda at: str(at.root_folders)),
    ("modules in the package's root", lambda at: str(at.root_modules)),
    ("rooms of the import graph", lambda at: str(len(at.graph.arrows))),
    ("floors of the import graph", lambda at: str(at.graph.floor_count)),
    ("arrows between rooms", lambda at: str(at.graph.arrow_count)),
    ("rooms in cycles", lambda at: ", ".join(at.graph.rooms_in_cycles) or "none"),
    ("modules with one importer", lambda at: str(len(at.code.one_importer))),
    ("functions", lambda at: f"{len(at.code.functions):,}"),
    ("lines of a function: median, ninth decile, longest", lambda at: " / ".join(map(str, at.code.function_lengths))),
    ("function names of one word", lambda at: f"{at.code.one_word_share:.1%}"),
    ("function names in four modules or more", lambda at: str(len(at.code.reused_functions))),
    ("class names in two modules or more", lambda at: str(len(at.code.reused_classes))),
    ("classes with one user, of all", lambda at: f"{len(at.code.one_user_classes)} of {len(at.code.classes)}"),
    (
        "public names in 1,000 lines of code",
        lambda at: f"{1000 * at.code.public_names / at.code.count_lines('code'):.0f}",
    ),
    ("whole-line comments in 100 lines of code", lambda at: f"{_comment_share(at):.1f}"),
    ("record types for one batch", lambda at: str(at.batch_records)),
    ("`import streamd` brings", lambda at: ", ".join(sorted(at.libraries))),
)


def _comment_share(at: Revision) -> float:
    return 100 * at.code.count_lines("comment") / at.code.count_lines("code")


# --- reading a revision


def _run_git(*words: str) -> bytes:
    """What git prints. Exits with its message when it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)  # noqa: S607 - as on the PATH
    if done.returncode:
        sys.exit(f"house_page: git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def find_move() -> str:
    """The commit that laid the package out by processes."""
    found = _run_git("log", "--fixed-strings", f"--grep={MOVE_SUBJECT}", "--format=%h", "--reverse").decode().split()
    if not found:
        sys.exit(f"house_page: no commit says {MOVE_SUBJECT!r}: name the revisions, as BEFORE=REVISION")
    return found[0]


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder that holds the package of a revision; the repository itself for the working tree."""
    if revision == WORKING_TREE:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="streamd-house-") as folder:
        with tarfile.open(fileobj=io.BytesIO(_run_git("archive", "--format=tar", revision, "streamd"))) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def read_revision(name: str, revision: str) -> Revision:
    """Everything that is measured of one revision."""
    with checked_out(revision) as folder:
        package = folder / "streamd"
        return Revision(
            name,
            _describe_commit(revision),
            Measurement(package),
            read_graph(package),
            sum(any(each.rglob("*.py")) for each in package.iterdir() if each.is_dir()),
            len(list(package.glob("*.py"))),
            find_libraries(folder),
        )


def _describe_commit(revision: str) -> str:
    if revision != WORKING_TREE:
        return _run_git("log", "-1", "--format=%h, %cs", revision).decode().strip()
    described = _run_git("log", "-1", "--format=%h, %cs").decode().strip()
    return f"{described}, with changes" if _run_git("status", "--porcelain", "--", "streamd") else described


def find_libraries(checkout: Path) -> frozenset[str]:
    """The libraries that `import streamd` and its clients bring into a fresh interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-P", "-c", _IMPORT_PROGRAM]
    done = subprocess.run(
        command, env=environment, cwd=checkout, capture_output=True, text=True, timeout=_IMPORT_S, check=False
    )
    if done.returncode:
        sys.exit(f"house_page: import streamd failed in {checkout}:\n{done.stderr}")
    names = set(done.stdout.split()) - _OF_THEIR_OWN - {"streamd"}
    return frozenset(name for name in names if not name.startswith("_cython_"))


# --- writing


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def render_page(revisions: Sequence[Revision]) -> str:
    """The page: a row a figure and a column a revision, then the targets and whether the last revision reaches them."""
    last = revisions[-1]
    lines = [
        "# The house in figures",
        "",
        "How large the package is, how it hangs together, and how it names things. `scripts/docs house`",
        "measures all of it again and writes this page; the docstrings of `tools/measure_code.py` and",
        "`tools/import_graph.py` say how each figure is counted.",
        "",
        _line(["", *(f"{each.name}<br>{each.commit}" for each in revisions)]),
        "|---|" + "--:|" * len(revisions),
        *(_line([text, *(figure(each) for each in revisions)]) for text, figure in ROWS),
        "",
        f"## Targets, as of {last.commit}",
        "",
        _line(["target", "figure", "state"]),
        "|---|--:|---|",
        *(
            _line([each.text, each.figure(last), "reached" if each.is_reached(last) else "not reached"])
            for each in TARGETS
        ),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measures the package at several revisions; writes a page.")
    parser.add_argument("revisions", nargs="*", metavar="NAME=REVISION")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    move = "" if options.revisions else find_move()
    pairs = options.revisions or [f"before the move={move}~1", f"after it={move}", f"now={WORKING_TREE}"]
    revisions = [read_revision(name, revision) for name, _, revision in (each.partition("=") for each in pairs)]
    options.page.write_text(render_page(revisions), encoding="utf-8")
    print(options.page)


if __name__ == "__main__":
    main()
