"""The door: one client an endpoint, any number of streams."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Literal, NoReturn, Self, TypeVar

import zmq

from streamd.client.batch import Batch
from streamd.client.ranks import find_rank
from streamd.client.rebatch import BatchSplit
from streamd.client.session import Subscription
from streamd.client.sockets import is_socket_listening, open_dealer_socket
from streamd.client.stream import Stream
from streamd.client.trainer_name import parse_trainer_name
from streamd.client.waiting import AbsenceReporter
from streamd.core.sampler import PAD_ID
from streamd.core.spec import Cursor, StreamSpec, UnevenPolicy
from streamd.core.status import DaemonStatus
from streamd.core.token import parse_token_for_rank
from streamd.errors import (
    ClosedError,
    ConfigError,
    ConnectError,
    ForkedClientError,
    RefusedError,
    StreamdError,
    TokenError,
    suggest_name,
)
from streamd.ipc import endpoint as places
from streamd.ipc.frames import EMPTY_HEADER, decode_daemon_frame, encode_frame
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    ClientMessage,
    MonitorAt,
    Names,
    Refused,
    Stats,
    StatusNow,
    Streams,
    Transport,
)
from streamd.limits import (
    ASK_AGAIN_S,
    CONNECT_TIMEOUT_S,
    DEFAULT_CREDIT,
    MAX_CREDIT,
    MAX_EPOCHS,
    MAX_NAMES,
    MAX_SESSIONS,
    MIN_CREDIT,
    SHOWN_NAMES_TIMEOUT_S,
)

Answer = TypeVar("Answer", Streams, Stats, StatusNow, MonitorAt, Names)
Start = Literal["begin", "live"] | Mapping[str, int]


def connect(
    endpoint: str | os.PathLike[str] | None = None,
    *,
    timeout: float | None = None,
    patience: float | None = None,
    curve: object = None,
) -> Client:
    """Connects to the daemon at `endpoint`, and returns a client once it has answered.

    endpoint: `ipc://` and the absolute path of the daemon's socket, or that path alone. Default: $STREAMD_ENDPOINT,
        then the first of these that exists: $RUNTIME_DIRECTORY/streamd.sock, $XDG_RUNTIME_DIR/streamd/streamd.sock,
        /run/streamd/streamd.sock.
    timeout: seconds to wait for each first answer, of the daemon and of a subscription; default 10. An endpoint without
        a socket is an error at once, but with an endpoint and a timeout of your own `connect` waits for the socket, as
        when trainer and daemon start together.
    patience: seconds that `next()` waits for a daemon that went away while a stream is read; None waits for ever. A
        line on stderr says after 2 s that the daemon is away, and another one when it is back.
    curve: keys for tcp:// endpoints, which this version does not have.

    The client closes its streams when it is closed or left as a context manager:

        with streamd.connect() as client, client.subscribe("train", epochs=10) as stream:
            for batch in stream: ...

    Raises ConnectError when there is no daemon or it does not answer, ConfigError for an endpoint that cannot be.
    """
    if curve is not None:
        raise ConfigError("curve keys are for tcp:// endpoints, which this version does not serve")
    if timeout is None:
        client = Client(places.find_socket(endpoint), CONNECT_TIMEOUT_S, patience)
    else:
        client = Client(places.find_endpoint(endpoint), timeout, patience)
    client.streams()
    return client


class Client:
    """A connection to a daemon. Made by `streamd.connect` and `streamd.local`.

    `subscribe` opens a stream for training, `batch` shows any one batch. `streams` and `spec` say what is served,
    `names` which files samples are, `status` and `stats` how the daemon is doing. `endpoint` is where it listens.

    Streams opened through a client are closed with it. A client belongs to the process that made it, and any of its
    threads may use it. Methods that ask the daemon raise ConnectError when it does not answer within the `timeout` that
    `connect` was given.
    """

    def __init__(self, endpoint: str, timeout_s: float, patience_s: float | None) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._reporter = AbsenceReporter()
        self._pid = os.getpid()
        self._closed = False
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()  # one that nobody refers to closes by itself
        self._streams_lock = threading.Lock()  # the news of a daemon's death comes in another thread
        self._daemon_error: StreamdError | None = None
        self._served: tuple[str, ...] = ()  # the names of the streams, by the daemon's last answer

    def streams(self) -> dict[str, StreamSpec]:
        """What the daemon serves, by name: samples, batches, image_shape, labels with their classes."""
        streams = self._ask_daemon(AskStreams(), Streams).streams
        self._served = tuple(streams)
        return streams

    def spec(self, name: str) -> StreamSpec:
        """What the daemon serves under `name`. Raises RefusedError, with the near name, when that is nothing."""
        known = self.streams()
        if name not in known:
            raise RefusedError(f"no stream {name!r}{suggest_name(name, known)}; served: {', '.join(known)}")
        return known[name]

    def stats(self) -> dict[str, dict[str, float]]:
        """The daemon's counters and timings: by group, then by name."""
        return self._ask_daemon(AskStats(), Stats).values

    def status(self) -> DaemonStatus:
        """Who is reading what, how fast, and what could be better."""
        return self._ask_daemon(AskStatus(), StatusNow).status

    def dashboard(self) -> str:
        """The address of the daemon's dashboard, with the token that shows pictures behind the `#`.

        Raises RefusedError when the daemon has none.
        """
        monitor = self._ask_daemon(AskMonitor(), MonitorAt)
        return f"{monitor.url}/#{monitor.token}"

    def names(self, stream: str, sample_ids: Iterable[int]) -> list[str]:
        """The file names of samples, such as `batch.sample_ids`, relative to the stream's root; "" for no sample (-1).

        Raises RefusedError for an unknown stream and for ids that it does not have.
        """
        ids = [int(each) for each in sample_ids]
        wanted = [each for each in ids if each != PAD_ID]
        told: list[str] = []
        for start in range(0, len(wanted), MAX_NAMES):
            told += self._ask_daemon(AskNames(stream, tuple(wanted[start : start + MAX_NAMES])), Names).names
        named = iter(told)
        return ["" if each == PAD_ID else next(named) for each in ids]

    def batch(self, stream: str, epoch: int, index: int) -> Batch:
        """Batch `index` of `epoch`, exactly as every trainer gets it; in memory of its own.

        Raises RefusedError for an unknown stream or an index that an epoch does not have.
        """
        spec = self.spec(stream)
        if epoch < 0 or not 0 <= index < spec.batches:
            raise RefusedError(
                f"stream {stream!r} has no batch {epoch}:{index}: epochs count from 0, batches from 0 to "
                f"{spec.batches - 1}"
            )
        whose = parse_trainer_name(None)
        subscription = Subscription(stream, 0, 1, epoch + 1, "drop", MIN_CREDIT, "shared", name=whose)
        there = Cursor(epoch, begin=index)
        with self._register_stream(
            Stream(
                self.endpoint,
                BatchSplit.from_batch_size(spec, None),
                subscription,
                there,
                self._patience_s,
                self._reporter,
                partial(_find_names, self.endpoint, spec),
            )
        ) as one:
            one.wait_until_open(self._timeout_s)
            return next(iter(one)).copy()

    def subscribe(
        self,
        stream: str,
        *,
        epochs: int | None = None,
        rank: int | Literal["auto"] = 0,
        world: int = 1,
        start: Start = "begin",
        resume: str | bytes | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        uneven: UnevenPolicy | None = None,
        transport: Literal["shared", "inline"] = "shared",
        name: str | None = None,
    ) -> Stream:
        """Subscribes to `stream`, one of `streams()`, and returns once the daemon has admitted the subscription.

        epochs: how many in total, as Keras counts; None runs on.
        rank, world: rank `rank` of `world`, from 0, takes every world-th batch. rank="auto" takes both from torchrun,
            srun, mpirun, Horovod or TF_CONFIG in this process's environment; 0 of 1 without one.
        start: "begin"; "live" joins where the others are, with a short first epoch, and `epochs` counts from there;
            {"together": K} begins when K sessions of the stream are there.
        resume: a token, of a batch or a stream: goes on behind it.
        batch_size: samples, a divisor or a multiple of the stream's own: batches are cut into parts (views of the same
            memory) or put together (copied). Trainers of any size share each decode.
        prefetch: how many of the stream's own batches may be here or on their way at a time; default 16.
        uneven: of what not every rank would get, "drop" leaves out, and counts in the receipt; "pad" gives the others
            batches of weight 0. Default: pad where shuffle is none.
        transport: "inline" sends pixels through the socket, for where memory cannot be shared.
        name: what `streamd status` calls this trainer, 1 to 64 printable characters; default the program's name.

        Raises ConfigError for arguments that cannot be, RefusedError for an unknown stream or too little memory,
        TokenError for a token of another stream or order, ConnectError when the daemon does not answer.
        """
        live, together = _parse_start_option(start, is_resuming=resume is not None)
        place, whose = _parse_rank(rank, world), parse_trainer_name(name)

        def build(spec: StreamSpec) -> Subscription:
            asked = _build_subscription(spec, epochs, *place, uneven, prefetch, transport)
            return replace(asked, live=live, together=together, name=whose)

        return self._open_stream(stream, build, resume, batch_size)

    def _open_stream(
        self,
        name: str,
        build_subscription: Callable[[StreamSpec], Subscription],
        resume: str | bytes | None,
        batch_size: int | None,
    ) -> Stream:
        """Opens a stream, and once more where the daemon has another one than it told of."""
        try:
            return self._open_known_stream(name, build_subscription, resume, batch_size)
        except TokenError:  # it changed between being told of and subscribed to
            if resume is not None:
                raise
        return self._open_known_stream(name, build_subscription, resume, batch_size)

    def _open_known_stream(
        self,
        name: str,
        build_subscription: Callable[[StreamSpec], Subscription],
        resume: str | bytes | None,
        batch_size: int | None,
    ) -> Stream:
        """Asks what a stream is, subscribes, and waits until the daemon has let it in."""
        spec = self.spec(name)
        asked = build_subscription(spec)
        token = None if resume is None else parse_token_for_rank(resume, spec, asked.world, batch_size)
        stream = self._register_stream(
            Stream(
                self.endpoint,
                BatchSplit.from_batch_size(spec, batch_size, asked.uneven),
                asked,
                token,
                self._patience_s,
                self._reporter,
                partial(_find_names, self.endpoint, spec),
            )
        )
        try:
            stream.wait_until_open(self._timeout_s)
        except BaseException:
            stream.close()
            raise
        stream.keep_alive = self
        stream.lookup_names = partial(self.names, name)
        return stream

    def _register_stream(self, stream: Stream) -> Stream:
        """Counts a stream as opened here; one of a daemon that is gone for good is told so."""
        with self._streams_lock:
            self._streams.add(stream)
            if self._daemon_error is not None:
                stream.set_fatal_error(self._daemon_error)
        return stream

    def _fail_all_streams(self, error: StreamdError) -> None:
        """Ends every wait, now and later, with `error`: no daemon will ever answer at the endpoint again."""
        with self._streams_lock:
            self._daemon_error = error
            for stream in list(self._streams):
                stream.set_fatal_error(error)

    def close(self) -> None:
        """Closes every stream opened here. Nothing can be asked afterwards."""
        self._closed = True
        with self._streams_lock:
            streams = list(self._streams)
            self._streams.clear()
        for stream in streams:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def __array__(self) -> NoReturn:
        """What Keras looks for in data that it does not know, and NumPy in anything."""
        raise ConfigError(
            'a client is no array: for Keras write  model.fit(fit_data(client.subscribe("train"))), with fit_data of '
            'streamd.frameworks.keras; in a loop of your own read the batches of client.subscribe("train")'
        )

    def __repr__(self) -> str:
        if self._closed:
            return f"<{type(self).__name__} {self.endpoint}, closed>"
        served = f", serves {', '.join(self._served)}" if self._served else ""
        return f"<{type(self).__name__} {self.endpoint}{served}>"

    def _ask_daemon(self, question: ClientMessage, answer: type[Answer]) -> Answer:
        """One question on a socket of its own, so that no thread and no state are left behind."""
        if self._pid != os.getpid():
            raise ForkedClientError
        if self._closed:
            raise ClosedError(self.endpoint, "this client is closed; connect again")
        if self._daemon_error is not None:
            raise self._daemon_error
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            return self._send_until_answered(context, encode_frame(EMPTY_HEADER, question), answer)
        finally:
            context.destroy(linger=0)  # and every socket, also one that an interrupt left half made

    def _send_until_answered(
        self, context: zmq.Context[zmq.Socket[bytes]], frame: bytes, answer: type[Answer]
    ) -> Answer:
        """Asks again every second: a question that meets the daemon's restart is lost."""
        deadline_s = time.monotonic() + self._timeout_s
        with open_dealer_socket(context, self.endpoint) as socket:
            while self._daemon_error is None and (left_s := deadline_s - time.monotonic()) > 0:
                socket.send(frame)
                while socket.poll(int(min(left_s, ASK_AGAIN_S) * 1000) + 1):
                    _, heard = decode_daemon_frame(socket.recv_multipart()[0])
                    if isinstance(heard, answer):
                        return heard
                    if isinstance(heard, Refused):
                        raise RefusedError(heard.text)
        if self._daemon_error is not None:
            raise self._daemon_error
        raise ConnectError(
            self.endpoint, f"no answer within {self._timeout_s:g} s; {places.explain_missing_answer(self.endpoint)}"
        )


