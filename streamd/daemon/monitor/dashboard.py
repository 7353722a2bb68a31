"""The dashboard: its page, what goes on, and, to whoever has the token, samples."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

import msgspec
from aiohttp import web

from streamd.core.counters import ProcessStats
from streamd.daemon.monitor.bad_samples import build_bad_sample_page
from streamd.daemon.monitor.http_access import STARTING_TEXT, build_response, build_text_response, is_authorized
from streamd.daemon.monitor.live_feed import LiveFeed
from streamd.daemon.monitor.sample_images import BatchDrawer, ThumbnailCache
from streamd.daemon.monitor.snapshot import MonitoredDaemon, SnapshotBuilder
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import suggest_name

_CONTENT_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_INDEX_NAME: Final = "index.html"
_SAMPLES_LOCKED_TEXT: Final = "pictures, labels and names of files need the token that `streamd status --url` prints"
_NO_STREAMS_TEXT: Final = f"there are no streams yet: {STARTING_TEXT}"


class RequestDeclined(Exception):  # noqa: N818 - no error of ours: whoever asks is told `answer` instead
    """What was asked for is not given."""

    def __init__(self, response: web.Response) -> None:
        super().__init__(response.status)
        self.response = response


class Dashboard:
    """What it answers; `token` opens samples."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._page_files = {
            each.name: each.read_bytes()
            for each in (files("streamd.daemon.monitor") / "page").iterdir()
            if each.is_file()
        }
        self._live_feed = LiveFeed(token)
        self._thumbnails = ThumbnailCache()
        self._daemon: MonitoredDaemon | None = None
        self._batch_drawer: BatchDrawer | None = None

    def build_routes(self) -> list[web.RouteDef]:
        """All that is answered."""
        return [
            web.get("/", self._answer_index),
            web.get("/page/{name}", self._answer_file),
            web.get("/live", self._live_feed.send_events, allow_head=False),
            web.get("/pictures/{stream}", self._answer_next_batch, allow_head=False),
            web.get("/bad/{stream}", self._answer_bad_samples, allow_head=False),
            web.get("/thumbnails/{stream}/{sample:[0-9]{1,18}}", self._answer_thumbnail, allow_head=False),
        ]

    def watch_daemon(self, daemon: MonitoredDaemon, snapshot_builder: SnapshotBuilder, stats: ProcessStats) -> None:
        """From now on it shows this service."""
        self._daemon, self._batch_drawer = daemon, BatchDrawer(daemon.batch_preview, stats)
        self._live_feed.watch_daemon(daemon, snapshot_builder)

    def close(self) -> None:
        """Ends what is being told, and what is waited for: the daemon's end waits for nobody who looks."""
        self._live_feed.close()
        if self._daemon is not None:
            self._daemon.batch_preview.cancel_waiters()

    # --- the page

    async def _answer_index(self, request: web.Request) -> web.Response:
        del request
        return self._build_file_response(_INDEX_NAME)

    async def _answer_file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._page_files:
            raise web.HTTPNotFound
        return self._build_file_response(name)

    def _build_file_response(self, name: str) -> web.Response:
        kind = _CONTENT_TYPES[name[name.rindex(".") :]]
        return build_response(
            200,
            self._page_files[name],
            f"{kind}; charset=utf-8",
            **{"Content-Security-Policy": _CONTENT_SECURITY_POLICY},
        )

    # --- samples

    def _require_stream(self, request: web.Request) -> ServedStream:
        """The stream that is asked for, by somebody who may see it. Raises Declined."""
        if not is_authorized(request.headers.get("Authorization"), self._token):
            raise RequestDeclined(build_text_response(401, _SAMPLES_LOCKED_TEXT, **{"WWW-Authenticate": "Bearer"}))
        if self._daemon is None:
            raise RequestDeclined(build_text_response(503, _NO_STREAMS_TEXT))
        name, known = request.match_info["stream"], self._daemon.streams
        if name not in known:
            raise RequestDeclined(
                build_text_response(404, f"no stream {name!r}{suggest_name(name, known)}; served: {', '.join(known)}")
            )
        return known[name]

    async def _answer_next_batch(self, request: web.Request) -> web.Response:
        name = self._require_stream(request).spec.name
        shown = await self._batch_drawer.draw_next_batch(name) if self._batch_drawer else None
        return build_response(204) if shown is None else build_response(200, shown)

    async def _answer_bad_samples(self, request: web.Request) -> web.Response:
        stream, before = self._require_stream(request), request.query.get("before")
        if before is not None and not _WHOLE_NUMBER.fullmatch(before):
            raise RequestDeclined(build_text_response(400, "before: a whole number, as the answer before has it"))
        some = build_bad_sample_page(
            stream.quarantine.reasons, stream.format_file_name, None if before is None else int(before)
        )
        return build_response(200, msgspec.json.encode(some))

    async def _answer_thumbnail(self, request: web.Request) -> web.Response:
        stream, sample_id = self._require_stream(request), int(request.match_info["sample"])
        if sample_id not in stream.quarantine.reasons:
            raise RequestDeclined(build_text_response(404, "that is no bad sample of the stream"))
        picture = await self._thumbnails.find_or_draw(stream, sample_id)
        return build_response(200, picture, "image/jpeg") if picture else build_response(204)
