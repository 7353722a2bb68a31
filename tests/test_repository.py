"""The house rules that no linter knows, and the promises of the scripts."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from checks import LONG, QUICK

ROOT: Final = Path(__file__).resolve().parent.parent
STREAMD: Final = sorted((ROOT / "streamd").rglob("*.py"))
TESTS: Final = sorted((ROOT / "tests").rglob("*.py"))
BENCHMARKS: Final = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "benchmarks" / "peers").glob("*.py")])
TOOLS: Final = sorted([*(ROOT / "tools").glob("*.py"), *(ROOT / "tools" / "fuzz").glob("*.py")])
LOCKS: Final = sorted((ROOT / "requirements").glob("*.txt"))

MAX_FILE_LINES: Final = 900
MAX_FUNCTION_LINES: Final = 80
MAX_BUDGET_S: Final = 2 * 45 * 60  # two cores for 45 minutes
MAX_QUICK_BUDGET_S: Final = 150

# What a trainer may carry; whatever else lies in streamd/ is forbidden to it by a contract in pyproject.toml.
TRAINER_FOLDERS: Final = frozenset({"__init__", "client", "errors", "frameworks", "headroom", "limits"})
TRAINER_MODULES: Final = frozenset(  # of the two folders that all processes share
    {
        "core.counters",
        "core.display",
        "core.epoch_timing",
        "core.host",
        "core.receipt",
        "core.sampler",
        "core.slot_layout",
        "core.spec",
        "core.status",
        "core.stderr_guard",
        "core.text",
        "core.token",
        "ipc.endpoint",
        "ipc.key_files",
        "ipc.lifeline",
        "ipc.local_daemon",
        "ipc.mapping",
        "ipc.messages",
    }
)

# Of core all is pure but these: a contract in pyproject.toml names each of the others.
IMPURE_CORE: Final = frozenset({"core.host", "core.import_function", "core.log", "core.stderr_guard"})

# Only entry points decide how the process logs and how it ends; the other modules are started with `python -m`.
ENTRY_POINTS: Final = re.compile(
    r"cli/(main|serve|service)\.py|cli/\w+/\w*command\.py|cli/terminal\.py|"
    r"cli/(demo|probe)\.py|core/log/\w+\.py|daemon/embedded\.py|"
    r"daemon/streams/listing_process\.py|daemon/starter/process\.py|worker/main\.py"
)
ENTRY_POINT_CALLS: Final = {
    "logging.basicConfig",
    "logging.config.dictConfig",
    "logging.config.fileConfig",
    "os._exit",
    "quit",
    "sys.exit",
    "SystemExit",
}

# A keyword that asks for a shell or for pickled arrays is unsafe with any value: NumPy's default is to refuse.
UNSAFE_CALLS: Final = re.compile(
    r"(builtins\.)?(eval|exec|compile|__import__)|os\.(system|popen|exec\w+|spawn\w+)|tempfile\.mktemp|"
    r"yaml\.(load|load_all|unsafe_load)|subprocess\.(getoutput|getstatusoutput)|.*create_subprocess_shell"
)
UNSAFE_TEXT: Final = re.compile(
    r"(?m)^\s*(?:import|from) (?:_?pickle|marshal|shelve|multiprocessing|dill|cloudpickle|joblib|pty|code|codeop)\b|"
    r"typ=[\"']unsafe"
)

DECODING: Final = {"msgspec.json.decode", "msgspec.msgpack.decode"}
DECODERS: Final = {"msgspec.json.Decoder", "msgspec.msgpack.Decoder"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    first: int
    last: int
    lines: int


@dataclass(frozen=True, slots=True)
class Call:
    """`name` is dotted, with imports resolved: `from sys import exit` gives `sys.exit`."""

    name: str
    line: int
    literal: object  # the first argument, if it is one
    keywords: frozenset[str | None]


@dataclass(frozen=True, slots=True)
class Source:
    """What several rules ask of a file; its tree is large, and is not kept."""

    functions: tuple[Function, ...]
    calls: tuple[Call, ...]


@cache
def source_of(path: Path) -> Source:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    origin: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            origin |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            origin |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return Source(
        tuple(described(node, path) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)),
        tuple(called(node, origin) for node in nodes if isinstance(node, ast.Call)),
    )


def described(node: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> Function:
    """With the lines that count: of a command, whose options are its signature, those of the body."""
    is_command = path.parent.name == "cli" or path.stem.endswith("command")
    last = node.end_lineno or node.lineno
    return Function(node.name, node.lineno, last, last - (node.body[0].lineno if is_command else node.lineno) + 1)


def called(node: ast.Call, origin: Mapping[str, str]) -> Call:
    head, dot, rest = dotted(node.func).partition(".")
    literal = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    keywords = frozenset(keyword.arg for keyword in node.keywords)
    return Call(origin.get(head, head) + dot + rest, node.lineno, literal, keywords)


def dotted(function: ast.expr) -> str:
    """`a.b.c`, in which whatever is no name is `?`."""
    if isinstance(function, ast.Attribute):
        return f"{dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else "?"


def calls_of(paths: Iterable[Path]) -> Iterator[tuple[Path, Call]]:
    return ((path, call) for path in paths for call in source_of(path).calls)


def is_in_a_function(path: Path, call: Call) -> bool:
    """Whether a call is made when a function runs, and not when the module is loaded."""
    return any(function.first <= call.line <= function.last for function in source_of(path).functions)


def test_no_file_has_more_than_900_lines() -> None:
    assert {
        named(path): n for path in STREAMD + TESTS + BENCHMARKS + TOOLS if (n := len(lines_of(path))) > MAX_FILE_LINES
    } == {}


def test_no_function_has_more_than_80_lines() -> None:
    assert {
        f"{named(path)}:{function.first} {function.name}": function.lines
        for path in STREAMD + TESTS + BENCHMARKS + TOOLS
        for function in source_of(path).functions
        if function.lines > MAX_FUNCTION_LINES
    } == {}


def test_only_entry_points_configure_logging_or_exit() -> None:
    inner = [path for path in STREAMD if not ENTRY_POINTS.fullmatch(path.relative_to(ROOT / "streamd").as_posix())]

    assert [
        f"{named(path)}:{call.line} {call.name}"
        for path, call in calls_of(inner)
        if call.name in ENTRY_POINT_CALLS or call.name.endswith((".addHandler", ".setLevel"))
    ] == []


def test_only_slots_the_journal_and_the_lock_of_a_process_make_memfds() -> None:
    assert {named(path) for path, call in calls_of(STREAMD) if call.name == "os.memfd_create"} <= {
        "streamd/core/log/__init__.py",
        "streamd/ipc/local_daemon.py",
        "streamd/ipc/slots.py",
    }


def test_whatever_process_is_started_its_stderr_is_chosen() -> None:
    # An inherited one may be a pipe or a terminal that nothing reads, at which the process would stand still.
    starts = re.compile(r"(asyncio\.create_subprocess_exec|subprocess\.(Popen|run|call|check_call|check_output))")
    assert [
        f"{named(path)}:{call.line}"
        for path, call in calls_of(STREAMD)
        if starts.fullmatch(call.name) and {"stderr", "capture_output"}.isdisjoint(call.keywords)
    ] == []


def of_contract(name: str, key: str) -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {contract["name"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}
    return {module.removeprefix("streamd.") for module in contracts[name][key]}


def modules_of(folder: str) -> set[str]:
    """Modules and packages right below a folder of streamd/: `core.spec`, `core.log`."""
    return {
        f"{folder}.{path.stem}"
        for path in (ROOT / "streamd" / folder).iterdir()
        if path.stem != "__init__" and (path.suffix == ".py" or (path / "__init__.py").exists())
    }


def test_every_module_is_either_a_trainers_or_forbidden_to_it() -> None:
    forbidden = of_contract("A trainer carries nothing of the daemon", "forbidden_modules")
    folders = {path.relative_to(ROOT / "streamd").parts[0].removesuffix(".py") for path in STREAMD} - {"core", "ipc"}

    assert folders - TRAINER_FOLDERS - forbidden == set()
    assert (modules_of("core") | modules_of("ipc")) - TRAINER_MODULES - forbidden == set()
    assert forbidden & (TRAINER_FOLDERS | TRAINER_MODULES) == set()


def test_the_map_of_a_folder_names_only_modules_that_are_there() -> None:
    entry = re.compile(r"(?:^ *|(?<=\S)\s{2,})([a-z_0-9]+)[*/]?(?=\s{2,}\S)", re.MULTILINE)
    for package in sorted((ROOT / "streamd").glob("*/**/__init__.py")):
        map_of_folder = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        named = {name for line in map_of_folder.splitlines() if "→" not in line for name in entry.findall(line)}
        there = {path.stem for path in package.parent.iterdir()}
        assert named <= there, f"{package.relative_to(ROOT)} names {', '.join(sorted(named - there))}"


def test_all_of_core_is_pure_but_what_is_named_here() -> None:
    pure = of_contract("Pure modules: no I/O, no clock, no threads, no pixels", "source_modules")

    assert modules_of("core") - pure == IMPURE_CORE


def unsafe_of(paths: Iterable[Path]) -> list[str]:
    """What turns data into code or objects, or gives them to a shell."""
    calls = [
        f"{path.name}:{call.line} {call.name}"
        for path, call in calls_of(paths)
        if UNSAFE_CALLS.fullmatch(call.name) or call.keywords & {"allow_pickle", "shell"}
    ]
    texts = [
        f"{path.name} {found}" for path in paths for found in UNSAFE_TEXT.findall(path.read_text(encoding="utf-8"))
    ]
    return calls + texts


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    assert unsafe_of(STREAMD) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from pickle import loads", "from os import path, system\nsystem('true')",
        "import marshal as m", "eval('1')",
        "import numpy as np\nnp.load('x', allow_pickle=True)", "import yaml\nyaml.load(text)", "YAML(typ='unsafe')",
        "exec(code)", "compile(text, 'x', 'exec')", "__import__(name)", "import os\nos.execvp('sh', ['sh'])",
        "subprocess.run(line, shell=True)", "from tempfile import mktemp\nmktemp()", "import os\nos.popen('true')",
        "asyncio.create_subprocess_shell('true')", "from multiprocessing import shared_memory", "import shelve",
    ],
)  # fmt: skip
def test_each_unsafe_line_would_be_found(tmp_path: Path, line: str) -> None:
    path = tmp_path / "unsafe.py"
    path.write_text(f"def load() -> None:\n    {line.replace(chr(10), chr(10) + '    ')}\n")

    assert unsafe_of([path]) != []


def test_no_thread_is_the_first_to_decode_a_type() -> None:
    """msgspec finds out about a type when it first decodes one, and crashes where two threads have it do so at once.

    A Decoder knows its type when it is made, and a module makes it in one thread.
    """
    typed = [
        f"{named(path)}:{call.line}"
        for path, call in calls_of(STREAMD)
        if call.name == "msgspec.convert" or (call.name in DECODING and "type" in call.keywords)
    ]
    late = [
        f"{named(path)}:{call.line}"
        for path, call in calls_of(STREAMD)
        if call.name in DECODERS and is_in_a_function(path, call)
    ]

    assert typed == []
    assert late == []


def test_every_exemption_gives_its_reason() -> None:
    bare = re.compile(r"# (noqa|type: ignore)(?!.*( - |  # )\w)")
    marked = [
        f"{named(path)}:{number}"
        for path in STREAMD + TESTS + BENCHMARKS + TOOLS
        for number, line in enumerate(lines_of(path), 1)
        if bare.search(line) and path != Path(__file__)
    ]

    assert marked == []


def test_no_test_sleeps_for_a_literal_time() -> None:
    assert [
        f"{named(path)}:{call.line}" for path, call in calls_of(TESTS) if call.name.endswith("sleep") and call.literal
    ] == []


def test_test_modules_have_names_of_their_own() -> None:
    names = [path.name for path in TESTS]

    assert {name for name in names if names.count(name) > 1} == set()
    assert [named(path) for path in TESTS if path.name == "__init__.py"] == ["tests/support/__init__.py"]


def test_importing_streamd_pulls_neither_the_daemon_nor_a_framework() -> None:
    heavy = {
        "PIL", "aiofiles", "aiohttp", "cv2", "jax", "keras", "prometheus_client", "pyarrow", "pydantic", "simplejpeg",
        "tensorflow", "torch", "typer",
    }  # fmt: skip
    code = "import sys, streamd; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "streamd" in done.stdout.split()
    assert heavy & set(done.stdout.split()) == set()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.stem))
def test_a_lock_pins_every_package_by_hash_and_holds_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]

    assert packages
    assert [
        line
        for line in packages
        if not re.fullmatch(r"[a-z0-9.-]+==\S+( ; [^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", line)
    ] == []
    assert [line for line in text.splitlines() if re.search(r"://|index-url|find-links|trusted-host|file:", line)] == []


def test_the_locks_agree_on_what_they_share() -> None:
    demo, test = (
        set(re.findall(r"^[a-z0-9.-]+==.*?(?= \\$)", (ROOT / f"requirements/{name}.txt").read_text(), re.MULTILINE))
        for name in ("demo", "test")
    )

    assert demo
    assert demo - test == set()


def test_the_parts_of_the_checks_have_budgets_that_two_cores_spend_in_under_45_minutes() -> None:
    assert sum(part.budget_s for part in QUICK + LONG) < MAX_BUDGET_S
    assert sum(part.budget_s for part in QUICK) <= MAX_QUICK_BUDGET_S


def test_every_mark_that_the_quick_parts_leave_out_has_a_part_of_its_own() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    marks = {re.split(r"\W", mark, maxsplit=1)[0] for mark in settings["tool"]["pytest"]["ini_options"]["markers"]}
    (tests,) = (part for part in QUICK if part.name == "tests")

    assert set(re.findall(r"\w+", tests.marks)) - {"not", "or"} == marks - {"fault"}
    assert marks - {"fault"} == marks & {part.name for part in LONG}


def test_the_quick_parts_go_the_whole_main_path() -> None:
    assert "mark.long" not in (ROOT / "tests/system/test_the_main_path.py").read_text(encoding="utf-8")


SKIPS: Final = """
import pytest

