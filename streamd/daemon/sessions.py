"""Sessions as they begin and end: validates subscriptions, sends welcomes and refusals, and logs both ends.

It also keeps the connected clients: routing identity, session, and how each receives its pixels. A subscription with an
invalid name, number or token is refused here, before the scheduler gets it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from streamd.core import log
from streamd.core.epoch_timing import SupplyCounter
from streamd.core.spec import Cursor, StreamSpec
from streamd.core.text import FIRST_KEY_USER, shorten_text
from streamd.core.token import check_cursor, explain_order_mismatch
from streamd.daemon.descriptor_allowance import AMPLE_ALLOWANCE, DescriptorAllowance, SessionCounts, find_full_refusal
from streamd.daemon.epoch_summary import EpochSummary
from streamd.daemon.status_builder import StatusBuilder, SubscribedTrainer
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import TokenError, suggest_name
from streamd.ipc.fd_passing import DescriptorServer
from streamd.ipc.messages import CreditNow, DaemonMessage, Refused, Stopped, Subscribe, Transport, Welcome
from streamd.limits import MAX_EPOCHS, MAX_SESSIONS, MAX_TRAINER_NAME_CHARS, MAX_WORLD
from streamd.scheduler.events import AdmitSession, RefuseSession, SetCredit, StopStream, Subscribed

OWN_USER: Final = os.geteuid()  # the daemon's own user, which is trusted

_PIDS_END: Final = 1 << 22  # the kernel's bound
_DRAINING_RETRY_S: Final = 0.2
_FULL_RETRY_S: Final = 1.0
_NO_SESSIONS: Final = SessionCounts()


@dataclass(slots=True)
class Connection:
    """A client with a session, or one whose subscription the scheduler has yet to admit. `user` is its uid."""

    identity: bytes
    session: int
    stream: ServedStream
    transport: Transport
    rank: int
    world: int
    credit: int = 0
    receipts: int = 0  # sent so far
    confirmed_receipts: int = 0  # of these, as far as its trainer has confirmed them
    lease_count: int = 0  # batches queued for it, less those that it has reported as released
    due_receipts: deque[Cursor] = field(default_factory=deque)  # of epochs that were sent; the first is being computed
    is_gone: bool = False
    supply_counter: SupplyCounter = field(default_factory=SupplyCounter)
    trainer: SubscribedTrainer = field(default_factory=SubscribedTrainer)
    user: int = OWN_USER


class Connections:
    """Sessions by number and by routing identity."""

    def __init__(self) -> None:
        self._by_session: dict[int, Connection] = {}
        self._by_identity: dict[bytes, Connection] = {}

    def __len__(self) -> int:
        return len(self._by_session)

    def list_connections(self) -> list[Connection]:
        """Returns a copy, so that a caller may remove connections while it iterates."""
        return list(self._by_session.values())

    def add_connection(self, connection: Connection) -> None:
        self._by_session[connection.session] = connection
        self._by_identity[connection.identity] = connection

    def find_by_session(self, session: int) -> Connection | None:
        return self._by_session.get(session)

    def find_by_identity(self, identity: bytes) -> Connection | None:
        return self._by_identity.get(identity)

    def remove_session(self, session: int) -> Connection | None:
        connection = self._by_session.pop(session, None)
        if connection is not None:
            connection.is_gone = True
            self._by_identity.pop(connection.identity, None)
        return connection


def find_subscribe_refusal(
    message: Subscribe,
    streams: Mapping[str, ServedStream],
    *,
    is_draining: bool,
    counts: SessionCounts = _NO_SESSIONS,
    allowance: DescriptorAllowance = AMPLE_ALLOWANCE,
    user: int = OWN_USER,
) -> Refused | None:
    """Returns the refusal of a subscription of `user`, with what to do; None when it is valid."""
    stream = streams.get(message.stream)
    if stream is None:
        return build_unknown_stream_refusal(message.stream, streams)
    # The numbers, and the way of getting pixels, must be possible.
    if not 0 <= message.together <= MAX_SESSIONS:
        return Refused("usage", f"together is {message.together}: it must be from 1 to {MAX_SESSIONS}")
    if not 0 <= message.rank < message.world <= MAX_WORLD or not 0 <= (message.epochs or 0) <= MAX_EPOCHS:
        return Refused(
            "usage",
            f"rank {message.rank} of world {message.world}, epochs {message.epochs}: rank must be from 0 to world - "
            f"1, world at most {MAX_WORLD}, and epochs 0 or more, at most {MAX_EPOCHS}",
        )
    if message.transport == "inline" and user != OWN_USER:
        return Refused(
            "usage",
            "pixels come by socket to processes of the daemon's own user alone, and this process has to map the "
            "batches: raise its limits on memory and open files (ulimit -v, ulimit -n)",
        )
    # The daemon must have room for one more session.
    if is_draining:
        return Refused("busy", "this daemon is shutting down; the next one will answer", _DRAINING_RETRY_S)
    full = find_full_refusal(counts, allowance, user, is_own_user=user == OWN_USER)
    if full is not None:
        return Refused("busy", full, _FULL_RETRY_S)
    return _find_cursor_refusal(message, stream.spec)


def _find_cursor_refusal(message: Subscribe, spec: StreamSpec) -> Refused | None:
    """Returns the refusal of a cursor that the stream cannot begin at, or of a token of another order; else None."""
    if message.order_id is not None and message.order_id != spec.order_id:
        return Refused(
            "token", explain_order_mismatch(message.order_id, message.order, spec, is_running=message.resuming)
        )
    try:
        check_cursor(message.cursor)
    except TokenError as error:
        return Refused("token", str(error))
    last_step = message.cursor.history[-1].world if message.cursor.history else 0
    if message.cursor.next_base_index >= spec.batches + last_step:
        return Refused("token", f"the token's position is beyond the {spec.batches} batches of an epoch")
    return None


def build_unknown_stream_refusal(name: str, streams: Iterable[str]) -> Refused:
    """Returns the refusal of a query or subscription for a stream that is not served."""
    return Refused(
        "unknown", f"there is no stream {name!r}; the daemon serves: {', '.join(streams)}{suggest_name(name, streams)}"
    )


def describe_trainer(message: Subscribe, user: int = OWN_USER) -> SubscribedTrainer:
    """Returns a subscription's trainer as it may be shown: a long name is cut, and impossible numbers become 0."""
    return SubscribedTrainer(
        shorten_text(message.name, MAX_TRAINER_NAME_CHARS),
        message.pid if 0 < message.pid < _PIDS_END else 0,
        max(0, message.batch_size),
        max(0, message.steps),
        is_remote=user >= FIRST_KEY_USER,
    )


