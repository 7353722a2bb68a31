"""Imports a function of the user's, named as module:function on a command line."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from streamd.core.text import format_list
from streamd.errors import ConfigError, StreamdError, suggest_name

_SHOWN_FUNCTIONS: Final = 5  # functions that a message lists if none is similar to the missing one


def load_function(name: str, what: str, example: str) -> Callable[..., Any]:
    """Imports and returns the function `module:function`; the current directory is importable.

    `what` and `example` are for the message. Raises ConfigError.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(f"{what} must be module:function, such as {example}, not {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module may exist and import another one that does not. `error.name` is the module that was not found.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"module {module_name!r} cannot be imported: {error}") from error
        hint = suggest_name(module_name, (path.stem for path in Path(here).glob("*.py")))
        raise ConfigError(
            f"there is no module {module_name!r} in {here} or on Python's path; run the command in the folder of the "
            f"module, or install it{hint}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"module {module_name!r} cannot be imported: {format_error_with_source_line(error)}"
        ) from error
    return lookup_function(module, module_name, function_name)


def lookup_function(module: ModuleType, module_name: str, function_name: str) -> Callable[..., Any]:
    """Returns a function of a module that is imported. Raises ConfigError if it has none of this name."""
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [known for known, value in vars(module).items() if inspect.isfunction(value)]
        shown = (
            f"; it has {format_list([repr(each) for each in known], _SHOWN_FUNCTIONS)}" if known else ", nor any other"
        )
        hint = suggest_name(function_name, known) or shown
        raise ConfigError(f"module {module_name!r} has no function {function_name!r}{hint}")
    return function  # type: ignore[no-any-return]  # callable was asked above


def call_user_function(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of the user's. Raises ConfigError, with the line at fault, if it fails."""
    try:
        return function(*arguments)
    except StreamdError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} failed: {format_error_with_source_line(error)}") from error


def format_error_with_source_line(error: Exception) -> str:
    """Returns an error of the user's code with its file and line, since commands show no traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
