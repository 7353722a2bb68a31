"""The libraries that a daemon does not start without, though they are no part of it: for `serve` and for `check`."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import TYPE_CHECKING, Final

from streamd.errors import MissingExtraError

if TYPE_CHECKING:
    from streamd.daemon.monitor.http_server import Monitor  # imports a large library

# Imported by the workers alone, which would die of a missing one, one after the other.
_WORKER_LIBRARIES: Final = ("PIL", "aiofiles", "cv2", "simplejpeg")
_EXTRA: Final = "serve"


def check_worker_libraries(purpose: str) -> None:
    """Looks for the libraries of the workers, and imports none. Raises MissingExtraError for the first that lacks."""
    for library in _WORKER_LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, _EXTRA, purpose)


def import_monitor() -> type[Monitor]:
    """The server of the dashboard, with its library. Raises MissingExtraError."""
    try:
        module = import_module("streamd.daemon.monitor.http_server")
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", _EXTRA, "monitor") from error
    server: type[Monitor] = module.Monitor
    return server
