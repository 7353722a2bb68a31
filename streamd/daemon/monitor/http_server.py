"""The HTTP server: the dashboard, /metrics, /healthz, /readyz. An error of a request never ends the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from importlib.resources import files
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from streamd.core import log
from streamd.core.status import DaemonStatus
from streamd.core.text import format_count
from streamd.daemon.monitor.metrics import CONTENT_TYPE, MetricsExposition
from streamd.daemon.monitor.sample_images import BatchDrawer, ThumbnailCache
from streamd.daemon.monitor.snapshot import MonitoredDaemon, build_bad_sample_page, build_dashboard_view, take_snapshot
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError, suggest_name
from streamd.limits import MAX_MONITOR_CONNECTIONS, MAX_SESSIONS

# --- Access control and response headers.
#
# Samples need a token, which the users of this host get from `streamd status --url`.
#
# The Host header guards against DNS rebinding: a page of another site may point its own name at this daemon, and have
# a browser send requests here. Such a request carries that site's name in its Host header. An IP address cannot be
# another site's name.
#
# Responses are never cached, and browsers must not guess their types.

_BEARER_PREFIX: Final = "Bearer "
JSON_TYPE: Final = "application/json"
STARTING_TEXT: Final = (
    "the samples are being listed, or the workers are starting"  # what a daemon does before it serves
)


def is_authorized(authorization: str | None, token: str) -> bool:
    """Whether an Authorization header carries the token. The time of the comparison reveals nothing about the token."""
    if authorization is None or not authorization.startswith(_BEARER_PREFIX):
        return False
    return hmac.compare_digest(authorization.removeprefix(_BEARER_PREFIX).encode(errors="replace"), token.encode())


def is_own_host_header(host: str | None, names: Collection[str]) -> bool:
    """Whether a Host header is an IP address, `localhost`, one of our `names`, or None.

    None is accepted, since every browser sends the header. Ports do not matter: the request may come by a tunnel.
    """
    if host is None:
        return True
    name, colon, port = host.rpartition(":")
    if not colon or (port and not (port.isascii() and port.isdecimal())):
        name = host
    name = name.lower().removesuffix(".")
    if name in {"localhost", *(each.lower() for each in names)}:
        return True
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def build_text_response(status: int, text: str, **headers: str) -> web.Response:
    """Builds a response of one line of plain text."""
    return build_http_response(status, f"{text}\n".encode(), "text/plain; charset=utf-8", **headers)


def build_http_response(status: int, body: bytes = b"", content_type: str = JSON_TYPE, **headers: str) -> web.Response:
    """Builds a response with `body` of type `content_type` and the headers of every response."""
    return web.Response(status=status, body=body, headers={**build_response_headers(content_type), **headers})


def build_response_headers(content_type: str) -> dict[str, str]:
    """Returns the headers of every response."""
    return {
        "Content-Type": content_type,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Server": "streamd",
    }


# --- Events for open dashboards, one a second.

_EVENT_INTERVAL_S: Final = 1.0
_MIN_SNAPSHOT_INTERVAL_S: Final = 0.5  # pages that are due within this time receive the same event
_MAX_SNAPSHOT_AGE_S: Final = 5.0  # changes since an older snapshot say little about now
_REDACTED_TEXT: Final = "see `streamd status`, or this page with its token"


class LiveFeed:
    """Sends events to open pages. Takes one snapshot for all of them, and none while no page is open."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.daemon: MonitoredDaemon | None = None  # the one to report on, once there is one
        self._host = socket.gethostname()
        self._last_status: DaemonStatus | None = None
        self._last_status_s = -_MAX_SNAPSHOT_AGE_S
        # One event in two versions: with the reasons that may name files, and for requests without token.
        self._whole_event = self._discreet_event = b""
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ends all event streams."""
        self._closing.set()

    async def stream_events(self, request: web.Request) -> web.StreamResponse:
        """Streams server-sent events, one a second, until the page is closed or the daemon ends.

        Events may name files only for a request with the token.
        """
        whole = is_authorized(request.headers.get("Authorization"), self._token)
        response = web.StreamResponse(
            headers={**build_response_headers("text/event-stream"), "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        try:
            while not self._closing.is_set():
                await response.write(self.encode_current_event(is_full=whole))
                # Waits for the end instead of sleeping, so that an open page does not delay it.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EVENT_INTERVAL_S):
                        await self._closing.wait()
        except ConnectionResetError:
            pass  # the page was closed
        return response

    def encode_current_event(self, *, is_full: bool) -> bytes:
        """Returns the event of now, in full or without the reasons that may name files."""
        if self.daemon is None:
            return _encode_event({"starting": STARTING_TEXT})
        now_s = time.monotonic()
        if now_s >= self._last_status_s + _MIN_SNAPSHOT_INTERVAL_S:
            # All pages share one previous status: how many pages are open changes no count.
            before = self._last_status if now_s < self._last_status_s + _MAX_SNAPSHOT_AGE_S else None
            snapshot, streams = take_snapshot(self.daemon), self.daemon.streams
            status = self._last_status = snapshot.status
            self._last_status_s = now_s
            whole = discreet = _encode_event(build_dashboard_view(before, snapshot, streams, self._host))
            # The reasons why streams are stopped or failed name files. Nearly always there is none to redact, and one
            # encoding serves both kinds of requests.
            if any(each.stopped or each.failed for each in status.streams):
                redacted = tuple(
                    replace(each, stopped=each.stopped and _REDACTED_TEXT, failed=each.failed and _REDACTED_TEXT)
                    for each in status.streams
                )
                snapshot = replace(snapshot, status=replace(status, streams=redacted))
                discreet = _encode_event(build_dashboard_view(before, snapshot, streams, self._host))
            self._whole_event, self._discreet_event = whole, discreet
        return self._whole_event if is_full else self._discreet_event


def _encode_event(value: object) -> bytes:
    """Encodes a server-sent event. A line break would end it, and encoded JSON has none."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


