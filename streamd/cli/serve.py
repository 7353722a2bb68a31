"""`streamd serve`: the daemon, in the foreground."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from streamd.errors import MissingExtraError


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
    try:
        from streamd import logs  # noqa: PLC0415 - heavy libraries only for the daemon, not for --help
        from streamd.activation import handed_over  # noqa: PLC0415 - as above
        from streamd.daemon import Daemon  # noqa: PLC0415 - as above
        from streamd.notify import Manager  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd serve") from error
    for library in ("PIL", "aiofiles", "cv2", "simplejpeg"):  # the workers', which would die of it one after the other
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, "serve", "streamd serve")
    logs.configure(level=logging.DEBUG if verbose else logging.INFO, as_json=log_json)

    async def run() -> None:
        manager, handed = Manager.of(os.environ), handed_over(os.environ)
        await Daemon(config, rescan=rescan, manager=manager, handed=handed).run()

    asyncio.run(run())
