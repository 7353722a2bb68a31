"""Batches on their way out: headers encoded once for all sessions, and a moment's wait for company.

A trainer that waits for every batch is woken for each, and on a busy host a wake-up costs it and the decoders about as
much as a dozen decoded rows. So a batch that was just decoded waits up to SEND_COMPANY_S for others, as a network card
holds back its interrupt. Only trainers that wait for the decoders meet this; what lay ready goes out at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from streamd.core.counters import Stats
from streamd.core.epoch_timing import Effort
from streamd.core.sampler import PAD_ID
from streamd.core.spec import BatchKey
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.monitor.batch_preview import Leaving
from streamd.daemon.router import Server
from streamd.daemon.sessions import Peer
from streamd.daemon.status_builder import Overview
from streamd.ipc.frames import Header, body, bundle, frame
from streamd.ipc.messages import BatchReady
from streamd.ipc.slots import SlotStore
from streamd.limits import SEND_COMPANY_CREDIT, SEND_COMPANY_S
from streamd.scheduler.actions import SendBatch

_ENOUGH: Final = 4  # batches that go out together at the latest
_MOST: Final = 64  # of a message


class _Lying(NamedTuple):
    """What lies in a slot, as the clients are told, how many samples are among its rows, and what it took."""

    key: BatchKey
    ready: BatchReady
    encoded: bytes
    samples: int
    effort: Effort


class _Parcel(NamedTuple):
    """What is about to be told one client, and the slots of those batches that it had to wait for."""

    peer: Peer
    actions: list[SendBatch]
    awaited: list[int]

    @property
    def may_wait(self) -> bool:
        return self.peer.credit >= SEND_COMPANY_CREDIT


class Deliveries:
    """What lies in the slots, as clients are told of it, and what is about to be told."""

    def __init__(
        self,
        server: Server,
        slots: SlotStore,
        stats: Stats,
        overview: Overview,
        leaving: Leaving,
        boot: int,
        on_unreachable: Callable[[int], None],
    ) -> None:
        self._server = server
        self._slots = slots
        self._stats = stats
        self._overview = overview
        self._leaving = leaving
        self._boot = boot
        self._on_unreachable = on_unreachable
        self._lying: dict[int, _Lying] = {}  # by slot
        self._held: dict[int, _Parcel] = {}  # by session
        self._held_slots: set[int] = set()
        self._added = False  # something is held that `settle` has not seen
        self._timer: asyncio.TimerHandle | None = None

    def prepare(self, job: BatchJob) -> None:
        """Notes what a slot holds from now on."""
        key, slot = job.key, job.slot
        bad = job.stream.bad_rows(key.epoch, key.index, job.marks)
        rows = job.delivered
        ready = BatchReady(key.epoch, key.index, int(rows.size), slot, job.slot_bytes, inline=False, bad=bad)
        effort = Effort(job.waited_s, job.busy_s - job.waited_s, job.at_work)
        self._lying[slot] = _Lying(key, ready, body(ready), int(np.count_nonzero(rows != PAD_ID)), effort)

    def forget(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._lying.pop(slot, None)

    def add(self, peer: Peer, action: SendBatch, *, awaited: bool = False) -> None:
        """Takes a batch for a client, which may have waited for it; `settle` decides when it leaves."""
        parcel = self._held.get(action.session)
        if parcel is None:
            parcel = self._held[action.session] = _Parcel(peer, [], [])
        parcel.actions.append(action)
        if awaited:
            parcel.awaited.append(action.slot)
        self._held_slots.add(action.slot)
        self._added = True

    def settle(self, *, fresh: bool) -> None:
        """Sends what was added, or lets it wait: only batches that were just decoded (`fresh`) ever do."""
        if not self._added:
            return
        self._added = False
        if fresh and len(self._held_slots) < _ENOUGH and all(each.may_wait for each in self._held.values()):
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(SEND_COMPANY_S, self.send_all)
        else:
            self.send_all()

    def send_all(self) -> None:
        """Sends everything, in the order it was added."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, {}
        self._held_slots.clear()
        for parcel in held.values():
            efforts = [self._lying[slot].effort for slot in parcel.awaited if slot in self._lying]
            parcel.peer.supplying.add(len(parcel.actions), efforts)
            for start in range(0, len(parcel.actions), _MOST):
                self._send(parcel.peer, parcel.actions[start : start + _MOST])

    def _send(self, peer: Peer, actions: Sequence[SendBatch]) -> None:
        """Sends batches to one client."""
        if peer.gone:
            return
        started_s = time.monotonic()
        lying = [each for action in actions if (each := self._lying.get(action.slot)) and each.key == action.key]
        if len(lying) < len(actions):
            self._on_unreachable(peer.session)  # it gave a batch back before it was sent: no trainer of ours does
            return
        headers = [Header(self._boot, action.session, action.number) for action in actions]
        if self._leaving.is_awaited:
            self._leaving.goes(peer.stream, lying[-1].ready)
        sent = (self._refer if peer.transport == "shared" else self._pour)(peer, headers, lying)
        if not sent:
            self._on_unreachable(peer.session)
        now_s = time.monotonic()
        group, samples = f"stream.{peer.stream.spec.name}", sum([each.samples for each in lying])
        self._overview.sent(peer.session, len(lying), samples, now_s)
        self._stats.time(group, "send", now_s - started_s, len(lying))
        self._stats.count(group, "sent_samples", samples)

    def _refer(self, peer: Peer, headers: list[Header], lying: list[_Lying]) -> bool:
        """Says in which slots the batches lie; whether the client could be told."""
        frames = [frame(header, each.encoded) for header, each in zip(headers, lying, strict=True)]
        return self._server.send(peer.identity, bundle(frames))

    def _pour(self, peer: Peer, headers: list[Header], lying: list[_Lying]) -> bool:
        """Sends the pixels themselves."""
        for header, each in zip(headers, lying, strict=True):
            inline = msgspec.structs.replace(each.ready, slot=0, inline=True)
            if not self._server.send(peer.identity, frame(header, body(inline)), self._slots.view(each.ready.slot)):
                return False
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._held.clear()
