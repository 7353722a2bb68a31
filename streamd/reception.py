"""How sessions come and go: who may begin, what they are told when they do, and what is noted when they end."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from streamd import logs
from streamd.allowance import AMPLE, Allowance
from streamd.descriptors import DescriptorServer
from streamd.epochs import Finished
from streamd.messages import CreditNow, DaemonMessage, Refused, Stopped, Subscribe, Welcome
from streamd.objections import objection
from streamd.overview import Overview
from streamd.peers import Peer, Peers
from streamd.served import ServedStream
from streamd.window.actions import Admit, Lend, Refuse, StopStream
from streamd.window.events import Subscribed


class Reception:
    """Keeps the book of peers. `send` speaks within a session, `tell` to who has none.

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
        peer = self.peers.remove(session)
        self._overview.ended(session, time.monotonic())
        if hang_up:
            self._descriptors.forget(session)
        if peer is not None:
            logs.info("session.ended", reason, stream=peer.stream.spec.name, session=session)
            self.conclude(self._overview.epochs.left(session))
            if not len(self.peers):
                self._emptied.set()
        return peer is not None

    def conclude(self, finished: Iterable[Finished]) -> None:
        """Says once for all trainers how an epoch went that they are through with."""
        for each in finished:
            logs.info("epoch.finished", "all who were in it are through with an epoch", **asdict(each))

    def _welcome(self, action: Admit, now_s: float) -> None:
        session, credit = action.session, action.credit
        peer = self.peers.of(session)
        if peer is None:
            return
        peer.credit = credit
        self._overview.began(session, (peer.stream.spec.name, peer.rank, peer.world), now_s)
        secret = self._descriptors.expect(session)
        logs.info(
            "session.began",
            "a trainer subscribed",
            stream=peer.stream.spec.name,
            session=session,
            rank=f"{peer.rank}/{peer.world}",
            credit=credit,
            transport=peer.transport,
        )
        self._send(
            peer, Welcome(peer.stream.spec, credit, peer.transport, self._door, secret, action.cursor, action.earlier)
        )

    def _lend(self, session: int, credit: int) -> None:
        peer = self.peers.of(session)
        if peer is not None:
            peer.credit = credit
            self._send(peer, CreditNow(credit))

    def _refuse(self, action: Refuse) -> None:
        peer = self.peers.remove(action.session)
        if peer is not None:
            logs.warning("session.refused", action.text, stream=peer.stream.spec.name)
            self._tell(peer.identity, Refused(action.why, action.text, action.retry_s))

    def _stop(self, action: StopStream) -> None:
        if not action.sessions:
            return  # each batch that was in production fails by itself; the first has ended the sessions and said why
        if action.changed:
            logs.notice("stream.changed", action.reason, sessions=len(action.sessions))
        else:
            logs.error("stream.stopped", action.reason, stream=action.stream)
            self._overview.failed(action.stream, action.reason)
        for session in action.sessions:
            peer = self.peers.of(session)
            if peer is not None:
                self._send(peer, Stopped(action.reason, action.changed))
                # It hangs up itself when it has read why: the end of its lifeline could overtake the message.
                self.depart(session, "its stream stopped", hang_up=False)
