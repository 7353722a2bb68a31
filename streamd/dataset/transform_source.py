"""Finds the source of a transform, and computes its digest: the daemon's side, which runs none of it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from streamd.core.host import read_regular_file
from streamd.core.spec import IdentityDigest
from streamd.errors import ConfigError, suggest_name
from streamd.ipc.worker_messages import TransformPlace
from streamd.limits import MAX_TRANSFORM_SOURCES_BYTES


def find_transform_source(text: str, folder: Path) -> TransformPlace:
    """Returns the place of `module:function`, a module in `folder` or an installed one. Raises ConfigError."""
    module, _, function = text.partition(":")
    return TransformPlace(module, function, str(folder), compute_source_digest(module, folder))


def compute_source_digest(module: str, folder: Path) -> str:
    """Returns a digest of the module's source, and of everything that it imports from `folder`, to any depth.

    For an installed module only its own file counts. Raises ConfigError when there is no such module, or its file
    cannot be read.
    """
    sources = find_source_files(module, folder) or {module: _find_installed_file(module, folder)}
    digest = IdentityDigest()
    digest.add_part("streamd transform source 1")
    digest.add_part(module)
    for name, path in sorted(sources.items()):
        digest.add_part(name)
        digest.add_part(_read_source(path))
    return digest.hex_text()


def find_module_file(module: str, folder: Path) -> Path | None:
    """Returns the file of a module in `folder`, if it is there."""
    stem = folder.joinpath(*module.split("."))
    return next((path for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py") if path.is_file()), None)


def find_source_files(module: str, folder: Path) -> dict[str, Path]:
    """Returns the files of `folder` that importing a module runs, by module; none when the module lies elsewhere."""
    found: dict[str, Path] = {}
    wanted = [module]
    while wanted:
        parts = wanted.pop().split(".")
        # Importing a.b runs the packages a and a.b, so each prefix counts.
        for name in (".".join(parts[: count + 1]) for count in range(len(parts))):
            path = find_module_file(name, folder)
            if path is not None and name not in found:
                found[name] = path
                wanted += _list_imports(path, name)
    return found if module in found else {}


def _list_imports(path: Path, module: str) -> Iterator[str]:
    """Yields the modules that a file names in its imports; some of them may be functions."""
    try:
        tree = ast.parse(_read_source(path))
    except (SyntaxError, ValueError):  # importing it reports that
        return
    parts = module.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from .BASE import` counts from the package that the module is in, or is.
            package = parts[: len(parts) - node.level + (path.name == "__init__.py")] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _find_installed_file(module: str, folder: Path) -> Path:
    """Returns the file of a module on Python's path.

    Searches packages without importing them, which would run them here.
    """
    importlib.invalidate_caches()
    first, *rest = module.split(".")
    try:
        spec = find_spec(first)
    except ValueError:  # for modules without a spec, such as __main__
        spec = None
    for count in range(len(rest)):
        inner = None if spec is None else spec.submodule_search_locations
        spec = None if inner is None else PathFinder.find_spec(".".join([first, *rest[: count + 1]]), inner)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        hint = suggest_name(first, (path.stem for path in folder.glob("*.py")))
        raise ConfigError(f"there is no module {module!r} in {str(folder)!r} or on Python's path{hint}")
    return Path(spec.origin)


def _read_source(path: Path) -> bytes:
    try:
        return read_regular_file(path, MAX_TRANSFORM_SOURCES_BYTES)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
