"""Streams for each framework. No framework is imported before a function that needs it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from streamd.errors import MissingExtraError


def import_library(library: str, extra: str, purpose: str) -> Any:
    """Imports and returns the module `library`: an import takes seconds, and the extra may not be installed.

    Raises MissingExtraError, which names the missing module: the library itself, or one that it needs.
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or library, extra, purpose) from error