def test_passes(): pass
def test_skips(): pytest.skip("no such thing here")
@pytest.mark.skip(reason="needs a GPU")
def test_of_a_gpu(): pass
@pytest.mark.xfail
def test_fails_as_expected(): assert False
"""


@pytest.mark.parametrize(
    ("ci", "counts"),
    [
        ("1", "1 failed, 1 passed, 1 skipped, 1 xfailed"),
        pytest.param("", "1 passed, 2 skipped, 1 xfailed", marks=pytest.mark.long),
    ],
)
def test_in_ci_a_skip_is_a_failure_unless_it_wants_a_gpu(tmp_path: Path, ci: str, counts: str) -> None:
    (tmp_path / "test_skips.py").write_text(SKIPS)
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "ci_plugin", "-p", "no:cacheprovider", "-q", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert counts in done.stdout
    assert done.returncode == (1 if ci else 0)


@pytest.mark.bench
def test_the_limit_is_measured_on_data_cut_from_photographs(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    make, limit = (str(ROOT / "benchmarks" / name) for name in ("make_data.py", "limit.py"))
    code = (
        f"import sys, runpy; runpy.run_path({make!r})['make'](__import__('pathlib').Path({str(folder)!r}), images=200)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    done = subprocess.run([sys.executable, limit, str(folder)], capture_output=True, text=True, check=True)

    assert len(list(folder.glob("*/*.jpg"))) == 200
    assert json.loads(done.stdout)["samples"] == 400
    assert json.loads(done.stdout)["samples_per_s"] > 500
