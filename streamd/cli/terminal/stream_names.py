"""The names of streams that a shell offers while a command is typed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import typer

_DAEMON_TIMEOUT_S: Final = 1.0  # somebody has pressed Tab, and waits
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


def complete_stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the streams of the configuration that --config names, else those of the daemon; none after any error."""
    config, endpoint = context.params.get("config"), context.params.get("endpoint")
    try:
        names = _read_configured_names(config) if config else _request_served_names(endpoint)
    except Exception:  # noqa: BLE001 - whatever fails, a shell that completes a word has no use for an error
        return []
    return [name for name in names if name.startswith(incomplete) and _NAME_PATTERN.fullmatch(name)]


def _read_configured_names(config: str | Path) -> Iterable[str]:
    """The streams of a configuration, right or wrong as it may be."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - only when it is needed, and without all that checks a configuration

    data = YAML(typ="safe").load(Path(config).expanduser())
    found = data.get("streams") if isinstance(data, dict) else None
    return map(str, found or ())


def _request_served_names(endpoint: str | None) -> Iterable[str]:
    """The streams of the daemon. Where there is none, that is found out before NumPy and ZeroMQ are loaded."""
    from streamd.ipc.endpoint import find_socket  # noqa: PLC0415 - only when it is needed

    found = find_socket(endpoint)
    from streamd import connect  # noqa: PLC0415 - as above

    with connect(found, timeout=_DAEMON_TIMEOUT_S) as client:
        return list(client.streams())
