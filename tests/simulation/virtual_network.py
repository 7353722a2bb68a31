"""Sockets between trainers and the daemon that is there: slow, cut, partitioned, or hostile.

A link is a client's DEALER: frames arrive in order and none is lost while it stands; when it breaks it is made again by
itself, and the daemon's ROUTER knows it under another identity from then on. A lifeline is a client's descriptor
socket: its end is heard of at once, unless a fault wants it late.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from story import Story
from virtual_time import Agenda

from streamd.ipc.messages import ClientMessage, DaemonMessage, FrameHeader

if TYPE_CHECKING:
    from virtual_client import VirtualIOThread
    from virtual_daemon import Daemon

Direction = Literal["up", "down"]
Mischief = Literal["dropped", "doubled", "overtaken"]
Frame = tuple[FrameHeader, ClientMessage | DaemonMessage]

_ATTACH_S: Final = 0.05  # libzmq tries again so often
_LONG_S: Final = 0.05
_REMEMBERED: Final = 40


@dataclass(slots=True, eq=False)
class Link:
    """A client's socket. `era` counts how often it was broken: what was under way then is lost."""

    client: VirtualIOThread
    identity: int = 0  # 0 while it leads nowhere
    open: bool = True
    era: int = 0
    last_s: dict[Direction, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})
    waiting: list[Frame] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Lifeline:
    """A session's descriptor socket; `lag_s` is how late its end is noticed on the far side."""

    client: VirtualIOThread
    server: Daemon
    session: int
    open: bool = True
    lag_s: float = 0.0
    last_s: float = 0.0  # when the latest word on it arrives: they come in order, and before its end


