"""The daemon behind `streamd.local`, which ends with the process that started it: `python -m streamd.daemon.embedded`.

Standard input brings one line, what to serve; the end of the input stops the daemon. Standard output carries one line
back: that it serves, or why it does not.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from streamd.errors import ConfigError, MissingExtraError, StreamdError
from streamd.ipc.local_daemon import READY_LINE, LocalDaemonRequest
from streamd.ipc.standard_files import fill_closed_standard_descriptors

if TYPE_CHECKING:
    from streamd.config.load import ConfigInput

_request_decoder: Final = msgspec.json.Decoder(LocalDaemonRequest)


async def _serve_until_stdin_closes(
    config_source: ConfigInput, request: LocalDaemonRequest, on_ready: Callable[[], None]
) -> None:
    from streamd.daemon.daemon import Daemon  # noqa: PLC0415 - a missing library is reported in our words
    from streamd.daemon.start_libraries import check_worker_libraries  # noqa: PLC0415 - as above

    check_worker_libraries("streamd.local")
    daemon = Daemon(
        config_source, state=Path(request.folder) / "state", rescan=True, address=request.endpoint, on_ready=on_ready
    )
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), daemon.request_stop)  # nothing more is written there, so readable means ended
    try:
        await daemon.run()
    finally:
        loop.remove_reader(sys.stdin.fileno())


def choose_config_source(request: LocalDaemonRequest) -> ConfigInput:
    """Returns the requested configuration, or one made from the data that the request names. Raises ConfigError."""
    from streamd.daemon.starter.starter_config import LoggedProgress, build_unwritten_config  # noqa: PLC0415 - as above
    from streamd.daemon.starter.survey import names_configuration, names_data  # noqa: PLC0415 - as above

    if isinstance(request.config, dict):
        return request.config
    path = Path(request.config)
    if request.size is not None and names_configuration(path):
        raise ConfigError(
            f"size is for a path of data, and {path} is a configuration; write image: {{size: [height, width]}} in it"
        )
    if request.size is None and not names_data(path):
        return path
    try:
        return build_unwritten_config(path, request.size, LoggedProgress())
    except ConfigError as error:
        raise ConfigError(_rephrase_for_python(str(error))) from error


def _rephrase_for_python(text: str) -> str:
    """An error about data without the names of a command's arguments, which callers of streamd.local do not write."""
    from streamd.daemon.starter.data_survey import PATH_KEY  # noqa: PLC0415 - as above
    from streamd.daemon.starter.survey import CONFIG_REMEDY  # noqa: PLC0415 - as above

    return text.removeprefix(f"{PATH_KEY}: ").replace(CONFIG_REMEDY, "give streamd.local the path of that file")


def _check_config(request: LocalDaemonRequest) -> None:
    """Raises ConfigError for a mistake in the configuration. To load the daemon would take three times as long."""
    from streamd.config.load import CONFIG_SUFFIXES, load_config  # noqa: PLC0415 - as above

    if isinstance(request.config, dict) or Path(request.config).suffix.lower() in CONFIG_SUFFIXES:
        load_config(request.config)


def _run_daemon(request: LocalDaemonRequest) -> int:
    """Serves, and returns an exit status. Writes an error to standard output, or to stderr after READY_LINE."""
    error_output = sys.stdout

    def write_ready_line() -> None:
        nonlocal error_output
        sys.stdout.buffer.write(READY_LINE)
        sys.stdout.flush()
        error_output = sys.stderr

    try:
        _check_config(request)
        from streamd.core import log  # noqa: PLC0415 - as above

        log.configure_logging(level=log.NOTICE)
        asyncio.run(_serve_until_stdin_closes(choose_config_source(request), request, write_ready_line))
    except ModuleNotFoundError as error:
        failure: StreamdError = MissingExtraError(error.name or "a library", "serve", "streamd.local")
    except StreamdError as error:
        failure = error
    else:
        return 0
    error_output.write(str(failure))
    return failure.exit_status


def main() -> None:
    """Runs the process: reads the request, serves it, and removes its folder."""
    fill_closed_standard_descriptors()
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:  # the loop waits for the end of the input
        request = _request_decoder.decode(lines.readline())
    try:
        status = _run_daemon(request)
    finally:
        shutil.rmtree(request.folder, ignore_errors=True)  # the other process may remove it at the same time
    sys.exit(status)


if __name__ == "__main__":
    main()
