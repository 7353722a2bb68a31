"""A client of one endpoint: sends requests to the daemon and opens any number of streams."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import Final, Literal, NoReturn, Self, SupportsIndex, TypeVar

import zmq

from streamd.client.arguments import (
    Start,
    check_endpoint_system,
    parse_batch_number,
    parse_optional_number,
    parse_patience,
    parse_rank,
    parse_sample_ids,
    parse_start_option,
    parse_stream_name,
    parse_timeout,
    parse_trainer_name,
    parse_word,
)
from streamd.client.batch import Batch, BatchSplit
from streamd.client.sockets import (
    KEY_REFUSAL,
    CurveKeys,
    UnreachableError,
    find_connect_address,
    find_curve_keys,
    is_key_refused,
    is_socket_listening,
    open_dealer_socket,
    open_loss_monitor,
)
from streamd.client.stream import Stream
from streamd.client.waiting import AbsenceReporter, print_stderr_line
from streamd.core.sampler import PAD_ID
from streamd.core.spec import Cursor, StreamSpec, UnevenPolicy
from streamd.core.status import DaemonStatus
from streamd.core.token import Token, parse_token_for_rank
from streamd.errors import (
    ClosedError,
    ConfigError,
    ConnectError,
    ForkedClientError,
    NoCopyError,
    RefusedError,
    StreamdError,
    TokenError,
    suggest_name,
)
from streamd.ipc import endpoint as places
from streamd.ipc.messages import (
    EMPTY_HEADER,
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
    Subscribe,
    Transport,
    decode_daemon_frame,
    encode_frame,
)
from streamd.limits import (
    ASK_AGAIN_S,
    BACKOFF_MIN_S,
    DEFAULT_CREDIT,
    MAX_CREDIT,
    MAX_NAMES,
    MIN_CREDIT,
    REMOTE_ASK_AGAIN_S,
    REMOTE_CREDIT,
    SHOWN_NAMES_TIMEOUT_S,
)

Answer = TypeVar("Answer", Streams, Stats, StatusNow, MonitorAt, Names)

_UNEVEN_POLICIES: Final[tuple[UnevenPolicy, ...]] = ("drop", "pad")
_UNEVEN_DEFAULT: Final = ", or None for the stream's own rule"
_TRANSPORTS: Final[tuple[Transport, ...]] = ("shared", "inline")
# Whether a line was printed about subscriptions to epoch 0 alone, by process, endpoint, order and rank.
_ONE_EPOCH_SUBSCRIPTIONS: Final[dict[tuple[object, ...], bool]] = {}


def connect(
    endpoint: str | os.PathLike[str] | None = None,
    *,
    timeout: float | None = None,
    patience: float | None = None,
    curve: object = None,
) -> Client:
    """Connects to the daemon at `endpoint`, and returns a client once it has answered.

    endpoint: `ipc://` and the absolute path of the daemon's socket, or that path alone, which may begin with `~`; or
        `tcp://host:port` of a daemon on another host, which needs `curve`.
        Default: $STREAMD_ENDPOINT, then the first of these that exists: $RUNTIME_DIRECTORY/streamd.sock,
        $XDG_RUNTIME_DIR/streamd/streamd.sock, /run/streamd/streamd.sock.
    timeout: seconds to wait for the daemon's first answer, and for the first answer to each subscription; default 10.
        An endpoint without a socket raises at once. If both endpoint and timeout are given, `connect` waits for the
        socket, so that trainer and daemon may start together.
    patience: seconds that `next()` waits for a daemon that went away while a stream is read; None waits for ever. A
        line on stderr reports after 2 s that the daemon is away, and another one that it is back.
    curve: the key files that a tcp:// endpoint needs: {"secret": this client's own, "server": the daemon's public one}.
        Default: $STREAMD_CURVE_SECRET and $STREAMD_CURVE_SERVER. `streamd keygen` makes them.

    The client closes its streams when it is closed or left as a context manager:

        with streamd.connect() as client, client.subscribe("train", epochs=10) as stream:
            for batch in stream: ...

    Raises ConnectError when there is no daemon or it does not answer, ConfigError for an invalid argument.
    """
    timeout_s, patience_s = parse_timeout(timeout), parse_patience(patience)
    check_endpoint_system(endpoint)
    find = places.find_socket if timeout is None else places.find_endpoint
    found = find(endpoint, places.PYTHON_REMEDY)
    client = Client(found, timeout_s, patience_s, find_curve_keys(found, curve))
    client.streams()
    return client


class Client:
    """A connection to a daemon. Made by `streamd.connect` and `streamd.local`.

    `subscribe` opens a stream for training, `batch` returns any one batch. `streams` and `spec` describe what is
    served, `names` returns the files of samples, `status` and `stats` report the daemon's state. `endpoint` is the
    address at which the daemon listens.

    Streams opened through a client are closed with it. A client belongs to the process that made it, and any of its
    threads may use it. Methods that send a request raise ConnectError when the daemon does not answer within the
    `timeout` given to `connect`.
    """

    def __init__(
        self, endpoint: str, timeout_s: float, patience_s: float | None, curve: CurveKeys | None = None
    ) -> None:
        self.endpoint = endpoint
        self._curve = curve
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._reporter = AbsenceReporter()
        self._pid = os.getpid()
        self._closed = False
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()  # weak: an unreferenced stream closes itself
        # Guards the set and `_daemon_error` together: the thread that watches a private daemon reports its end here,
        # and a stream that is being opened at that moment must either be in the set or see the error.
        self._streams_lock = threading.Lock()
        self._daemon_error: StreamdError | None = None
        self._served: tuple[str, ...] = ()  # stream names in the daemon's last answer, for the repr

    def streams(self) -> dict[str, StreamSpec]:
        """Returns each stream's specification by name: samples, batches, image_shape, labels with their classes."""
        streams = self._ask_daemon(AskStreams(), Streams).streams
        self._served = tuple(streams)
        return streams

    def spec(self, name: str) -> StreamSpec:
        """Returns the specification of stream `name`. Raises RefusedError, with a similar name, if there is none."""
        name, known = parse_stream_name(name), self.streams()
        if name not in known:
            raise RefusedError(
                f"there is no stream {name!r}; the daemon serves: {', '.join(known)}{suggest_name(name, known)}"
            )
        return known[name]

    def stats(self) -> dict[str, dict[str, float]]:
        """Returns the daemon's counters and timings, by group, then by name."""
        return self._ask_daemon(AskStats(), Stats).values

    def status(self) -> DaemonStatus:
        """Returns the daemon's status: which trainers read which streams, how fast, and what could be better."""
        return self._ask_daemon(AskStatus(), StatusNow).status

    def dashboard(self) -> str:
        """Returns the dashboard's URL; the part after `#` is the token that gives access to pictures.

        Raises RefusedError when the daemon has no dashboard.
        """
        monitor = self._ask_daemon(AskMonitor(), MonitorAt)
        return f"{monitor.url}/#{monitor.token}"

    def names(self, stream: str, sample_ids: Iterable[SupportsIndex]) -> list[str]:
        """Returns the file name of each sample, such as `batch.sample_ids`, relative to the stream's root.

        The id -1 (no sample) gives "". Raises RefusedError for an unknown stream or an id that the stream does not
        have.
        """
        stream, ids = parse_stream_name(stream), parse_sample_ids(sample_ids)
        wanted = [each for each in ids if each != PAD_ID]
        told: list[str] = []
        for start in range(0, len(wanted), MAX_NAMES):
            told += self._ask_daemon(AskNames(stream, tuple(wanted[start : start + MAX_NAMES])), Names).names
        named = iter(told)
        return ["" if each == PAD_ID else next(named) for each in ids]

    def batch(self, stream: str, epoch: SupportsIndex, index: SupportsIndex) -> Batch:
        """Returns a copy of batch `index` of `epoch`, with the same content that every trainer receives.

        Raises RefusedError for an unknown stream or an index that an epoch does not have.
        """
        epoch, index = parse_batch_number("epoch", epoch), parse_batch_number("index", index)
        spec = self.spec(stream)
        if epoch < 0 or not 0 <= index < spec.batches:
            raise RefusedError(
                f"stream {stream!r} has no batch {epoch}:{index}: epochs count from 0, batches from 0 to "
                f"{spec.batches - 1}"
            )
        whose = parse_trainer_name(None)
        way: Transport = "shared" if self._curve is None else "inline"
        start = Cursor(epoch, begin=index)
        subscription = Subscribe(
            stream, 0, 1, epoch + 1, start, "drop", MIN_CREDIT, way, None, resuming=False, name=whose
        )
        with self._make_stream(spec, subscription, None, start) as one:
            one.wait_until_open(self._timeout_s)
            return next(iter(one)).copy()

    def subscribe(
        self,
        stream: str,
        *,
        epochs: SupportsIndex | None = None,
        rank: SupportsIndex | Literal["auto"] = 0,
        world: SupportsIndex = 1,
        start: Start = "begin",
        resume: str | bytes | None = None,
        batch_size: SupportsIndex | None = None,
        prefetch: SupportsIndex | None = None,
        uneven: UnevenPolicy | None = None,
        transport: Literal["shared", "inline"] = "shared",
        name: str | None = None,
    ) -> Stream:
        """Subscribes to `stream`, one of `streams()`, and returns once the daemon has admitted the subscription.

        epochs: the number of epochs in total, as Keras counts them; None for no end.
        rank, world: rank `rank` of `world`, from 0, takes every world-th batch. rank="auto" takes both from
            torch.distributed, jax.distributed or Keras's distribution, where this process has initialized one for
            several processes; else from torchrun, srun, mpirun, Horovod or TF_CONFIG in its environment; it is 0 of 1
            without any of them.
        start: "begin" starts at the first batch. "live" starts where the other sessions are: its first epoch is short,
            and `epochs` counts from there. {"together": K} starts when this daemon has K sessions of it.
        resume: the token of a batch or a stream; continues after it.
        batch_size: samples a batch, a divisor or a multiple of the stream's own batch size. Batches are cut into parts
            (views of the same memory) or joined (copied). Trainers of any batch size share each decode.
        prefetch: how many of the stream's own batches may be held or in transit; default 16, over tcp:// 64.
        uneven: how to treat the last batches of an epoch when not every rank would get one. "drop" leaves them out and
            counts their samples in the receipt; "pad" gives the other ranks batches of weight 0. Default: "pad" for
            streams with shuffle none, else "drop".
        transport: "inline" sends pixels through the socket, for hosts on which memory cannot be shared.
        name: the trainer's name in `streamd status`, 1 to 64 printable characters; default the program's name.

        Raises ConfigError for invalid arguments, RefusedError for an unknown stream or too little memory, TokenError
        for a token of another stream or order, ConnectError when the daemon does not answer.
        """
        live, together = parse_start_option(start, is_resuming=resume is not None)
        place, whose = parse_rank(rank, world), parse_trainer_name(name)
        usual = DEFAULT_CREDIT if self._curve is None else REMOTE_CREDIT
        held = parse_optional_number("prefetch", prefetch, MIN_CREDIT, MAX_CREDIT, otherwise=f"for {usual}")
        credit = usual if held is None else held
        total = parse_optional_number("epochs", epochs, 1, otherwise="to run without end")
        rows = parse_optional_number("batch_size", batch_size, 1, otherwise="for the stream's own batch_size")
        rule = None if uneven is None else parse_word("uneven", uneven, _UNEVEN_POLICIES, or_else=_UNEVEN_DEFAULT)
        way = parse_word("transport", transport, _TRANSPORTS)
        if self._curve is not None:
            way = "inline"  # no memory is shared with another host
        stream, is_second = parse_stream_name(stream), False
        while True:
            spec = self.spec(stream)
            how: UnevenPolicy = rule or ("pad" if spec.shuffle == "none" else "drop")
            asked = Subscribe(
                stream, *place, total, Cursor(), how, credit, way, None,
                resuming=False, live=live, together=together, name=whose,
            )  # fmt: skip
            token = None if resume is None else parse_token_for_rank(resume, spec, asked.world, rows)
            opened = self._make_stream(spec, asked, rows, token)
            try:
                opened.wait_until_open(self._timeout_s)
                break
            except BaseException as error:
                opened.close()
                # Without a token of the caller's, the refused order is the one that `spec` returned a moment ago, so
                # the daemon was restarted or reconfigured in between: that is tried once more.
                if is_second or resume is not None or not isinstance(error, TokenError):
                    raise
                is_second = True
        opened.keep_alive = self
        opened.lookup_names = partial(self.names, stream)
        if total == 1 and resume is None and not live:
            self._say_if_epoch_0_repeats(opened.spec, place)
        return opened

    def _say_if_epoch_0_repeats(self, spec: StreamSpec, rank: tuple[int, int]) -> None:
        """Prints, once, what a loop that subscribes again for each epoch has missed: all its epochs are epoch 0."""
        if spec.shuffle == "none":
            return
        same = os.getpid(), self.endpoint, spec.order_id, rank
        if _ONE_EPOCH_SUBSCRIPTIONS.get(same) is False:
            print_stderr_line(
                f"subscribe({spec.name!r}, epochs=1) is epoch 0 each time, in the same order and with the same crops, "
                f"and this is the second one: to train, subscribe once, stream = client.subscribe({spec.name!r}, "
                "epochs=N), and write  for batches in stream.epochs(): for batch in batches: ..."
            )
        _ONE_EPOCH_SUBSCRIPTIONS[same] = same in _ONE_EPOCH_SUBSCRIPTIONS

    def _make_stream(
        self, spec: StreamSpec, subscription: Subscribe, batch_size: int | None, start: Token | Cursor | None
    ) -> Stream:
        """Makes a stream that `close` closes; fails it at once if the daemon has ended for good."""
        stream = Stream(
            self.endpoint,
            BatchSplit.from_batch_size(spec, batch_size, subscription.uneven),
            subscription,
            start,
            self._patience_s,
            self._reporter,
            partial(_find_names, self.endpoint, spec),
            self._curve,
        )
        with self._streams_lock:
            self._streams.add(stream)
            if self._daemon_error is not None:
                stream.set_fatal_error(self._daemon_error)
        return stream

    def _fail_all_streams(self, error: StreamdError) -> None:
        """Makes every present and later wait raise `error`: no daemon will answer at this endpoint again.

        Called in any thread.
        """
        with self._streams_lock:
            self._daemon_error = error
            for stream in list(self._streams):
                stream.set_fatal_error(error)

    def close(self) -> None:
        """Closes every stream opened through this client. Later requests raise ClosedError."""
        self._closed = True
        # Streams are closed outside the lock: closing joins an I/O thread, and `_fail_all_streams` must not wait.
        with self._streams_lock:
            streams = list(self._streams)
            self._streams.clear()
        for stream in streams:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuses pickle and copies, as for a spawned process or a trial."""
        raise NoCopyError("a client", f"write  streamd.connect({self.endpoint!r})  in the other process")

    @property
    def __array__(self) -> NoReturn:
        """What Keras looks for in data that it does not know, and NumPy in anything."""
        raise ConfigError(
            'a client is not an array: for Keras write  model.fit(fit_data(client.subscribe("train"))), with fit_data '
            'of streamd.frameworks.keras; in a loop of your own, read the batches of client.subscribe("train")'
        )

    def __repr__(self) -> str:
        if self._closed:
            return f"<{type(self).__name__} {self.endpoint}, closed>"
        served = f", serves {', '.join(self._served)}" if self._served else ""
        return f"<{type(self).__name__} {self.endpoint}{served}>"

    def _ask_daemon(self, question: ClientMessage, answer: type[Answer]) -> Answer:
        """Sends a request on its own context and socket, which leaves no thread and no state behind.

        Raises RefusedError, or ConnectError when the time is up.
        """
        if self._pid != os.getpid():
            raise ForkedClientError
        if self._closed:
            raise ClosedError(self.endpoint, "this client is closed; connect again")
        frame, deadline_s = encode_frame(EMPTY_HEADER, question), time.monotonic() + self._timeout_s
        refusal: str | None = None
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            # The request is sent again every second: one that arrives during a daemon's restart is lost. Requests only
            # read the daemon's state, so an answer that arrives after the request was repeated is as good.
            while self._daemon_error is None and (left_s := deadline_s - time.monotonic()) > 0:
                try:
                    address = find_connect_address(self.endpoint, left_s)
                except UnreachableError as error:
                    refusal = error.refusal
                    time.sleep(min(left_s, BACKOFF_MIN_S))
                    continue
                with (
                    open_dealer_socket(context, address, self._curve) as socket,
                    nullcontext() if self._curve is None else closing(open_loss_monitor(socket)) as monitor,
                ):
                    socket.send(frame)
                    while _wait_for_answer(socket, monitor, left_s, self.endpoint):
                        _, heard = decode_daemon_frame(socket.recv_multipart()[0])
                        if isinstance(heard, answer):
                            return heard
                        if isinstance(heard, Refused):
                            raise RefusedError(heard.text)
        finally:
            context.destroy(linger=0)  # closes every socket too, even one that an interrupt left half made
        if self._daemon_error is not None:
            raise self._daemon_error.copy_without_traceback()
        reason = refusal or places.explain_missing_answer(self.endpoint)
        raise ConnectError(self.endpoint, f"no answer within {self._timeout_s:g} s; {reason}")


def _wait_for_answer(
    socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes] | None, left_s: float, endpoint: str
) -> bool:
    """Waits for an answer until it is time to ask again; returns whether there is one.

    Raises ConnectError when the daemon does not allow the key, as `monitor` says.
    """
    if monitor is None:
        return bool(socket.poll(int(min(left_s, ASK_AGAIN_S) * 1000) + 1))
    poller = zmq.Poller()
    for each in (socket, monitor):
        poller.register(each, zmq.POLLIN)
    # The handshake takes several round trips, each over a link that may be slow.
    ready = dict(poller.poll(int(min(left_s, REMOTE_ASK_AGAIN_S) * 1000) + 1))
    if socket not in ready and monitor in ready and is_key_refused(monitor):
        raise ConnectError(endpoint, KEY_REFUSAL)
    return socket in ready


def _find_names(endpoint: str, spec: StreamSpec, sample_ids: Sequence[int]) -> dict[int, str]:
    """Returns file names by sample id, for display; empty if no daemon answers soon or it serves other samples."""
    # A notebook's display must not wait for a daemon that is away, so the socket is probed before a request is sent.
    if not is_socket_listening(endpoint):
        return {}
    asker = Client(endpoint, SHOWN_NAMES_TIMEOUT_S, None)
    try:
        known = asker.streams().get(spec.name)
        if known is None or known.order_id != spec.order_id:
            return {}
        return dict(zip(sample_ids, asker.names(spec.name, sample_ids), strict=True))
    except StreamdError:  # the pictures are shown without names
        return {}
