"""Checks and imports libraries without which a daemon does not start, for `serve` and for `check`."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import TYPE_CHECKING, Final

from streamd.errors import MissingExtraError

if TYPE_CHECKING:
    from streamd.daemon.monitor.http_server import Monitor  # imports a large library

# Only the workers import these. Each worker would die of a missing one, so it is found before they start.
_WORKER_LIBRARIES: Final = ("PIL", "aiofiles", "cv2", "simplejpeg")
_EXTRA: Final = "serve"


def check_worker_libraries(purpose: str) -> None:
    """Finds the libraries of the workers without importing them. Raises MissingExtraError for the first missing one."""
    for library in _WORKER_LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, _EXTRA, purpose)


def import_monitor() -> type[Monitor]:
    """Imports the dashboard server with its library, and returns its class. Raises MissingExtraError."""
    try:
        module = import_module("streamd.daemon.monitor.http_server")
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", _EXTRA, "the monitor") from error
    server: type[Monitor] = module.Monitor
    return server