def _find_names(endpoint: str, spec: StreamSpec, sample_ids: Sequence[int]) -> dict[int, str]:
    """The files of samples that are shown; none where no daemon answers soon, or where it serves other samples."""
    if not is_socket_listening(endpoint):
        return {}
    asker = Client(endpoint, SHOWN_NAMES_TIMEOUT_S, None)
    try:
        known = asker.streams().get(spec.name)
        if known is None or known.order_id != spec.order_id:
            return {}
        return dict(zip(sample_ids, asker.names(spec.name, sample_ids), strict=True))
    except StreamdError:  # pictures without names are better than none
        return {}


def _parse_start_option(start: Start, *, is_resuming: bool) -> tuple[bool, int]:
    """Whether to join where others are, and how many to wait for. Raises ConfigError."""
    match start:
        case "begin":
            return False, 0
        case "live" if not is_resuming:
            return True, 0
        case "live":
            raise ConfigError('start="live" joins where others are, resume goes on where you were: choose one')
        case {"together": int(count)} if len(start) == 1 and 1 <= count <= MAX_SESSIONS:
            return False, count
    raise ConfigError(
        f'start={start!r}: use "begin", "live" (join where the others are) or {{"together": K}} (begin when K trainers '
        f"are there, at most {MAX_SESSIONS})"
    )


