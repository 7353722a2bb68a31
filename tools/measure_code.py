"""Measures the Python of packages: python tools/measure_code.py NAME=FOLDER ... [--detail NAME]

Prints one Markdown table, a row a package: files, lines and their kinds, lengths of functions and classes, what has one
user. Reads files as text and as syntax trees; imports and runs nothing. Tests inside a package are left out.

How it counts:
- comment: a line that holds nothing but a comment; docstring: a line of a module's, class's or function's docstring;
  blank: outside docstrings; code: the rest.
- length of a function: from `def` (after decorators) to its last line, docstring included.
- strict length of a function (`fn code`): its lines of code alone.
- one importer: modules that exactly one other module of the package imports. An `__init__` that only hands names on,
  and a module that holds an entry point, count as importers.
- pass-through: a function of one statement (after its docstring) that calls something with arguments that are its own
  parameters or attributes of self, and that one place in the package calls.
- one-user class: its name occurs (as a name or an attribute) in one other function, class or module body only.
- comments, own + trailing: whole lines that are comments, and comments behind code.
- one-word names: share of the different function names (leading underscores and dunders aside) without an underscore.
- reused: class names that two modules or more define; function names that four modules or more define.
- public: functions and classes without an underscore; of functions, those at a module's top.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LineKind = Literal["doc", "comment", "blank", "code"]

_SKIPPED_FOLDERS: Final = {"tests", "testing", "test", "__pycache__", "testdata"}
_REUSED_IN: Final = 4  # modules: a function name that so many define says little
_LONGEST_PASS_THROUGH: Final = 6  # lines
_SHOWN: Final = 25  # rows of a detail's lists


@dataclass(frozen=True, slots=True)
class Module:
    """One file. `kinds` has one entry a line; `trailing_comments` are those behind code."""

    path: Path
    name: str
    tree: ast.Module = field(repr=False)
    kinds: tuple[LineKind, ...] = field(repr=False)
    trailing_comments: int

    @property
    def lines(self) -> int:
        return len(self.kinds)

    @property
    def package(self) -> str:
        """The package that the module's relative imports begin at."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Function:
    """One function or method; `name` is qualified within its module."""

    module: Module
    name: str
    lines: int
    code_lines: int
    parameters: int
    is_documented: bool
    is_public: bool
    is_typed: bool
    node: FunctionNode = field(repr=False)

    @property
    def bare_name(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class ClassLength:
    """One class, wherever in its module it is defined."""

    module: str
    name: str
    lines: int


# --- reading


def _docstring_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | FunctionNode)
            and ast.get_docstring(node, clean=False) is not None
        ):
            first = node.body[0]
            found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def _comment_lines(text: str) -> tuple[set[int], int]:
    """The lines that are nothing but a comment, and how many comments stand behind code."""
    rows, own, trailing = text.splitlines(), set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and rows[token.start[0] - 1].lstrip().startswith("#"):
            own.add(token.start[0])
        elif token.type == tokenize.COMMENT:
            trailing += 1
    return own, trailing


def _line_kinds(rows: Sequence[str], docs: set[int], comments: set[int]) -> Iterator[LineKind]:
    for number, row in enumerate(rows, 1):
        if number in docs:
            yield "doc"
        elif number in comments:
            yield "comment"
        else:
            yield "code" if row.strip() else "blank"


def read_module(path: Path, root: Path) -> Module | None:
    """The module in a file below the package's folder `root`; None when the file is not Python of this version."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError):
        return None
    comments, trailing = _comment_lines(text)
    kinds = tuple(_line_kinds(text.splitlines(), _docstring_lines(tree), comments))
    name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
    return Module(path, name, tree, kinds, trailing)


def read_package(folder: Path) -> dict[str, Module]:
    """The modules of a package by their dotted names, without its tests."""
    modules: dict[str, Module] = {}
    for path in sorted(folder.rglob("*.py")):
        is_test = path.name.startswith("test_") or path.name.endswith("_test.py")
        if is_test or _SKIPPED_FOLDERS & set(path.relative_to(folder).parts[:-1]):
            continue
        module = read_module(path, folder)
        if module is not None:
            modules[module.name] = module
    return modules


# --- what a module defines


def list_functions(module: Module) -> Iterator[Function]:
    """All functions of a module, methods and inner ones too, in the order of its lines."""
    yield from _functions_below(module, module.tree, "", is_public=True)


def _functions_below(module: Module, node: ast.AST, prefix: str, *, is_public: bool) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode):
            yield _describe_function(module, child, prefix, is_public=is_public)
            yield from _functions_below(module, child, f"{prefix}{child.name}.", is_public=False)
        elif isinstance(child, ast.ClassDef):
            is_shown = is_public and not child.name.startswith("_")
            yield from _functions_below(module, child, f"{prefix}{child.name}.", is_public=is_shown)
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _functions_below(module, child, prefix, is_public=is_public)


def _parameters(node: FunctionNode) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _describe_function(module: Module, node: FunctionNode, prefix: str, *, is_public: bool) -> Function:
    first, last = node.lineno, node.end_lineno or node.lineno
    own = [each for each in _parameters(node) if each.arg not in {"self", "cls"}]
    return Function(
        module,
        prefix + node.name,
        last - first + 1,
        module.kinds[first - 1 : last].count("code"),
        len(own),
        ast.get_docstring(node) is not None,
        is_public and not node.name.startswith("_"),
        node.returns is not None and all(each.annotation for each in own),
        node,
    )


def list_classes(module: Module) -> list[ClassLength]:
    return [
        ClassLength(module.name, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]


# --- who uses what


def list_imports(module: Module) -> Iterator[str]:
    """Dotted names that a module imports; of `from a import b` both `a` and `a.b`, since b may be a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.package.split(".")
                above = above[: len(above) - (node.level - 1)]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)


