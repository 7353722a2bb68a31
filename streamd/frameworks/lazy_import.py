"""Frameworks, imported when they are first wanted: they take seconds, and their extra may be missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from streamd.errors import MissingExtraError


def import_library(library: str, extra: str, purpose: str) -> Any:
    """The module `library`. Raises MissingExtraError, which names what is missing: it may be what the library needs."""
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or library, extra, purpose) from error
