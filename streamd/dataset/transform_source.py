"""Where a transform is written, and the digest of that: the daemon's side, which runs none of it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from streamd.core.spec import IdentityDigest
from streamd.errors import ConfigError, suggest_name
from streamd.ipc.worker_messages import TransformPlace


def find_transform_source(text: str, folder: Path) -> TransformPlace:
    """The place of `module:function`, a module in `folder` or one that is installed. Raises ConfigError."""
    module, _, function = text.partition(":")
    return TransformPlace(module, function, str(folder), compute_source_digest(module, folder))


def compute_source_digest(module: str, folder: Path) -> str:
    """A digest of the module's source, and of what it imports from `folder`, to any depth.

    Of an installed one the file alone counts, whatever else is installed with it. Raises ConfigError when there is no
    such module, or its file cannot be read.
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
    """The file of a module in `folder`, if it is there."""
    stem = folder.joinpath(*module.split("."))
    return next((path for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py") if path.is_file()), None)


def find_source_files(module: str, folder: Path) -> dict[str, Path]:
    """The files of `folder` that importing a module runs, by module; none when it lies elsewhere."""
    found: dict[str, Path] = {}
    wanted = [module]
    while wanted:
        parts = wanted.pop().split(".")
        for name in (".".join(parts[: count + 1]) for count in range(len(parts))):
            path = find_module_file(name, folder)
            if path is not None and name not in found:
                found[name] = path
                wanted += _list_imports(path, name)
    return found if module in found else {}


def _list_imports(path: Path, module: str) -> Iterator[str]:
    """The modules that a file names in its imports; some of them may be functions."""
    try:
        tree = ast.parse(_read_source(path))
    except (SyntaxError, ValueError):  # its import will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve_import_base(node, module, is_package=path.name == "__init__.py")
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _resolve_import_base(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    """What `from BASE import` means within a module."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    package = parts[: len(parts) - node.level + is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def _find_installed_file(module: str, folder: Path) -> Path:
    """The file of a module on Python's path. Packages are looked into, never imported: that would run them here."""
    importlib.invalidate_caches()
    first, *rest = module.split(".")
    try:
        spec = find_spec(first)
    except ValueError:  # of modules without one, such as __main__
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
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
