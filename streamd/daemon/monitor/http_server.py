"""What is answered over HTTP: the dashboard, /metrics, /healthz, /readyz. Never at the cost of the daemon's life."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from streamd.core import log
from streamd.core.counters import ProcessStats
from streamd.core.text import format_count
from streamd.daemon.monitor.dashboard import Dashboard, Declined
from streamd.daemon.monitor.http_access import STARTING, is_ours, new_token, reply, told
from streamd.daemon.monitor.prometheus import CONTENT_TYPE, Exposition
from streamd.daemon.monitor.snapshot import Sight, Watched
from streamd.errors import ConfigError
from streamd.limits import MAX_MONITOR_CONNECTIONS, MAX_SESSIONS

_KEPT_ALIVE_S: Final = 75.0  # a scrape each minute finds its connection open
_FAREWELL_S: Final = 1.0  # for answers under way when the daemon ends
_STARTING: Final = f"starting: {STARTING}"
_SEE_STATUS: Final = "see streamd status"
_PATHS: Final = "the dashboard at /, /metrics, /healthz and /readyz"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Monitor:
    """Answers at `address`, host:port, from `open` on; it is told what to `watch` when that is there."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = address
        self._host, self._port = host.removeprefix("[").removesuffix("]"), int(port)
        self._service: Watched | None = None
        self._exposition: Exposition | None = None
        self._listener: asyncio.Server | None = None
        self.token = new_token()
        self._dashboard = Dashboard(self.token)
        application = web.Application(middlewares=[self._guard])
        application.router.add_routes(self._dashboard.routes())
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/readyz", self._readiness)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=logging.getLogger("streamd.monitor"),
            keepalive_timeout=_KEPT_ALIVE_S,
            handler_cancellation=True,  # nothing is drawn for a page that was closed
            lingering_time=0.0,  # nobody has a body to send
            shutdown_timeout=_FAREWELL_S,
        )

    @property
    def url(self) -> str:
        """Where it answers, with the port that it got."""
        assert self._listener is not None  # noqa: S101 - whoever asks has opened it
        host, port = self._listener.sockets[0].getsockname()[:2]
        if ipaddress.ip_address(host).is_unspecified:
            host = "localhost" if ":" in host else socket.gethostname()  # whose name may mean the fourth version alone
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def open(self) -> None:
        """Binds the address. Raises ConfigError when that cannot be had."""
        await self._runner.setup()
        host = None if self._host == "*" else self._host
        try:
            self._listener = await asyncio.get_running_loop().create_server(self._meet, host, self._port)
        except OSError as error:
            await self._runner.cleanup()
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror  # else of a name
            raise ConfigError(
                f"monitor: cannot listen at {self._address}: {why}; choose another address:port, or leave monitor out"
            ) from error
        if not all(ipaddress.ip_address(each.getsockname()[0]).is_loopback for each in self._listener.sockets):
            log.notice("monitor.open", "whoever reaches this address may read the figures", address=self._address)

    def _meet(self) -> web.RequestHandler:
        """One more connection, for which others may have to go: those that came with it are only counted by then."""
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None  # noqa: S101 - it is there as long as anybody listens
        loop.call_soon(_thin_out, server)
        return server()

    def watch(self, service: Watched, stats: ProcessStats) -> None:
        """From now on it tells of this service."""
        sight = Sight(service, stats)
        self._service, self._exposition = service, Exposition(sight.look)
        self._dashboard.watch(service, sight, stats)

    async def run(self) -> None:
        """Answers until it is cancelled; nothing is left open when it returns."""
        loop = asyncio.get_running_loop()
        others = loop.get_exception_handler()
        loop.set_exception_handler(lambda loop, context: _contain(loop, context, others))
        try:
            await loop.create_future()
        finally:
            loop.set_exception_handler(others)
            await self.close()

    async def close(self) -> None:
        """Ends all connections; what is being answered has a moment."""
        self._dashboard.close()
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    # --- what is answered

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Nothing for a page of another site, a sentence for whatever is not there."""
        host = request.headers.get("Host")
        if not is_ours(host, (self._host, socket.gethostname())):
            return told(421, "this is not that host: ask by address, by localhost or by this machine's name")
        try:
            response = await handler(request)
        except Declined as declined:
            response = declined.answer
        except web.HTTPNotFound:
            return told(404, f"there is nothing here; there are {_PATHS}")
        except web.HTTPMethodNotAllowed as error:
            return told(405, "only GET and HEAD are answered", Allow=error.headers["Allow"])
        return response

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        if self._exposition is None:
            return told(503, _STARTING)
        return reply(200, await self._exposition.text(), CONTENT_TYPE)

    async def _health(self, request: web.Request) -> web.Response:
        """That it is answered is all there is to it: the loop runs."""
        del request
        return told(200, "ok")

    async def _readiness(self, request: web.Request) -> web.Response:
        del request
        objections, troubles = _readiness_of(self._service)
        if objections:
            return told(503, "\n".join(objections))
        return told(200, f"ready, with {format_count(troubles, 'trouble')}: {_SEE_STATUS}" if troubles else "ready")


def _thin_out(server: web.Server) -> None:
    """Makes room for one connection. There is no password: whoever opens many and says nothing keeps nobody out."""
    for oldest in server.connections[: 1 - MAX_MONITOR_CONNECTIONS]:
        oldest.force_close()


def _readiness_of(service: Watched | None) -> tuple[list[str], int]:
    """Why a trainer that comes now would not be served, nothing if it would; and how many things are wrong besides.

    Those cost nobody his place: a stream that has ended its trainers tries again with the next who comes, a daemon
    whose reload failed serves what it did before, workers that die are replaced. Reasons are left to streamd status,
    since they name files, and whoever reaches the port may ask here.
    """
    if service is None:
        return [_STARTING], 0
    status = service.build_status()
    objections = ["draining: the daemon is going away"] if status.draining else []
    objections += [f"stream {each.name!r} is stopped: {_SEE_STATUS}" for each in status.streams if each.stopped]
    if len(status.sessions) >= MAX_SESSIONS:
        objections.append(f"full: {format_count(len(status.sessions), 'trainer')} are connected, which is the most")
    return objections, len(status.all_troubles)


def _contain(
    loop: asyncio.AbstractEventLoop,
    context: dict[str, Any],
    others: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None,
) -> None:
    """What goes wrong with a connection ends the connection; anything else is the daemon's affair."""
    if isinstance(context.get("protocol"), web.RequestHandler) or "socket" in context:
        log.warning("monitor.failed", context["message"], error=context.get("exception"))
    elif others is not None:
        others(loop, context)
    else:
        loop.default_exception_handler(context)
