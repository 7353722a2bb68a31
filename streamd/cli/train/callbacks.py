"""The user's own callbacks, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd.core.import_function import format_located_error, load_function
from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError, StreamdError
from streamd.frameworks.keras import load_keras

MakeCallback = Callable[[StreamSpec], Any]  # gives a keras.callbacks.Callback


def load_callback(name: str) -> MakeCallback:
    """What `module:name` names, the current directory being importable. Raises ConfigError.

    That is a class of callbacks, which is made without arguments, or a function of the StreamSpec that returns one.
    """
    found = load_function(name, "a callback", "mycallbacks:patience")
    return lambda spec: _build_callback(name, found, spec)


def _build_callback(name: str, found: Callable[..., Any], spec: StreamSpec) -> Any:
    kind = load_keras().callbacks.Callback
    is_class = isinstance(found, type) and issubclass(found, kind)
    try:
        callback = found() if is_class else found(spec)
    except StreamdError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} failed: {format_located_error(error)}") from error
    if not isinstance(callback, kind):
        raise ConfigError(f"{name} must return a keras.callbacks.Callback, and returned {type(callback).__name__}")
    return callback
