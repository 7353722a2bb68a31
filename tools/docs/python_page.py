"""docs/python.md: every public name of the Python package, from its docstrings. `scripts/docs python` writes it anew.

The sources are parsed and not imported: what needs Keras, torch or Lightning is described where they are missing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "python.md"

_WIDTH: Final = 100
# A line of a list in a docstring: one or several names, and what they are.
_ITEM: Final = re.compile(r"(?P<names>[\w`.*]+(?:(?:, | and )[\w`.*]+)*): (?P<text>\S.*)")
_CODE: Final = re.compile(r"(`[^`]+`)")
_HEAD: Final = """\
# The Python package

Written by `scripts/docs python` from the docstrings, which `help(streamd.connect)` and the like show too; a test checks
that they agree. How these names work together is in [your-code.md](your-code.md) and [trainers.md](trainers.md). What
the errors mean and ask for is in [operations.md](operations.md#errors).

"""

Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Part:
    """Names that users import from `module`, each with the file below streamd/ that defines it."""

    module: str
    intro: str
    names: tuple[tuple[str, str], ...]


PARTS: Final = (
    Part(
        "streamd",
        "What `import streamd` gives. It loads pyzmq, NumPy and msgspec, and no framework.",
        (
            ("connect", "client/client"),
            ("local", "client/local"),
            ("Client", "client/client"),
            ("Stream", "client/stream"),
            ("Batch", "client/batch"),
            ("load_image", "decode/inference"),
        ),
    ),
    Part(
        "streamd: what a stream returns",
        "`stream.spec`, `stream.receipts` and what they hold.",
        (
            ("StreamSpec", "core/spec"),
            ("ImageSpec", "core/spec"),
            ("LabelSpec", "core/spec"),
            ("Receipt", "core/receipt"),
        ),
    ),
    Part(
        "streamd: errors",
        "All are subclasses of `StreamdError`. What each means and asks for is in "
        "[operations.md](operations.md#errors).",
        (
            ("StreamdError", "errors"),
            ("BatchesHeldError", "errors"),
            ("ConfigError", "errors"),
            ("ConnectError", "errors"),
            ("ForkedClientError", "errors"),
            ("ReceiptError", "errors"),
            ("RefusedError", "errors"),
            ("StreamChangedError", "errors"),
            ("StreamStoppedError", "errors"),
            ("TokenError", "errors"),
        ),
    ),
    Part("streamd.headroom", "", (("hold", "headroom"), ("measure_rate", "headroom"), ("Replay", "headroom"))),
    Part(
        "streamd.frameworks.keras",
        "",
        (
            ("fit_data", "frameworks/keras/__init__"),
            ("normalization", "frameworks/keras/__init__"),
            ("ResumeCallback", "frameworks/keras/resume"),
            ("NanGuard", "frameworks/keras/nan_guard"),
            ("load_keras", "frameworks/keras/__init__"),
        ),
    ),
    Part(
        "streamd.frameworks.torch",
        "",
        (
            ("loader", "frameworks/torch/__init__"),
            ("Loader", "frameworks/torch/__init__"),
            ("normalization", "frameworks/torch/__init__"),
            ("tensor", "frameworks/torch/__init__"),
        ),
    ),
    Part("streamd.frameworks.torch.lightning", "", (("ReceiptCallback", "frameworks/torch/lightning"),)),
    Part(
        "streamd.frameworks.transformers",
        "",
        (("StreamCallback", "frameworks/transformers"), ("find_checkpoint", "frameworks/transformers")),
    ),
    Part("streamd.frameworks.jax", "", (("array", "frameworks/jax"), ("normalization", "frameworks/jax"))),
    Part("streamd.frameworks.tensorflow", "", (("tensor", "frameworks/tensorflow"),)),
    Part(
        "streamd.frameworks.receipt_file",
        "",
        (("ReceiptFile", "frameworks/receipt_file"), ("receipt_file_path", "frameworks/receipt_file")),
    ),
)


@cache
def _parse(file: str) -> ast.Module:
    return ast.parse((ROOT / "streamd" / f"{file}.py").read_text(encoding="utf-8"))


def _find_definition(name: str, file: str) -> Definition:
    """Returns where a name is defined."""
    tree = _parse(file)
    for node in tree.body:
        if isinstance(node, Definition) and node.name == name:
            return node
    # A class that is made at its first use, since its base is imported then: its docstring is an item of its namespace.
    for each in ast.walk(tree):
        if (
            isinstance(each, ast.Call)
            and each.args
            and isinstance(each.args[0], ast.Constant)
            and each.args[0].value == name
        ):
            return _read_built_class(name, tree)
    raise ValueError(f"streamd/{file}.py defines no {name}")


def _read_built_class(name: str, tree: ast.Module) -> ast.ClassDef:
    """Returns a class as if it were written down: the docstring in its namespace, and the methods of its mixin."""
    (text,) = (
        value
        for each in ast.walk(tree)
        if isinstance(each, ast.Dict)
        for key, value in zip(each.keys, each.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "__doc__"
    )
    (mixin,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    built = copy(mixin)
    built.name = name
    built.body = [ast.Expr(text), *mixin.body[1:]]
    return built


def format_docstring(text: str) -> str:
    """Returns a docstring as Markdown: its lists of names become lists, what is indented becomes code."""
    return "\n\n".join(_format_paragraph(each) for each in re.split(r"\n\s*\n", text.strip("\n")))


def _format_paragraph(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if all(line.startswith("    ") for line in lines):
        code = "\n".join(line.removeprefix("    ") for line in lines)
        return f"```python\n{code}\n```"
    # A list, perhaps with a sentence before it; an indented line goes on with the item above.
    out: list[str] = []
    is_item = False
    for line in lines:
        if item := _ITEM.fullmatch(line):
            if out and not is_item:
                out.append("")
            out.append(f"- **{item['names']}**: {_escape(item['text'])}")
            is_item = True
        elif is_item and line.startswith(" "):
            out.append(f"  {_escape(line.strip())}")
        else:
            if is_item:
                out.append("")
            out.append(_escape(line.strip()))
            is_item = False
    return "\n".join(out)


def _escape(text: str) -> str:
    """Outside of code a star or an angle bracket stands for itself."""
    return "".join(part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in _CODE.split(text))


def format_signature(name: str, function: ast.FunctionDef, *, is_method: bool) -> str:
    """Returns a call as code, with types and defaults; one argument a line where it would be long."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(given.defaults)), *given.defaults]
    shown = [_format_argument(each, value) for each, value in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        shown.insert(len(given.posonlyargs), "/")
    shown = shown[is_method:]
    if given.vararg:
        shown.append(f"*{_format_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [_format_argument(each, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        shown.append(f"**{_format_argument(given.kwarg, None)}")
    returns = f" -> {ast.unparse(function.returns)}" if function.returns and function.name != "__init__" else ""
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) > _WIDTH:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){returns}"
    return f"```python\n{line}\n```"


def _format_argument(argument: ast.arg, default: ast.expr | None) -> str:
    typed = f"{argument.arg}: {ast.unparse(argument.annotation)}" if argument.annotation else argument.arg
    if default is None:
        return typed
    return f"{typed}{' = ' if argument.annotation else '='}{ast.unparse(default)}"


def _list_members(definition: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Yields the methods and properties that users call; a framework calls those that begin with `on_`."""
    for node in definition.body:
        if (
            isinstance(node, ast.FunctionDef)
            and not node.name.startswith(("_", "on_"))
            and ast.get_docstring(node)
            and not any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in node.decorator_list)
        ):
            yield node


def _format_class(name: str, definition: ast.ClassDef) -> Iterator[str]:
    init = next((n for n in definition.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    docstring = ast.get_docstring(definition) or ""
    # Those that streamd makes itself are described; a user calls the constructors of callbacks and files.
    if init and not docstring.startswith(("A connection", "A subscription", "A stream in place")):
        yield format_signature(name, init, is_method=True)
    yield format_docstring(docstring)
    fields = [
        f"{node.target.id}: {ast.unparse(node.annotation)}"
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"
    ]
    if fields:
        yield "\n".join(["Its fields:", "", "```python", *fields, "```"])
    for member in _list_members(definition):
        yield f"#### {name}.{member.name}"
        decorators = {ast.unparse(each) for each in member.decorator_list}
        if decorators & {"property", "cached_property"}:
            yield f"A property: `{ast.unparse(member.returns) if member.returns else 'Any'}`."
        else:
            is_method = "staticmethod" not in decorators
            yield format_signature(f"{name}.{member.name}", member, is_method=is_method)
        yield format_docstring(ast.get_docstring(member) or "")


def _format_part(part: Part) -> Iterator[str]:
    yield f"## {part.module}"
    module = part.module.partition(":")[0]
    file = ROOT.joinpath(*module.split("."))
    source = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    yield part.intro or format_docstring(ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "")
    for name, where in part.names:
        definition = _find_definition(name, where)
        yield f"### {name}"
        if isinstance(definition, ast.ClassDef):
            yield from _format_class(name, definition)
        else:
            yield format_signature(name, definition, is_method=False)
            yield format_docstring(ast.get_docstring(definition) or "")


def build_page(parts: Sequence[Part] = PARTS) -> str:
    """Returns the page."""
    return _HEAD + "\n\n".join(block for part in parts for block in _format_part(part) if block) + "\n"


if __name__ == "__main__":
    PAGE.write_text(build_page(), encoding="utf-8")
