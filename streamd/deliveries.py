"""Batches on their way out: headers encoded once for all sessions, and a moment's wait for company.

A trainer that waits for every batch is woken for each, and on a busy host a wake-up costs it and the decoders about as
much as a dozen decoded rows. So a batch that was just decoded waits up to SEND_COMPANY_S for others, as a network card
holds back its interrupt. Only trainers that wait for the decoders meet this; what lay ready goes out at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from streamd.bundles import bundle
from streamd.engines.production import Production
from streamd.limits import SEND_COMPANY_CREDIT, SEND_COMPANY_S
from streamd.messages import BatchReady
from streamd.peers import Peer
from streamd.server import Server
from streamd.slots import SlotStore
from streamd.stats import Stats
from streamd.window.actions import SendBatch
from streamd.wire import Header, body, frame

_ENOUGH: Final = 4  # batches that go out together at the latest
_MOST: Final = 64  # of a message


class Deliveries:
    """What lies in the slots, as clients are told of it, and what is about to be told."""

    def __init__(
        self, server: Server, slots: SlotStore, stats: Stats, boot: int, on_unreachable: Callable[[int], None]
    ) -> None:
        self._server = server
        self._slots = slots
        self._stats = stats
        self._boot = boot
        self._on_unreachable = on_unreachable
        self._ready: dict[int, BatchReady] = {}
        self._bodies: dict[int, bytes] = {}
        self._held: list[tuple[Peer, SendBatch]] = []
        self._settled = 0  # of those held, how many had been told to wait
        self._timer: asyncio.TimerHandle | None = None

    def prepare(self, production: Production) -> None:
        """Notes what a slot holds from now on."""
        key, slot = production.key, production.slot
        bad = production.stream.bad_rows(key.epoch, key.index, production.marks)
        rows = int(production.delivered.size)
        ready = BatchReady(key.epoch, key.index, rows, slot, production.slot_bytes, inline=False, bad=bad)
        self._ready[slot], self._bodies[slot] = ready, body(ready)

    def forget(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._ready.pop(slot, None)
            self._bodies.pop(slot, None)

    def add(self, peer: Peer, action: SendBatch) -> None:
        """Takes a batch for a client; `settle` decides when it leaves."""
        self._held.append((peer, action))

    def settle(self, *, fresh: bool) -> None:
        """Sends what was added, or lets it wait: only batches that were just decoded (`fresh`) ever do."""
        new, self._settled = len(self._held) - self._settled, len(self._held)
        if not new:
            return
        alone = len({action.slot for _, action in self._held}) < _ENOUGH
        if fresh and alone and all(peer.credit >= SEND_COMPANY_CREDIT for peer, _ in self._held):
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(SEND_COMPANY_S, self.send_all)
        else:
            self.send_all()

    def send_all(self) -> None:
        """Sends everything, in the order it was added."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held, self._settled = self._held, [], 0
        sessions: dict[int, list[tuple[Peer, SendBatch]]] = {}
        for peer, action in held:
            sessions.setdefault(action.session, []).append((peer, action))
        for some in sessions.values():
            for start in range(0, len(some), _MOST):
                self._send(some[0][0], [action for _, action in some[start : start + _MOST]])

    def _send(self, peer: Peer, actions: Sequence[SendBatch]) -> None:
        """Sends batches to one client."""
        if peer.gone:
            return
        started = time.monotonic()
        if not all(self._lies_ready(action) for action in actions):
            self._on_unreachable(peer.session)  # it gave a batch back before it was sent: no trainer of ours does
            return
        sent = self._refer(peer, actions) if peer.transport == "shared" else self._pour(peer, actions)
        if not sent:
            self._on_unreachable(peer.session)
        self._stats.time(f"stream.{actions[0].key.stream}", "send", time.monotonic() - started, len(actions))

    def _lies_ready(self, action: SendBatch) -> bool:
        ready = self._ready.get(action.slot)
        return ready is not None and (ready.epoch, ready.index) == (action.key.epoch, action.key.index)

    def _refer(self, peer: Peer, actions: Sequence[SendBatch]) -> bool:
        """Says in which slots the batches lie; whether the client could be told."""
        frames = [
            frame(Header(self._boot, action.session, action.number), self._bodies[action.slot]) for action in actions
        ]
        return self._server.send(peer.identity, bundle(frames))

    def _pour(self, peer: Peer, actions: Sequence[SendBatch]) -> bool:
        """Sends the pixels themselves."""
        for action in actions:
            inline = msgspec.structs.replace(self._ready[action.slot], slot=0, inline=True)
            header = Header(self._boot, action.session, action.number)
            if not self._server.send(peer.identity, frame(header, body(inline)), self._slots.view(action.slot)):
                return False
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._held.clear()