# --- The dashboard's page, and the server.

_CONTENT_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_INDEX_NAME: Final = "index.html"
_SAMPLES_LOCKED_TEXT: Final = "pictures, labels and names of files need the token that `streamd status --url` prints"
_NO_STREAMS_TEXT: Final = f"there are no streams yet: {STARTING_TEXT}"
_TOKEN_BYTES: Final = 24
_KEEP_ALIVE_S: Final = 75.0  # a scraper that comes once a minute finds its connection open
_SHUTDOWN_TIMEOUT_S: Final = 1.0  # for responses under way when the daemon ends
_STARTING_LINE: Final = f"starting: {STARTING_TEXT}"
_SEE_STATUS_TEXT: Final = "see streamd status"
_PATHS_TEXT: Final = "the dashboard at /, /metrics, /healthz and /readyz"

HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RequestDeclined(Exception):  # noqa: N818 - not an error: `response` is sent instead of what was requested
    """The request is answered with `response`, a line of plain text, instead of what it requests."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(status)
        self.response = build_text_response(status, text, **headers)


class Monitor:
    """The HTTP server at `address`, host:port. Answers that it is starting until `set_monitored_daemon` is called.

    Samples, and events that name files, need its `token`.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = address
        self._host, self._port = host.removeprefix("[").removesuffix("]"), int(port)
        self._daemon: MonitoredDaemon | None = None
        self._exposition: MetricsExposition | None = None
        self._batch_drawer: BatchDrawer | None = None
        self._listening_server: asyncio.Server | None = None
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        # Read once: a request chooses among these names, so no path of a request ever reaches the file system.
        self._page_files = {
            each.name: each.read_bytes()
            for each in (files("streamd.daemon.monitor") / "page").iterdir()
            if each.is_file()
        }
        self._live_feed = LiveFeed(self.token)
        self._thumbnails = ThumbnailCache()
        application = web.Application(middlewares=[self._check_host_and_answer])
        application.router.add_routes(
            [
                web.get("/", self._answer_page_file),
                web.get("/page/{name}", self._answer_page_file),
                web.get("/live", self._live_feed.stream_events, allow_head=False),
                web.get("/pictures/{stream}", self._answer_next_batch, allow_head=False),
                web.get("/bad/{stream}", self._answer_bad_samples, allow_head=False),
                web.get("/thumbnails/{stream}/{sample:[0-9]{1,18}}", self._answer_thumbnail, allow_head=False),
                web.get("/metrics", self._answer_metrics),
                web.get("/healthz", self._answer_health),
                web.get("/readyz", self._answer_readiness),
            ]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=logging.getLogger("streamd.monitor"),
            keepalive_timeout=_KEEP_ALIVE_S,
            handler_cancellation=True,  # draws nothing for a page that was closed
            lingering_time=0.0,  # requests have no body to wait for
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )

    @property
    def url(self) -> str:
        """The URL at which it listens, with the port that it was given."""
        assert self._listening_server is not None  # noqa: S101 - callers have opened it
        host, port = self._listening_server.sockets[0].getsockname()[:2]
        if ipaddress.ip_address(host).is_unspecified:
            host = "localhost" if ":" in host else socket.gethostname()  # a host's name may resolve to IPv4 alone
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start_listening(self) -> None:
        """Binds the address. Raises ConfigError if that fails."""
        await self._runner.setup()
        host = None if self._host == "*" else self._host
        try:
            self._listening_server = await asyncio.get_running_loop().create_server(
                self._create_connection_handler, host, self._port
            )
        except OSError as error:
            await self._runner.cleanup()
            # Errors of name resolution have negative numbers and a text of their own.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise ConfigError(
                f"monitor: cannot listen on {self._address}: {why}; choose another address:port, or leave monitor out"
            ) from error
        if not all(ipaddress.ip_address(each.getsockname()[0]).is_loopback for each in self._listening_server.sockets):
            log.notice("monitor.open", "anyone who can reach this address can read the figures", address=self._address)

    def _create_connection_handler(self) -> web.RequestHandler:
        """Returns the protocol of a new connection, and schedules the closing of the oldest ones if there are many.

        Closing waits for the next turn of the loop, when connections that were accepted in this turn are counted.
        """
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None  # noqa: S101 - set as long as the runner listens
        loop.call_soon(_close_oldest_connections, server)
        return server()

    def set_monitored_daemon(self, daemon: MonitoredDaemon) -> None:
        """Reports on this daemon from now on."""
        self._daemon, self._exposition = daemon, MetricsExposition(partial(take_snapshot, daemon))
        self._batch_drawer = BatchDrawer(daemon.batch_preview, daemon.stats)
        self._live_feed.daemon = daemon

    async def run(self) -> None:
        """Answers requests until it is cancelled, then closes all connections."""
        loop = asyncio.get_running_loop()
        # The daemon's own handler ends the daemon. Errors of HTTP connections are filtered out before it, and only
        # while this server runs.
        others = loop.get_exception_handler()
        loop.set_exception_handler(lambda loop, context: _handle_loop_error(loop, context, others))
        try:
            await loop.create_future()
        finally:
            loop.set_exception_handler(others)
            await self.close()

    async def close(self) -> None:
        """Closes all connections; responses under way have _SHUTDOWN_TIMEOUT_S to finish."""
        # Event streams and requests that wait for a batch come first, which would otherwise run into the timeout.
        self._live_feed.close()
        if self._daemon is not None:
            self._daemon.batch_preview.cancel_waiters()
        if self._listening_server is not None:
            self._listening_server.close()
        await self._runner.cleanup()

    # --- what is answered

    @web.middleware
    async def _check_host_and_answer(self, request: web.Request, handler: HttpHandler) -> web.StreamResponse:
        """Refuses requests under a foreign Host, and answers with a sentence where there is nothing to answer with."""
        host = request.headers.get("Host")
        # Checked before every handler, since metrics are not for pages of other sites either.
        if not is_own_host_header(host, (self._host, socket.gethostname())):
            return build_text_response(
                421, "this machine does not answer for that host name: use its address, localhost or its own name"
            )
        try:
            response = await handler(request)
        except RequestDeclined as declined:
            response = declined.response
        except web.HTTPNotFound:
            return build_text_response(404, f"there is nothing here; this server has {_PATHS_TEXT}")
        except web.HTTPMethodNotAllowed as error:
            return build_text_response(405, "only GET and HEAD are answered", Allow=error.headers["Allow"])
        return response

    # --- the page

    async def _answer_page_file(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", _INDEX_NAME)
        if name not in self._page_files:
            raise web.HTTPNotFound
        kind = _CONTENT_TYPES[name[name.rindex(".") :]]
        return build_http_response(
            200,
            self._page_files[name],
            f"{kind}; charset=utf-8",
            **{"Content-Security-Policy": _CONTENT_SECURITY_POLICY},
        )

    # --- samples

    def _find_authorized_stream(self, request: web.Request) -> ServedStream:
        """Returns the stream that a request names. Raises RequestDeclined, also if the request lacks the token."""
        # The token comes first: without it a request cannot find out which streams there are.
        if not is_authorized(request.headers.get("Authorization"), self.token):
            raise RequestDeclined(401, _SAMPLES_LOCKED_TEXT, **{"WWW-Authenticate": "Bearer"})
        if self._daemon is None:
            raise RequestDeclined(503, _NO_STREAMS_TEXT)
        name, known = request.match_info["stream"], self._daemon.streams
        if name not in known:
            served = f"{', '.join(known)}{suggest_name(name, known)}"
            raise RequestDeclined(404, f"there is no stream {name!r}; the daemon serves: {served}")
        return known[name]

    async def _answer_next_batch(self, request: web.Request) -> web.Response:
        name = self._find_authorized_stream(request).spec.name
        shown = await self._batch_drawer.draw_next_sent_batch(name) if self._batch_drawer else None
        return build_http_response(204) if shown is None else build_http_response(200, shown)

    async def _answer_bad_samples(self, request: web.Request) -> web.Response:
        stream, before = self._find_authorized_stream(request), request.query.get("before")
        if before is not None and not _WHOLE_NUMBER.fullmatch(before):
            raise RequestDeclined(400, "before: write a whole number, as given in the previous answer")
        some = build_bad_sample_page(
            stream.quarantine.reasons, stream.format_file_name, None if before is None else int(before)
        )
        return build_http_response(200, msgspec.json.encode(some))

    async def _answer_thumbnail(self, request: web.Request) -> web.Response:
        stream, sample_id = self._find_authorized_stream(request), int(request.match_info["sample"])
        if sample_id not in stream.quarantine.reasons:
            raise RequestDeclined(404, "that is not a bad sample of the stream")
        picture = await self._thumbnails.get_or_draw_thumbnail(stream, sample_id)
        return build_http_response(200, picture, "image/jpeg") if picture else build_http_response(204)

    # --- figures, health and readiness

    async def _answer_metrics(self, request: web.Request) -> web.Response:
        del request
        if self._exposition is None:
            return build_text_response(503, _STARTING_LINE)
        return build_http_response(200, await self._exposition.encode_metrics(), CONTENT_TYPE)

    async def _answer_health(self, request: web.Request) -> web.Response:
        """Answers `ok`: an answer at all shows that the event loop runs."""
        del request
        return build_text_response(200, "ok")

    async def _answer_readiness(self, request: web.Request) -> web.Response:
        """Answers why a new trainer would not be served, or that it would.

        Other troubles refuse no trainer: a stream that ended its trainers tries again with the next one, a daemon whose
        reload failed serves what it served before, and workers that die are replaced.
        """
        del request
        if self._daemon is None:
            return build_text_response(503, _STARTING_LINE)
        status = self._daemon.build_status()
        objections = ["draining: the daemon is shutting down"] if status.draining else []
        # Reasons may name files, and anyone who can reach the port may ask, so only streamd status shows them.
        objections += [
            f"stream {each.name!r} is stopped: {_SEE_STATUS_TEXT}" for each in status.streams if each.stopped
        ]
        count = len(status.sessions)
        if count >= MAX_SESSIONS:
            objections.append(f"full: {format_count(count, 'trainer')} are connected, which is the limit")
        if objections:
            return build_text_response(503, "\n".join(objections))
        troubles = len(status.all_troubles)
        return build_text_response(
            200, f"ready, with {format_count(troubles, 'trouble')}: {_SEE_STATUS_TEXT}" if troubles else "ready"
        )


def _close_oldest_connections(server: web.Server) -> None:
    """Makes room for one connection.

    Without this, a client that opens many connections and sends nothing would keep others out.
    """
    for oldest in server.connections[: 1 - MAX_MONITOR_CONNECTIONS]:
        oldest.force_close()


def _handle_loop_error(
    loop: asyncio.AbstractEventLoop,
    context: dict[str, Any],
    fallback: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None,
) -> None:
    """Logs an error of an HTTP connection, which ends that connection alone; passes any other error to `fallback`."""
    if isinstance(context.get("protocol"), web.RequestHandler) or "socket" in context:
        log.warning("monitor.failed", context["message"], error=context.get("exception"))
    elif fallback is not None:
        fallback(loop, context)
    else:
        loop.default_exception_handler(context)