def find_importers(modules: dict[str, Module]) -> dict[str, set[str]]:
    """For each module that another one of the package imports: the names of those."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for name in list_imports(module):
            if name in modules and name != module.name:
                found[name].add(module.name)
    return found


def _find_uses(modules: dict[str, Module]) -> dict[str, set[tuple[str, str]]]:
    """For each bare name: the modules and their top definitions in which it occurs."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for module in modules.values():
        for top in module.tree.body:
            scope = (module.name, getattr(top, "name", "<module>"))
            for node in ast.walk(top):
                if isinstance(node, ast.Name):
                    found[node.id].add(scope)
                elif isinstance(node, ast.Attribute):
                    found[node.attr].add(scope)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                    found[node.value].add(scope)
    return found


def _count_loads(modules: Iterable[Module]) -> Counter[str]:
    """How often each bare name is called or handed on."""
    count: Counter[str] = Counter()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                count[node.id] += 1
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                count[node.attr] += 1
    return count


def _hands_on_arguments(function: Function) -> bool:
    """Whether its one statement is a call whose arguments are parameters or attributes of self."""
    body = function.node.body[1:] if function.is_documented else function.node.body
    if len(body) != 1:
        return False
    value = body[0].value if isinstance(body[0], ast.Return | ast.Expr) else None
    if isinstance(value, ast.Await):
        value = value.value
    if not isinstance(value, ast.Call):
        return False
    own = {each.arg for each in _parameters(function.node)}
    return all(_is_handed_on(each, own) for each in [*value.args, *(each.value for each in value.keywords)])


def _is_handed_on(argument: ast.expr, own: set[str]) -> bool:
    if isinstance(argument, ast.Starred):
        argument = argument.value
    if isinstance(argument, ast.Name):
        return argument.id in own
    return isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name) and argument.value.id == "self"


# --- figures


