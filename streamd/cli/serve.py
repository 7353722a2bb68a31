"""`streamd serve`: the daemon, in the foreground."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamd.cli.terminal.run_guarded import print_error
from streamd.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from streamd.daemon.socket_activation import HandedSockets
    from streamd.daemon.systemd import ServiceManager


def serve(
    config: Annotated[Path, typer.Option(metavar="FILE", help="The configuration, config.yaml.")],
    rescan: Annotated[bool, typer.Option("--rescan", help="List the samples anew, though they are known.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")] = False,
) -> None:
    """Serves the streams of a configuration until SIGTERM or Ctrl-C.

    Logs go to stderr, one event a line, as text or as JSON (--log-json); under systemd, to its journal with all fields.

    The samples are listed at the first start and known from then on; --rescan lists them anew after files have changed.
    Trainers that are reading when the daemon ends wait, and go on with the next one where they were.

    SIGHUP has it read the configuration again. Streams that are as before go on; trainers of those that changed get
    StreamChangedError, which says what to do. A mistake is logged and changes nothing. The settings beside `streams`
    need a restart.

    \b
    Examples:
      streamd serve --config config.yaml
      kill -HUP PID      after a change of the file; streamd status tells the pid
    """
    # NumPy would start a thread a core for products of matrices, which neither the daemon nor a worker makes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from streamd.daemon.socket_activation import has_waiting_connection, take_handed_sockets  # noqa: PLC0415 - only for the daemon, not for --help
    from streamd.daemon.systemd import ServiceManager  # noqa: PLC0415 - as above

    manager, handed = ServiceManager.from_environment(os.environ), take_handed_sockets(os.environ)
    with ExitStack() as stack:
        doors = [stack.enter_context(link.dup()) for link in handed.values()]  # the daemon closes those it was given
        try:
            _run_daemon(
                config,
                manager,
                handed,
                rescan=rescan,
                level=logging.DEBUG if verbose else logging.INFO,
                as_json=log_json,
            )
        except ConfigError as error:
            if not has_waiting_connection(doors):
                raise
            print_error("streamd", str(error))
            manager.delay_refused_start(str(error))
            raise typer.Exit(error.exit_status) from error


def _run_daemon(
    config: Path, manager: ServiceManager, handed: HandedSockets, *, rescan: bool, level: int, as_json: bool
) -> None:
    """Runs the daemon until it ends. Raises ConfigError, also where a library is missing."""
    try:
        from streamd.core import log  # noqa: PLC0415 - heavy libraries only for the daemon, not for --help
        from streamd.daemon.daemon import Daemon  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd serve") from error
    for library in ("PIL", "aiofiles", "cv2", "simplejpeg"):  # the workers', which would die of it one after the other
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, "serve", "streamd serve")
    log.configure_logging(level=level, as_json=as_json)

    async def run_until_stopped() -> None:
        await Daemon(config, rescan=rescan, manager=manager, handed_sockets=handed).run()

    asyncio.run(run_until_stopped())
