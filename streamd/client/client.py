"""The door: one client an endpoint, any number of streams."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Literal, Self, TypeVar

import zmq

from streamd import endpoint as places
from streamd.client.io import make_socket
from streamd.client.session import Wish
from streamd.client.stream import Stream
from streamd.errors import ConfigError, ConnectError, ForkedClientError, RefusedError, near_name
from streamd.limits import CONNECT_TIMEOUT_S, DEFAULT_CREDIT, MAX_CREDIT, MIN_CREDIT
from streamd.messages import AskStats, AskStreams, ClientMessage, Stats, Streams, Transport
from streamd.spec import StreamSpec, Uneven, read_token
from streamd.wire import NOBODY, pack, unpack_daemon

Answer = TypeVar("Answer", Streams, Stats)


def connect(
    endpoint: str | None = None,
    *,
    timeout: float = CONNECT_TIMEOUT_S,
    patience: float | None = None,
    curve: object = None,
) -> Client:
    """A client of the daemon at `endpoint` (default: $STREAMD_ENDPOINT, then the default places).

    `timeout` in seconds bounds the first answer; `patience` in seconds bounds how long `next()` waits for a daemon that
    went away, None waits for ever. Raises ConnectError when no daemon answers.
    """
    if curve is not None:
        raise ConfigError("curve keys are for tcp:// endpoints, which this version does not serve")
    client = Client(places.find(endpoint), timeout, patience)
    client.streams()
    return client


class Client:
    """Made by `connect`. Streams opened through it are closed with it."""

    def __init__(self, endpoint: str, timeout_s: float, patience_s: float | None) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._pid = os.getpid()
        self._streams: list[Stream] = []

    def streams(self) -> dict[str, StreamSpec]:
        """What the daemon serves, by name."""
        return self._ask(AskStreams(), Streams).streams

    def stats(self) -> dict[str, dict[str, float]]:
        """The daemon's counters and timings: by group, then by name."""
        return self._ask(AskStats(), Stats).values

    def subscribe(
        self,
        stream: str,
        *,
        epochs: int | None = None,
        rank: int = 0,
        world: int = 1,
        start: str = "begin",
        resume: str | bytes | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        uneven: Uneven | None = None,
        transport: Literal["shared", "inline"] = "shared",
    ) -> Stream:
        """Opens a stream of batches.

        `epochs` counts in total, None runs on. Rank `rank` of `world` takes every world-th batch. `resume` is a token,
        and the stream goes on behind it. `prefetch` is how many batches may be here or on their way at a time.
        `uneven` says what becomes of batches left over when `world` does not divide them: "drop" (counted in the
        receipt) or "pad" (with batches of weight 0; the default where shuffle is none). `transport="inline"` sends
        pixels through the socket, for where memory cannot be shared. A `start` other than "begin" and a `batch_size`
        other than the stream's are refused: this version does not serve them yet.

        Raises RefusedError (unknown stream, too little memory), TokenError, ConnectError.
        """
        spec = self._spec(stream)
        _check_served(start, batch_size, spec)
        token = None if resume is None else read_token(resume, spec)
        wish = _wish(spec, epochs, rank, world, uneven, prefetch, transport)
        opened = Stream(self.endpoint, spec, wish, token, self._patience_s)
        try:
            opened.wait_until_open(self._timeout_s)
        except BaseException:
            opened.close()
            raise
        self._streams.append(opened)
        return opened

    def close(self) -> None:
        """Closes every stream opened here."""
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.endpoint}, {len(self._streams)} streams>"

    def _spec(self, name: str) -> StreamSpec:
        known = self.streams()
        if name not in known:
            raise RefusedError(f"no stream {name!r}{near_name(name, known)}; served: {', '.join(known)}")
        return known[name]

    def _ask(self, question: ClientMessage, answer: type[Answer]) -> Answer:
        """One question on a socket of its own, so that no thread and no state are left behind."""
        if self._pid != os.getpid():
            raise ForkedClientError
        deadline_s = time.monotonic() + self._timeout_s
        with zmq.Context(io_threads=1) as context, make_socket(context, self.endpoint) as socket:
            socket.send(pack(NOBODY, question))
            while socket.poll(max(0, int((deadline_s - time.monotonic()) * 1000))):
                _, heard = unpack_daemon(socket.recv_multipart()[0])
                if isinstance(heard, answer):
                    return heard
        raise ConnectError(self.endpoint, f"no answer within {self._timeout_s:g} s; is `streamd serve` running there?")


def _check_served(start: str, batch_size: int | None, spec: StreamSpec) -> None:
    if start != "begin":
        raise ConfigError(f'start={start!r} is not served by this version; leave it "begin"')
    if batch_size not in {None, spec.batch_size}:
        raise ConfigError(
            f"batch_size={batch_size} is not served by this version; "
            f"stream {spec.name!r} has batches of {spec.batch_size}"
        )


def _wish(
    spec: StreamSpec,
    epochs: int | None,
    rank: int,
    world: int,
    uneven: Uneven | None,
    prefetch: int | None,
    transport: Transport,
) -> Wish:
    if not 0 <= rank < world:
        raise ConfigError(f"rank {rank} of world {world}: rank counts from 0 to world - 1")
    if epochs is not None and epochs < 1:
        raise ConfigError(f"epochs {epochs}: at least 1, or None to run on")
    credit = DEFAULT_CREDIT if prefetch is None else prefetch
    if not MIN_CREDIT <= credit <= MAX_CREDIT:
        raise ConfigError(f"prefetch {credit}: between {MIN_CREDIT} and {MAX_CREDIT}")
    rule: Uneven = uneven or ("pad" if spec.shuffle == "none" else "drop")
    return Wish(spec.name, rank, world, epochs, rule, credit, transport)