def _parse_rank(rank: int | str, world: int) -> tuple[int, int]:
    """The rank and its world. Raises ConfigError."""
    if not isinstance(rank, str):
        return rank, world
    if rank != "auto":
        raise ConfigError(f'rank={rank!r}: a number, or "auto" for what the launcher of this process says')
    return find_rank(os.environ, world)


def _build_subscription(
    spec: StreamSpec,
    epochs: int | None,
    rank: int,
    world: int,
    uneven: UnevenPolicy | None,
    prefetch: int | None,
    transport: Transport,
) -> Subscription:
    if not 0 <= rank < world:
        raise ConfigError(f"rank {rank} of world {world}: rank counts from 0 to world - 1")
    if epochs is not None and (type(epochs) is not int or not 1 <= epochs < MAX_EPOCHS):
        raise ConfigError(f"epochs {epochs!r}: a whole number, at least 1, or None to run on")
    if uneven not in {None, "drop", "pad"}:
        raise ConfigError(f'uneven {uneven!r}: "drop", "pad", or None for the stream\'s own rule')
    credit = DEFAULT_CREDIT if prefetch is None else prefetch
    if not MIN_CREDIT <= credit <= MAX_CREDIT:
        raise ConfigError(f"prefetch {credit}: between {MIN_CREDIT} and {MAX_CREDIT}")
    rule: UnevenPolicy = uneven or ("pad" if spec.shuffle == "none" else "drop")
    return Subscription(spec.name, rank, world, epochs, rule, credit, transport)
