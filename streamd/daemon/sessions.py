"""How sessions come and go: who may begin, what they are told when they do, and what is noted when they end.

The daemon's book of who is connected: routing identity, session, and how each wants its pixels.

What speaks against a subscription before the window is asked: names, numbers, tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from streamd.core import log
from streamd.core.epoch_timing import SupplyCounter
from streamd.core.spec import StreamSpec
from streamd.core.token import check_cursor, describe_other_order
from streamd.daemon.descriptor_allowance import AMPLE, Allowance
from streamd.daemon.epoch_summary import Finished
from streamd.daemon.status_builder import Overview, unknown_stream
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import TokenError
from streamd.ipc.fd_passing import DescriptorServer
from streamd.ipc.messages import CreditNow, DaemonMessage, Refused, Stopped, Subscribe, Transport, Welcome
from streamd.limits import MAX_SESSIONS
from streamd.scheduler.actions import Admit, Lend, Refuse, StopStream
from streamd.scheduler.events import Subscribed

_MAX_WORLD: Final = 1 << 20  # far beyond any job, and every index up to its padding fits the digest's places
_DRAINING_RETRY_S: Final = 0.2
_FULL_RETRY_S: Final = 1.0


@dataclass(slots=True)
class Peer:
    """A client with a session, or one that is just asking for it."""

    identity: bytes
    session: int
    stream: ServedStream
    transport: Transport
    rank: int
    world: int
    credit: int = 0
    receipts: int = 0  # told so far
    gone: bool = False
    supplying: SupplyCounter = field(default_factory=SupplyCounter)


class Peers:
    """Sessions by number and by routing identity."""

    def __init__(self) -> None:
        self._by_session: dict[int, Peer] = {}
        self._by_identity: dict[bytes, Peer] = {}

    def __len__(self) -> int:
        return len(self._by_session)

    def all(self) -> list[Peer]:
        """A copy, safe to remove from while walking."""
        return list(self._by_session.values())

    def add(self, connection: Peer) -> None:
        self._by_session[connection.session] = connection
        self._by_identity[connection.identity] = connection

    def of(self, session: int) -> Peer | None:
        return self._by_session.get(session)

    def speaking(self, identity: bytes) -> Peer | None:
        return self._by_identity.get(identity)

    def remove(self, session: int) -> Peer | None:
        connection = self._by_session.pop(session, None)
        if connection is not None:
            connection.gone = True
            self._by_identity.pop(connection.identity, None)
        return connection


def objection(
    wish: Subscribe,
    streams: Mapping[str, ServedStream],
    *,
    sessions: int,
    draining: bool,
    allowance: Allowance = AMPLE,
    ended: int = 0,
) -> Refused | None:
    """Why a subscription cannot be, with what to do; None when nothing speaks against it.

    `ended`: how many of the `sessions` are over while their trainers hold something of them.
    """
    stream = streams.get(wish.stream)
    if stream is None:
        return unknown_stream(wish.stream, streams)
    if not 0 <= wish.together <= MAX_SESSIONS:
        return Refused("usage", f"{wish.together} trainers together: from 1 to {MAX_SESSIONS}")
    if not 0 <= wish.rank < wish.world < _MAX_WORLD or (wish.epochs is not None and wish.epochs < 0):
        return Refused("usage", f"rank {wish.rank} of world {wish.world}, epochs {wish.epochs}: not possible")
    if draining:
        return Refused("busy", "this daemon is going away; the next one will answer", _DRAINING_RETRY_S)
    if sessions >= allowance.sessions:
        return Refused("busy", allowance.refusal(ended), _FULL_RETRY_S)
    return _misplaced(wish, stream.spec)


def _misplaced(wish: Subscribe, spec: StreamSpec) -> Refused | None:
    """What is wrong with the place at which the subscription wants to begin."""
    if wish.order_id is not None and wish.order_id != spec.order_id:
        return Refused("token", describe_other_order(wish.order_id, wish.order, spec, is_running=wish.resuming))
    try:
        check_cursor(wish.cursor)
    except TokenError as error:
        return Refused("token", str(error))
    last_step = wish.cursor.history[-1].world if wish.cursor.history else 0
    if wish.cursor.next_base >= spec.batches + last_step:
        return Refused("token", f"the token's place lies beyond the {spec.batches} batches of an epoch")
    return None


class Reception:
    """Keeps the book of connections. `send` speaks within a session, `tell` to who has none.

    `door` is the path of the descriptor socket, where a session ties its lifeline.
    """

    def __init__(
        self,
        streams: Mapping[str, ServedStream],
        descriptors: DescriptorServer,
        door: str,
        overview: Overview,
        allowance: Allowance = AMPLE,
        *,
        send: Callable[[Peer, DaemonMessage], None],
        tell: Callable[[bytes, DaemonMessage], None],
    ) -> None:
        self.peers = Peers()
        self._streams = streams
        self._descriptors = descriptors
        self._door = door
        self._overview = overview
        self._allowance = allowance
        self._send = send
        self._tell = tell
        self._numbers = itertools.count(1)
        self._emptied = asyncio.Event()

    async def empty(self, hurry: asyncio.Event) -> None:
        """Returns when the last session has ended, or `hurry` is set."""
        if len(self.peers):
            self._emptied.clear()  # it may have been empty before
            waits = [asyncio.ensure_future(self._emptied.wait()), asyncio.ensure_future(hurry.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def ask(
        self, identity: bytes, wish: Subscribe, *, draining: bool, earlier: tuple[int, ...] = (), ended: int = 0
    ) -> Subscribed | None:
        """What the window is asked about a subscription; None when it cannot be, which the client is told.

        `earlier`: sessions of this client that are over while it holds something of them; `ended`: all such sessions.
        """
        sessions = len(self.peers) + ended
        refusal = objection(
            wish, self._streams, sessions=sessions, draining=draining, allowance=self._allowance, ended=ended
        )
        if refusal is not None:
            self._tell(identity, refusal)
            return None
        session = next(self._numbers)
        stream = self._streams[wish.stream]
        self.peers.add(Peer(identity, session, stream, wish.transport, wish.rank, wish.world))
        return Subscribed(
            session,
            wish.stream,
            wish.rank,
            wish.world,
            wish.uneven,
            wish.epochs,
            wish.cursor,
            wish.credit,
            wish.resuming,
            wish.live,
            wish.together,
            earlier,
        )

    def tell(self, action: Admit | Lend | Refuse | StopStream, now_s: float) -> None:
        """The window has decided who is let in and with what, who is not, and who must go."""
        match action:
            case Admit():
                self._welcome(action, now_s)
            case Lend(session, credit):
                self._lend(session, credit)
            case Refuse():
                self._refuse(action)
            case StopStream():
                self._stop(action)

    def depart(self, session: int, reason: str, *, hang_up: bool = True) -> bool:
        """A session ends; whether there was one."""
        connection = self.peers.remove(session)
        self._overview.ended(session, time.monotonic())
        if hang_up:
            self._descriptors.close_session(session)
        if connection is not None:
            log.info("session.ended", reason, stream=connection.stream.spec.name, session=session)
            self.conclude(self._overview.epochs.left(session))
            if not len(self.peers):
                self._emptied.set()
        return connection is not None

    def conclude(self, finished: Iterable[Finished]) -> None:
        """Says once for all trainers how an epoch went that they are through with."""
        for each in finished:
            log.info("epoch.finished", "all who were in it are through with an epoch", **asdict(each))

    def _welcome(self, action: Admit, now_s: float) -> None:
        session, credit = action.session, action.credit
        connection = self.peers.of(session)
        if connection is None:
            return
        connection.credit = credit
        self._overview.began(session, (connection.stream.spec.name, connection.rank, connection.world), now_s)
        secret = self._descriptors.issue_secret(session)
        log.info(
            "session.began",
            "a trainer subscribed",
            stream=connection.stream.spec.name,
            session=session,
            rank=f"{connection.rank}/{connection.world}",
            credit=credit,
            transport=connection.transport,
        )
        self._send(
            connection,
            Welcome(
                connection.stream.spec, credit, connection.transport, self._door, secret, action.cursor, action.earlier
            ),
        )

    def _lend(self, session: int, credit: int) -> None:
        connection = self.peers.of(session)
        if connection is not None:
            connection.credit = credit
            self._send(connection, CreditNow(credit))

    def _refuse(self, action: Refuse) -> None:
        connection = self.peers.remove(action.session)
        if connection is not None:
            log.warning("session.refused", action.text, stream=connection.stream.spec.name)
            self._tell(connection.identity, Refused(action.why, action.text, action.retry_s))

    def _stop(self, action: StopStream) -> None:
        if not action.sessions:
            return  # each batch that was in production fails by itself; the first has ended the sessions and said why
        if action.changed:
            log.notice("stream.changed", action.reason, sessions=len(action.sessions))
        else:
            log.error("stream.stopped", action.reason, stream=action.stream)
            self._overview.failed(action.stream, action.reason)
        for session in action.sessions:
            connection = self.peers.of(session)
            if connection is not None:
                self._send(connection, Stopped(action.reason, action.changed))
                # It hangs up itself when it has read why: the end of its lifeline could overtake the message.
                self.depart(session, "its stream stopped", hang_up=False)