class Network:
    """Who is connected with whom."""

    def __init__(self, agenda: Agenda, rng: random.Random, story: Story, *, hostile: bool) -> None:
        self.server: Daemon | None = None
        self.hostile = hostile
        self.mischief: dict[tuple[str, Direction], list[Mischief]] = {}
        self.blocked_s: dict[tuple[str, Direction], float] = {}  # until then nothing passes
        self.links: list[Link] = []
        self.users: dict[str, int] = {}  # seat -> the user of its processes
        self.lifelines: list[Lifeline] = []
        self.unheard_until_s = 0.0  # by then the ends of all lifelines so far are known on the other side
        self._agenda, self._rng, self._story = agenda, rng, story
        self._known: dict[int, Link] = {}
        self._past: dict[tuple[str, Direction], deque[Frame]] = {}  # the latest frames of a hostile network
        self._identities = 0

    # --- daemons come and go

    def bind(self, server: Daemon) -> None:
        self.server = server
        for link in self.links:
            self._agenda.after(self._rng.random() * _ATTACH_S, self._attach, link)

    def unbind(self) -> None:
        """The daemon is dead: the kernel closes its sockets."""
        server, self.server = self.server, None
        self._known.clear()
        for link in self.links:
            self._break(link, noticed=True)
        for lifeline in [each for each in self.lifelines if each.server is server]:
            self.hang_up(lifeline)

    # --- a client's socket

    def connect(self, client: VirtualIOThread) -> Link:
        link = Link(client)
        self.links.append(link)
        self._agenda.after(self._delay_s(), self._attach, link)
        return link

    def close(self, link: Link, *, heard: bool = True) -> None:
        """By the client, or by its death. What it has said may still arrive.

        Not `heard`: a forked child has the socket too, so the daemon goes on sending into it.
        """
        link.open = False
        self.links.remove(link)
        if self._rng.random() < 0.5:
            link.era += 1
        if heard:
            self._agenda.after(self._delay_s(), self._known.pop, link.identity, None)

    def cut(self, link: Link, *, noticed: bool) -> None:
        """The connection breaks and is made again by itself: the daemon knows the client no more.

        Not `noticed`: the client does not hear of it either, as when a machine between the two forgets them.
        """
        self._known.pop(link.identity, None)
        self._break(link, noticed=noticed)
        self._agenda.after(_ATTACH_S, self._attach, link)

    def _break(self, link: Link, *, noticed: bool) -> None:
        link.identity = 0
        link.era += 1
        if noticed:
            link.client.process.after(self._delay_s(), link.client.link_ended, link)

    def _attach(self, link: Link) -> None:
        if self.server is None or not link.open or link.identity:
            return
        self._identities += 1
        link.identity = self._identities
        self._known[link.identity] = link
        waiting, link.waiting = link.waiting, []
        for header, message in waiting:
            self.say(link, header, message)

    # --- frames

    def say(self, link: Link, header: FrameHeader, message: ClientMessage | DaemonMessage) -> None:
        """A client's frame; it waits in the socket while there is no daemon."""
        if not link.identity:
            link.waiting.append((header, message))
        else:
            self._carry(link, "up", self._up, header, message)

    def tell(self, identity: int, header: FrameHeader, message: DaemonMessage) -> bool:
        """A daemon's frame; False when nobody is known by this identity."""
        link = self._known.get(identity)
        if link is None:
            return False
        self._carry(link, "down", self._down, header, message)
        return True

    def find_user(self, identity: int) -> int:
        """The user of the client with this identity; the daemon's own where the connection has broken by now."""
        link = self._known.get(identity)
        return 0 if link is None else self.users.get(link.client.seat, 0)

    def _carry(
        self,
        link: Link,
        way: Direction,
        arrive: Callable[..., None],
        header: FrameHeader,
        message: ClientMessage | DaemonMessage,
    ) -> None:
        """Puts a frame on its way, behind those before it."""
        now_s, who = self._agenda.now_s, (link.client.seat, way)
        at_s = max(link.last_s[way], self.blocked_s.get(who, 0.0), now_s + self._delay_s())
        if self.hostile:
            self._past.setdefault(who, deque(maxlen=_REMEMBERED)).append((header, message))
        pending = self.mischief.get(who)
        what = pending.pop() if pending else None
        if what is not None:
            self._story.counts[f"frame {what}"] += 1
            self._story.note(link.client.seat, "a frame {} is {}: {}", way, what, type(message).__name__)
        if what == "dropped":
            return
        if what != "overtaken":
            link.last_s[way] = at_s
        late_s = _LONG_S if what == "overtaken" else 0.0
        for _ in range(2 if what == "doubled" else 1):
            self._agenda.at(at_s + late_s, arrive, link, link.era, link.identity, header, message)

    def repeat(self, link: Link, way: Direction) -> bool:
        """A frame that passed long ago comes again, of an earlier session perhaps; whether there was one."""
        past = self._past.get((link.client.seat, way))
        if not past or not link.identity:
            return False
        latest, _ = past[-1]
        strange = [each for each in past if (each[0].boot, each[0].session) != (latest.boot, latest.session)]
        header, message = self._rng.choice(strange or list(past))
        self._story.note(link.client.seat, "an old frame {} comes again: {}", way, type(message).__name__)
        arrive = self._up if way == "up" else self._down
        self._agenda.after(self._delay_s(), arrive, link, link.era, link.identity, header, message)
        return True

    def _up(self, link: Link, era: int, identity: int, header: FrameHeader, message: ClientMessage) -> None:
        if era == link.era and self.server is not None:
            self.server.process.meet(self.server.receive, identity, header, message)

    def _down(self, link: Link, era: int, _: int, header: FrameHeader, message: DaemonMessage) -> None:
        if era == link.era and link.open:
            link.client.process.meet(link.client.frame, link, header, message)

    def _delay_s(self) -> float:
        """Mostly well under a millisecond, now and then as long as a busy host may take."""
        chance = self._rng.random()
        return chance * 0.001 if chance < 0.98 else (chance - 0.98) * 2.5

    # --- lifelines

    def pair(self, client: VirtualIOThread, boot: int, session: int) -> Lifeline | None:
        """A client opens its lifeline; None when that daemon is not there any more."""
        server = self.server
        if server is None or server.boot != boot:
            return None
        lifeline = Lifeline(client, server, session)
        self.lifelines.append(lifeline)
        server.process.meet(server.pair, lifeline)
        return lifeline

    def let_go(self, lifeline: Lifeline) -> None:
        """The client closes its end, or is dead."""
        if self._end(lifeline):
            reason = "its connection ended"
            delay_s = max(self._heard_after_s(lifeline), lifeline.last_s - self._agenda.now_s)
            lifeline.server.process.after(delay_s, lifeline.server.lose, lifeline.session, reason)

    def keep(self, lifeline: Lifeline, numbers: Collection[int]) -> None:
        """The client says what it holds of a session that is over."""
        self._word(lifeline, lifeline.server.parted, lifeline.session, tuple(numbers), "its connection ended")

    def drop(self, lifeline: Lifeline, numbers: Collection[int], retired: Collection[int] = ()) -> None:
        """The client says what it holds no longer; a forked child may see the last of it."""
        all_of_them = (*numbers, *retired)
        self._word(lifeline, lifeline.server.dropped, lifeline.session, all_of_them, tuple(retired))

    def _word(self, lifeline: Lifeline, arrive: Callable[..., None], *what: object) -> None:
        if lifeline.open:
            lifeline.last_s = max(lifeline.last_s, self._agenda.now_s + self._delay_s())
            lifeline.server.process.after(lifeline.last_s - self._agenda.now_s, arrive, *what)

    def hang_up(self, lifeline: Lifeline) -> None:
        """The daemon closes its end, or is dead."""
        if self._end(lifeline):
            self.shut(lifeline)

    def shut(self, lifeline: Lifeline) -> None:
        """The daemon says nothing more on it; what the client says is heard, unless it was closed."""
        delay_s = self._heard_after_s(lifeline)
        lifeline.client.process.after(delay_s, lifeline.client.lifeline_ended, lifeline)

    def _heard_after_s(self, lifeline: Lifeline) -> float:
        """The lag begins with the end, which may come long after the mishap that brought it about."""
        delay_s = lifeline.lag_s + self._delay_s()
        self.unheard_until_s = max(self.unheard_until_s, self._agenda.now_s + delay_s)
        return delay_s

    def _end(self, lifeline: Lifeline) -> bool:
        was_open, lifeline.open = lifeline.open, False
        if was_open:
            self.lifelines.remove(lifeline)
        return was_open
