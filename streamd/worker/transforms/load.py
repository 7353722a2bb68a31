"""Imports a transform into a worker."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from PIL import Image, ImageFile

from streamd.core.import_function import lookup_function
from streamd.dataset.transform_source import compute_source_digest, find_module_file, find_source_files
from streamd.errors import ConfigError
from streamd.ipc.worker_messages import TransformPlace

Function = Callable[[Any, dict[str, Any], Any], Any]

_LIBRARIES: Final = "site-packages"  # of an environment in the same folder
# By one of them Pillow would invent what a file lacks, by the other make pictures of any size.
_SWITCHES: Final = ((ImageFile, "LOAD_TRUNCATED_IMAGES"), (Image, "MAX_IMAGE_PIXELS"))


def load_transform(place: TransformPlace) -> Function:
    """The function at a place. What is imported stays: a process can load one version of a module only.

    Raises ConfigError when there is none, its module cannot be imported, or its source is not that of the place.
    """
    folder = Path(place.folder)
    _check_source(place, folder)
    switches = [getattr(*switch) for switch in _SWITCHES]
    module = _import_module(place.module, folder)
    if turned := _restore_switches(switches):
        del sys.modules[module.__name__]  # it shall be refused the next time, too
        raise ConfigError(
            f"module {place.module!r} sets {' and '.join(turned)} where it is imported, and the decoder would go by "
            "it: take that out"
        )
    _check_source(place, folder)  # again: it may have been written meanwhile
    _check_module_names(place.module, folder)
    return lookup_function(module, place.module, place.function)


def _check_source(place: TransformPlace, folder: Path) -> None:
    """What is imported must be what the daemon has read, or a worker that starts later would make other pixels."""
    if compute_source_digest(place.module, folder) != place.digest:
        raise ConfigError(
            f"the source of transform {place.module!r} was changed after streamd had read it: send SIGHUP to use it as "
            "it is now, or put it back"
        )


def _check_module_names(module: str, folder: Path) -> None:
    """What lies in the folder and what was imported by its name must be one, or its source would not be what is run."""
    for name, path in find_source_files(module, folder).items():
        file = getattr(sys.modules.get(name), "__file__", None) if name in sys.modules else str(path)
        if file != str(path) and (name != module or "." in name):
            raise ConfigError(f"{path.name} is hidden by {file or 'a part of Python'}, a library: give it another name")


def _restore_switches(before: Sequence[object]) -> list[str]:
    """Sets Pillow's switches as they were, since the decoder goes by them; those that had been turned."""
    turned = [switch for switch, value in zip(_SWITCHES, before, strict=True) if getattr(*switch) != value]
    for switch, value in zip(_SWITCHES, before, strict=True):
        setattr(*switch, value)
    return [f"{place.__name__}.{name}" for place, name in turned]


def _import_module(name: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a file named like a library would hide it from the rest of the worker
    sys.dont_write_bytecode = True  # compiled files go by seconds and sizes: an edit could be missed
    importlib.invalidate_caches()
    try:
        file = None if "." in name else find_module_file(name, folder)
        return importlib.import_module(name) if file is None else _import_file(file)
    except BaseException as error:
        raise ConfigError(f"module {name!r} cannot be imported: {format_user_error(error, folder)}") from error


def _import_file(file: Path) -> ModuleType:
    """The module in a file, under a name that no library has."""
    name = f"transform@{file}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    assert spec is not None  # noqa: S101 - its suffix is .py
    assert spec.loader is not None  # noqa: S101 - as above
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def format_user_error(error: BaseException, folder: Path) -> str:
    """What a user's program raised, and the line of theirs that it came from: `ValueError at augment.py:12: words`."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}{_format_user_line(error, folder)}{f': {words}' if words else ''}"


def _format_user_line(error: BaseException, folder: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {_shorten_path(error.filename, folder)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if Path(frame.filename).is_relative_to(folder) and _LIBRARIES not in frame.filename
    ]
    if not own:
        return ""
    return f" at {_shorten_path(own[-1].filename, folder)}:{own[-1].lineno}"


def _shorten_path(filename: str, folder: Path) -> str:
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else filename