def _quantile(values: Iterable[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0


def _median(values: Iterable[int]) -> int:
    return int(statistics.median(values))


class Measurement:
    """The figures of one package, each computed from its syntax trees when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.modules = read_package(folder)
        self.functions = [each for module in self.modules.values() for each in list_functions(module)]
        self.classes = [each for module in self.modules.values() for each in list_classes(module)]

    @property
    def total_lines(self) -> int:
        return sum(module.lines for module in self.modules.values())

    def count_lines(self, kind: LineKind) -> int:
        return sum(module.kinds.count(kind) for module in self.modules.values())

    @cached_property
    def one_importer(self) -> list[tuple[str, str]]:
        """Modules that one other imports, each with that one; packages aside."""
        importers = find_importers(self.modules)
        return [
            (name, next(iter(importers[name])))
            for name, module in self.modules.items()
            if len(importers.get(name, ())) == 1 and module.path.name != "__init__.py"
        ]

    @cached_property
    def one_user_classes(self) -> list[tuple[str, str]]:
        """Classes at a module's top that one other definition uses, each after its module."""
        uses = _find_uses(self.modules)
        tops = [(module.name, node) for module in self.modules.values() for node in module.tree.body]
        classes = [(module, node.name) for module, node in tops if isinstance(node, ast.ClassDef)]
        return [each for each in classes if len(uses.get(each[1], set()) - {each}) == 1]

    @cached_property
    def pass_throughs(self) -> list[Function]:
        loads = _count_loads(self.modules.values())
        return [
            each
            for each in self.functions
            if each.lines - each.is_documented < _LONGEST_PASS_THROUGH
            and _hands_on_arguments(each)
            and loads[each.bare_name] == 1
            and not each.bare_name.startswith("__")
        ]

    @cached_property
    def function_homes(self) -> dict[str, set[str]]:
        """The modules that define each function name; leading underscores are ignored, dunders left out."""
        homes: dict[str, set[str]] = defaultdict(set)
        for each in self.functions:
            if not each.bare_name.startswith("__"):
                homes[each.bare_name.lstrip("_")].add(each.module.name)
        return homes

    @cached_property
    def class_homes(self) -> dict[str, set[str]]:
        """The modules that define each class name; leading underscores are ignored."""
        homes: dict[str, set[str]] = defaultdict(set)
        for each in self.classes:
            homes[each.name.lstrip("_")].add(each.module)
        return homes

    @property
    def one_word_share(self) -> float:
        return sum("_" not in name for name in self.function_homes) / max(1, len(self.function_homes))

    @property
    def reused_classes(self) -> list[str]:
        return sorted(name for name, homes in self.class_homes.items() if len(homes) > 1)

    @property
    def reused_functions(self) -> list[str]:
        return sorted(name for name, homes in self.function_homes.items() if len(homes) >= _REUSED_IN)

    @property
    def public_names(self) -> int:
        functions = sum("." not in each.name and each.is_public for each in self.functions)
        return functions + sum(not each.name.startswith("_") for each in self.classes)

    @property
    def documented_share(self) -> float:
        public = [each for each in self.functions if each.is_public]
        return sum(each.is_documented for each in public) / max(1, len(public))

    @property
    def typed_share(self) -> float:
        return sum(each.is_typed for each in self.functions) / max(1, len(self.functions))

    @property
    def trailing_comments(self) -> int:
        return sum(module.trailing_comments for module in self.modules.values())

    @property
    def function_lengths(self) -> tuple[int, int, int]:
        """Median, ninth decile and longest, in lines."""
        lengths = [each.lines for each in self.functions]
        return _median(lengths), _quantile(lengths, 0.9), max(lengths)

    @property
    def function_code(self) -> tuple[int, int]:
        """Median and ninth decile, in lines of code."""
        lengths = [each.code_lines for each in self.functions]
        return _median(lengths), _quantile(lengths, 0.9)

    @property
    def file_lengths(self) -> tuple[int, int]:
        """Median and longest, in lines."""
        lengths = [module.lines for module in self.modules.values()]
        return _median(lengths), max(lengths)

    @property
    def longest_class(self) -> int:
        return max((each.lines for each in self.classes), default=0)


# --- writing

HEAD: Final = (
    "| package | files | lines | code | code/comment/doc/blank % | file med/max | functions | fn lines med/p90/max | "
    "fn code med/p90 | longest class | one-user classes | one-importer modules | pass-throughs | public names | "
    "pub doc | typed | comments own+trailing | one-word names | reused class/function names |\n|---|" + "--:|" * 18
)


def _join(values: Iterable[object]) -> str:
    return "/".join(map(str, values))


def render_row(name: str, found: Measurement) -> str:
    """One package's row of the table below `HEAD`."""
    kinds: tuple[LineKind, ...] = ("code", "comment", "doc", "blank")
    cells = [
        name,
        len(found.modules),
        f"{found.total_lines:,}",
        f"{found.count_lines('code'):,}",
        _join(f"{100 * found.count_lines(kind) / found.total_lines:.0f}" for kind in kinds),
        _join(found.file_lengths),
        len(found.functions),
        _join(found.function_lengths),
        _join(found.function_code),
        found.longest_class,
        _join((len(found.one_user_classes), len(found.classes))),
        len(found.one_importer),
        len(found.pass_throughs),
        found.public_names,
        f"{found.documented_share:.0%}",
        f"{found.typed_share:.0%}",
        f"{found.count_lines('comment')}+{found.trailing_comments}",
        f"{found.one_word_share:.0%}",
        _join((len(found.reused_classes), len(found.reused_functions))),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def render_detail(name: str, found: Measurement) -> str:
    """The longest functions and classes of a package, and all that has one user."""
    longest = sorted(found.functions, key=lambda each: -each.lines)[:_SHOWN]
    classes = sorted(found.classes, key=lambda each: -each.lines)[:_SHOWN]
    widest = sorted(found.functions, key=lambda each: -each.parameters)[:15]
    lines = [
        f"\n## {name}",
        "\nlongest functions:",
        *(f"  {each.lines:4} {each.code_lines:4} {each.module.name}:{each.name}" for each in longest),
        "\nlongest classes:",
        *(f"  {each.lines:4} {each.module}:{each.name}" for each in classes),
        "\nmost parameters:",
        *(f"  {each.parameters:4} {each.module.name}:{each.name}" for each in widest),
        "\nclasses with one user:",
        *(f"  {module}:{cls}" for module, cls in found.one_user_classes),
        "\nmodules with one importer:",
        *(f"  {found.modules[name].lines:4} {name}  <-  {user}" for name, user in sorted(found.one_importer)),
        "\npass-through functions called once:",
        *(f"  {each.lines:2} {each.module.name}:{each.name}" for each in found.pass_throughs),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measures the Python of packages; prints one Markdown table.")
    parser.add_argument("packages", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--detail", action="append", default=[], metavar="NAME", help="also list what stands out")
    options = parser.parse_args(arguments)
    print(HEAD)
    measured: dict[str, Measurement] = {}
    for each in options.packages:
        name, _, folder = each.partition("=")
        measured[name] = Measurement(Path(folder))
        print(render_row(name, measured[name]), flush=True)
    for name in options.detail:
        print(render_detail(name, measured[name]))


if __name__ == "__main__":
    main()