class SessionManager:
    """Adds and removes connections. `send_without_session` sends to clients that have no session.

    Lives on the event loop.
    """

    def __init__(
        self,
        streams: Mapping[str, ServedStream],
        descriptor_server: DescriptorServer,
        status_builder: StatusBuilder,
        allowance: DescriptorAllowance = AMPLE_ALLOWANCE,
        *,
        send_to_session: Callable[[Connection, DaemonMessage], None],
        send_without_session: Callable[[bytes, DaemonMessage], None],
    ) -> None:
        self.connections = Connections()
        self._streams = streams
        self._descriptor_server = descriptor_server
        self._status_builder = status_builder
        self._allowance = allowance
        self._send_to_session = send_to_session
        self._send_without_session = send_without_session
        self._numbers = itertools.count(1)
        self._is_empty = asyncio.Event()

    async def wait_until_no_sessions(self, interrupt: asyncio.Event) -> None:
        """Returns when the last session has ended, or `interrupt` is set."""
        if len(self.connections):
            # It may still be set from an earlier time without sessions.
            self._is_empty.clear()
            waits = [asyncio.ensure_future(self._is_empty.wait()), asyncio.ensure_future(interrupt.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def validate_and_add_connection(
        self,
        identity: bytes,
        message: Subscribe,
        *,
        is_draining: bool,
        earlier_sessions: tuple[int, ...] = (),
        ended_users: Sequence[int] = (),
        user: int = OWN_USER,
    ) -> Subscribed | None:
        """Adds a connection and returns its event for the scheduler; sends a refusal and returns None if invalid.

        This client names `earlier_sessions` as its own. `ended_users` has the user of each session that is over while
        its trainer still holds batches of it.
        """
        # The sessions that take descriptors are those connected, and those ended, whose lifelines are open.
        users = [*(each.user for each in self.connections.list_connections()), *ended_users]
        counts = SessionCounts(len(users), len(ended_users), users.count(user), ended_users.count(user))
        refusal = find_subscribe_refusal(
            message, self._streams, is_draining=is_draining, counts=counts, allowance=self._allowance, user=user
        )
        if refusal is not None:
            self._send_without_session(identity, refusal)
            return None
        session, stream, trainer = next(self._numbers), self._streams[message.stream], describe_trainer(message, user)
        self.connections.add_connection(
            Connection(
                identity, session, stream, message.transport, message.rank, message.world, trainer=trainer, user=user
            )
        )
        return Subscribed(
            session,
            message.stream,
            message.rank,
            message.world,
            message.uneven,
            message.epochs,
            message.cursor,
            message.credit,
            message.resuming,
            message.live,
            message.together,
            earlier_sessions,
            user,
        )

    def apply_session_action(self, action: AdmitSession | SetCredit | RefuseSession | StopStream, now_s: float) -> None:
        """Performs what the scheduler has decided: admits, refuses or stops sessions, or changes their credit."""
        match action:
            # The client gets its session, unless it is gone.
            case AdmitSession():
                session, credit = action.session, action.credit
                connection = self.connections.find_by_session(session)
                if connection is None:
                    return
                connection.credit = credit
                self._status_builder.on_session_began(
                    session, (connection.stream.spec.name, connection.rank, connection.world), now_s, connection.trainer
                )
                secret = self._descriptor_server.issue_secret(session)
                log.info(
                    "session.began",
                    "a trainer subscribed",
                    stream=connection.stream.spec.name,
                    session=session,
                    trainer=connection.trainer.name,
                    rank=f"{connection.rank}/{connection.world}",
                    credit=credit,
                    transport=connection.transport,
                )
                spec, transport = connection.stream.spec, connection.transport
                self._send_to_session(
                    connection, Welcome(secret, spec, credit, transport, action.cursor, action.earlier)
                )
            case SetCredit(session, credit):
                connection = self.connections.find_by_session(session)
                if connection is not None:
                    connection.credit = credit
                    self._send_to_session(connection, CreditNow(credit))
            # The connection that was added for the subscription is removed again.
            case RefuseSession():
                connection = self.connections.remove_session(action.session)
                if connection is not None:
                    log.warning("session.refused", action.text, stream=connection.stream.spec.name)
                    self._send_without_session(
                        connection.identity, Refused(action.refusal, action.text, action.retry_s)
                    )
            # The trainers of a stream that has changed or failed get the reason.
            case StopStream():
                if not action.sessions:
                    # Each batch in production fails by itself. The first one has ended the sessions and logged the
                    # reason.
                    return
                if action.changed:
                    log.notice("stream.changed", action.reason, sessions=len(action.sessions))
                else:
                    log.error("stream.stopped", action.reason, stream=action.stream)
                    self._status_builder.on_stream_failed(action.stream, action.reason)
                for session in action.sessions:
                    connection = self.connections.find_by_session(session)
                    if connection is not None:
                        self._send_to_session(connection, Stopped(action.reason, action.changed))
                        # The client hangs up when it has read the reason. If the lifeline were closed here, its end
                        # could reach the client before the message does.
                        self.end_session(session, "its stream stopped", hang_up=False)

    def end_session(self, session: int, reason: str, *, hang_up: bool = True) -> bool:
        """Ends a session; returns whether it was connected. `hang_up` closes its lifeline at once."""
        connection = self.connections.remove_session(session)
        self._status_builder.on_session_ended(session, time.monotonic())
        if hang_up:
            self._descriptor_server.close_session(session)
        if connection is not None:
            log.info("session.ended", reason, stream=connection.stream.spec.name, session=session)
            self.log_finished_epochs(self._status_builder.epoch_tracker.remove_session(session))
            if not len(self.connections):
                self._is_empty.set()
        return connection is not None

    def log_finished_epochs(self, summaries: Iterable[EpochSummary]) -> None:
        """Logs the summaries of epochs that all their trainers have finished."""
        for each in summaries:
            log.info("epoch.finished", each.text, **asdict(each))
