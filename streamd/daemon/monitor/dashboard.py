"""The dashboard: its page, what goes on, and, to whoever has the token, samples."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

import msgspec
from aiohttp import web

from streamd.core.counters import ProcessStats
from streamd.daemon.monitor.bad_samples import bad_list
from streamd.daemon.monitor.batch_images import Pictures
from streamd.daemon.monitor.http_access import STARTING, opens, reply, told
from streamd.daemon.monitor.live_feed import Live
from streamd.daemon.monitor.snapshot import Sight, Watched
from streamd.daemon.monitor.thumbnails import Thumbnails
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import suggest_name

_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_WHOLE: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_INDEX: Final = "index.html"
_CLOSED: Final = "pictures, labels and names of files need the token that `streamd status --url` prints"
_STARTING: Final = f"there are no streams yet: {STARTING}"


class Declined(Exception):  # noqa: N818 - no error of ours: whoever asks is told `answer` instead
    """What was asked for is not given."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Dashboard:
    """What it answers; `token` opens samples."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._files = {
            each.name: each.read_bytes()
            for each in (files("streamd.daemon.monitor") / "page").iterdir()
            if each.is_file()
        }
        self._live = Live(token)
        self._thumbnails = Thumbnails()
        self._service: Watched | None = None
        self._pictures: Pictures | None = None

    def routes(self) -> list[web.RouteDef]:
        """All that is answered."""
        return [
            web.get("/", self._index),
            web.get("/page/{name}", self._file),
            web.get("/live", self._live.tell, allow_head=False),
            web.get("/pictures/{stream}", self._leaving, allow_head=False),
            web.get("/bad/{stream}", self._bad, allow_head=False),
            web.get("/thumbnails/{stream}/{sample:[0-9]{1,18}}", self._thumbnail, allow_head=False),
        ]

    def watch(self, service: Watched, sight: Sight, stats: ProcessStats) -> None:
        """From now on it shows this service."""
        self._service, self._pictures = service, Pictures(service.batch_preview, stats)
        self._live.watch(service, sight)

    def close(self) -> None:
        """Ends what is being told, and what is waited for: the daemon's end waits for nobody who looks."""
        self._live.close()
        if self._service is not None:
            self._service.batch_preview.close()

    # --- the page

    async def _index(self, request: web.Request) -> web.Response:
        del request
        return self._page(_INDEX)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._files:
            raise web.HTTPNotFound
        return self._page(name)

    def _page(self, name: str) -> web.Response:
        kind = _TYPES[name[name.rindex(".") :]]
        return reply(200, self._files[name], f"{kind}; charset=utf-8", **{"Content-Security-Policy": _POLICY})

    # --- samples

    def _stream(self, request: web.Request) -> ServedStream:
        """The stream that is asked for, by somebody who may see it. Raises Declined."""
        if not opens(request.headers.get("Authorization"), self._token):
            raise Declined(told(401, _CLOSED, **{"WWW-Authenticate": "Bearer"}))
        if self._service is None:
            raise Declined(told(503, _STARTING))
        name, known = request.match_info["stream"], self._service.streams
        if name not in known:
            raise Declined(told(404, f"no stream {name!r}{suggest_name(name, known)}; served: {', '.join(known)}"))
        return known[name]

    async def _leaving(self, request: web.Request) -> web.Response:
        name = self._stream(request).spec.name
        shown = await self._pictures.next(name) if self._pictures else None
        return reply(204) if shown is None else reply(200, shown)

    async def _bad(self, request: web.Request) -> web.Response:
        stream, before = self._stream(request), request.query.get("before")
        if before is not None and not _WHOLE.fullmatch(before):
            raise Declined(told(400, "before: a whole number, as the answer before has it"))
        some = bad_list(stream.quarantine.reasons, stream.format_file_name, None if before is None else int(before))
        return reply(200, msgspec.json.encode(some))

    async def _thumbnail(self, request: web.Request) -> web.Response:
        stream, sample_id = self._stream(request), int(request.match_info["sample"])
        if sample_id not in stream.quarantine.reasons:
            raise Declined(told(404, "that is no bad sample of the stream"))
        picture = await self._thumbnails.of(stream, sample_id)
        return reply(200, picture, "image/jpeg") if picture else reply(204)
