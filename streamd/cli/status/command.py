"""`streamd status` prints the daemon's status once, `streamd top` shows it live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from streamd.cli.options import CurveSecretOption, CurveServerOption, EndpointOption, JsonOption, find_daemon
from streamd.errors import ConnectError
from streamd.limits import LOOK_TIMEOUT_S

if TYPE_CHECKING:
    from rich.console import Console

    from streamd.cli.status.table import TopFrame
    from streamd.core.status import DaemonStatus

_MIN_INTERVAL_S: Final = 0.1  # between two frames: figures over less time are noise


def status(
    endpoint: EndpointOption = None,
    curve_secret: CurveSecretOption = None,
    curve_server: CurveServerOption = None,
    json: JsonOption = False,
    url: Annotated[bool, typer.Option("--url", help="Print only the dashboard's address.")] = False,
) -> None:
    """Shows which trainers read which streams, how fast they read, and what could be improved.

    Problems come first, each with its remedy. The exit status is 1 if there is any problem: no daemon is running, or
    the daemon is shutting down; a stream has stopped, for example after too many bad samples, or the daemon has
    disconnected its trainers because of a fault; workers keep dying; a receipt is not ok; or a reload has failed. With
    --json, `ok` is false if there are problems, and `troubles` lists them.

    All rates and shares cover the same period, and one line says how long it is. The streams that one process reads,
    such as training and validation, are shown together. Epoch and step show how far a trainer has read, in steps of its
    own batch size. `decodes a batch` shows how well trainers share: 1 means that each batch was decoded once for all of
    them. If this number is high, a line says what to do. The number appears once a trainer has read an epoch. `held`
    shows how many batches a trainer holds, and how many it may hold. A line for each trainer says where the time of its
    last epoch went.

    --url prints the dashboard's address, if `monitor:` is in the configuration. The part after the # gives access to
    pictures, labels and file names until the daemon restarts.

    \b
    Examples:
      streamd status
      streamd status --json | tail -n 1 | jq .streams
      xdg-open "$(streamd status --url)"
      ssh -L 9191:127.0.0.1:9191 HOST            # opens the daemon's port on another machine, for its browser
    """
    from rich.console import Console  # noqa: PLC0415 - only when it is needed, not for --help

    from streamd import connect  # noqa: PLC0415 - as above
    from streamd.cli.status.table import WIDTH_CHARS, build_status_table  # noqa: PLC0415 - as above

    with connect(find_daemon(endpoint, curve_secret, curve_server), timeout=LOOK_TIMEOUT_S) as client:
        if url:
            where = client.dashboard()
            typer.echo(msgspec.json.encode({"url": where}) if json else where)
            return
        now = client.status()
    if json:
        judged = {"ok": not now.all_troubles, "troubles": now.all_troubles}
        typer.echo(msgspec.json.encode({**judged, **msgspec.to_builtins(now)}))
    else:
        console = Console(highlight=False)
        console.width = max(WIDTH_CHARS, console.width)
        console.print(build_status_table(now))
    raise typer.Exit(1 if now.all_troubles else 0)


def top(
    endpoint: EndpointOption = None,
    curve_secret: CurveSecretOption = None,
    curve_server: CurveServerOption = None,
    every: Annotated[str, typer.Option(metavar="DURATION", help="Time between two updates, such as 500ms.")] = "1s",
) -> None:
    """Shows the data pipeline, its bottleneck and the trainers in a live display, until Ctrl-C.

    All rates and shares cover the same period, and one line says how long it is. `step` shows how far a trainer has
    read, in steps of its own batch size. `lag` shows how far the trainer is behind the furthest trainer of the same
    rank, in batches of the stream. `left` is the time until the end of its epoch. `held` shows how many batches it
    holds, and how many it may hold. The line below a trainer's state names what limited its last epoch. If the daemon
    goes away, top waits until it is back.

    If standard output is not a terminal, one frame is printed.

    \b
    Example:
      streamd top --every 5s
    """
    from rich.console import Console  # noqa: PLC0415 - only when it is needed, not for --help

    from streamd import connect  # noqa: PLC0415 - as above
    from streamd.cli.status.table import WIDTH_CHARS, build_top_frame  # noqa: PLC0415 - as above
    from streamd.config.units import parse_seconds  # noqa: PLC0415 - as above

    try:
        seconds = parse_seconds(every)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if seconds < _MIN_INTERVAL_S:
        raise typer.BadParameter(
            f"found {every}: write at least {_MIN_INTERVAL_S:g}s; in less time there is nothing new to show"
        )
    console = Console(highlight=False)
    with connect(find_daemon(endpoint, curve_secret, curve_server), timeout=LOOK_TIMEOUT_S) as client:
        seen = watch_status(client.status, create_interval_waiter(seconds), time.monotonic)
        if sys.stdout.isatty():
            show_live_frames(seen, console)
        else:
            # The figures of the first frame already cover the last seconds.
            console.width = max(WIDTH_CHARS, console.width)
            console.print(build_top_frame(next(seen)))


def watch_status(
    fetch_status: Callable[[], DaemonStatus], wait: Callable[[], None], clock: Callable[[], float]
) -> Iterator[TopFrame]:
    """Yields the daemon's status without end; `wait` returns when the next is due, `clock` returns seconds.

    Raises ConnectError if no daemon answers at first. While one that answered before does not, it yields its last
    status, and for how long it has been away.
    """
    from streamd.cli.status.table import TopFrame  # noqa: PLC0415 - only when it is needed, not for --help
    from streamd.core.status import count_new_bad_samples  # noqa: PLC0415 - as above

    before, status = None, fetch_status()
    while True:
        frame, seen_s = TopFrame(status, count_new_bad_samples(before, status)), clock()
        yield frame
        before = status
        while True:
            wait()
            try:
                status = fetch_status()
                break
            except ConnectError:
                yield replace(frame, away_s=clock() - seen_s)


def show_live_frames(frames: Iterator[TopFrame], console: Console) -> None:
    """Draws each frame over the one before, until Ctrl-C, which is the normal end."""
    from rich.live import Live  # noqa: PLC0415 - only when it is needed, not for --help

    from streamd.cli.status.table import build_top_frame, crop_to_window  # noqa: PLC0415 - as above

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for each in frames:
                live.update(crop_to_window(build_top_frame(each), console), refresh=True)
    except KeyboardInterrupt:
        return


def create_interval_waiter(
    every_s: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> Callable[[], None]:
    """Returns a function that sleeps until the next deadline, every `every_s` seconds; missed deadlines are skipped."""
    due_s = clock()

    def wait_until_due() -> None:
        nonlocal due_s
        now_s = clock()
        due_s = max(due_s + every_s, now_s)
        sleep(due_s - now_s)

    return wait_until_due
