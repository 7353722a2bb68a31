"""The client's protocol against a daemon whose frames come late, twice, never, or from a session that has ended.

Hypothesis chooses; what the daemon meant is kept beside it, so that a frame that is taken for another one is seen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace
from support.daemon_messages import SPEC, WISH
from support.hypothesis_settings import explored, seldom

from streamd.client.session import ClientAction, ClientSession, OpenSocket, SendMessage
from streamd.core.spec import Cursor
from streamd.ipc.messages import (
    BatchReady,
    DaemonMessage,
    FrameHeader,
    Goodbye,
    NoSession,
    Ping,
    Pong,
    Progress,
    Subscribe,
    Welcome,
)

BATCHES: Final = SPEC.batches
CREDIT: Final = 4

which = st.integers(0, 50)
some = st.integers(1, CREDIT)


@dataclass(slots=True)
class Speaker:
    """A daemon's side of one session: what it has sent, all in order, and what it has heard."""

    boot: int
    number: int
    place: int  # of the next batch, epochs counted through
    frames: list[BatchReady] = field(default_factory=list)
    arrived: int = 0
    upto: int = 0
    released: list[int] = field(default_factory=list)


class Talk(RuleBasedStateMachine):
    """One client session over many connections; `place` is how far its loop has come."""

    def __init__(self) -> None:
        super().__init__()
        self.session = ClientSession(replace(WISH, epochs=None, credit=CREDIT))
        self.now_s = 0.0
        self.place = 0
        self.cursor = Cursor()
        self.asked: Subscribe | None = None
        self.pong: Pong | None = None  # the daemon's answer, on its way
        self.boot = 1
        self.numbers, self.slots = count(1), count(1)
        self.speakers: list[Speaker] = []
        self.here: Speaker | None = None  # whom the client has heard a welcome of, in this connection
        self.inbox: list[int] = []
        self.taken = 0
        self.held: list[int] = []
        self.given: Counter[int] = Counter()  # leases that ended and were not told yet

    @initialize(some=some)
    def begin(self, some: int) -> None:
        self.pass_time(0.0)
        self.welcome()
        self.go_on(some, some)

    # --- the client

    def do(self, what: list[ClientAction]) -> None:
        for do in what:
            match do:
                case OpenSocket():
                    self.asked, self.here, self.pong = None, None, None
                    self.inbox, self.held, self.given, self.taken = [], [], Counter(), 0
                    self.do(self.session.handle_opened(self.cursor, self.now_s))
                case SendMessage(header, message):
                    self.hear(header, message)
                case BatchReady():
                    self.see(do)

    def hear(self, header: FrameHeader, message: object) -> None:
        if isinstance(message, Subscribe):
            self.asked = message
            return
        assert self.here is not None
        assert (header.boot, header.session) == (self.here.boot, self.here.number), "it speaks of its own session"
        if isinstance(message, Progress):
            told = Counter(message.released)
            assert told <= self.given, "a lease is released once, in the session that it belongs to"
            self.given -= told
            self.here.released += message.released
            self.here.upto = max(self.here.upto, message.upto)
            assert message.upto == CREDIT + len(self.here.released), "credit is what is not held"
        elif isinstance(message, Ping):
            self.pong = Pong(len(self.here.frames), self.here.upto, len(self.here.released), 0)
        else:
            assert isinstance(message, Goodbye)

    def see(self, batch: BatchReady) -> None:
        assert self.here is not None
        number = self.taken + len(self.inbox)
        assert batch is self.here.frames[number], "each delivery once, in order, and nothing of another session"
        assert batch.epoch * BATCHES + batch.index == self.place + len(self.inbox), "each batch once, in order"
        self.inbox.append(number)

    @rule()
    @precondition(lambda self: self.inbox)
    def take(self) -> None:
        self.held.append(self.inbox.pop(0))
        self.taken, self.place = self.taken + 1, self.place + 1
        self.cursor = self.cursor.after_step(0, 1) if self.place % BATCHES else self.cursor.at_next_epoch()

    @rule(at=which)
    @precondition(lambda self: self.held)
    def give_back(self, at: int) -> None:
        number = self.held.pop(at % len(self.held))
        if self.session.state == "active":
            self.given[number] += 1
        self.do(self.session.handle_released_leases([number], self.taken, 0, self.now_s))

    @rule(some=some, back=st.integers(0, CREDIT))
    @precondition(lambda self: self.speakers)
    def go_on(self, some: int, back: int) -> None:
        """All as it should be, for a while."""
        self.send(some)
        self.arrive(CREDIT)
        while self.inbox:
            self.take()
        for _ in range(min(back, len(self.held))):
            self.give_back(0)

    @rule(time_s=st.sampled_from([0.001, 0.1, 1.0, 6.0]))
    def pass_time(self, time_s: float) -> None:
        self.now_s += time_s
        due_s = self.session.next_deadline_s()
        if due_s is not None and due_s <= self.now_s:
            self.do(self.session.handle_deadline(self.now_s))

    @rule()
    def ask(self) -> None:
        self.do(self.session.ping_daemon(self.now_s))

    @rule(now=seldom, back=st.booleans())
    def break_connection(self, now: bool, back: bool) -> None:
        if now:
            self.do(self.session.handle_lost(self.now_s))
        if now and back:
            self.pass_time(6.0)
            self.welcome()

    # --- the daemon

    def say(self, speaker: Speaker, message: DaemonMessage, number: int = 0) -> None:
        self.do(self.session.handle_message(FrameHeader(speaker.boot, speaker.number, number), message, self.now_s))

    @rule()
    def welcome(self) -> None:
        if self.session.state != "asking" or self.asked is None:
            return
        cursor = self.asked.cursor
        speaker = Speaker(self.boot, next(self.numbers), cursor.epoch * BATCHES + cursor.next_base_index)
        self.speakers.append(speaker)
        self.asked, self.here = None, speaker
        assert speaker.place == self.place, "it asks for what its loop has not taken"
        self.say(speaker, Welcome(b"", SPEC, CREDIT, "shared"))

    @rule()
    def crash(self) -> None:
        """The next daemon counts its sessions from 1 again."""
        self.boot, self.numbers = self.boot + 1, count(1)

    @rule(some=some)
    @precondition(lambda self: self.speakers)
    def send(self, some: int) -> None:
        speaker = self.speakers[-1]
        for _ in range(min(some, speaker.upto - len(speaker.frames))):
            epoch, index = divmod(speaker.place, BATCHES)
            speaker.frames.append(BatchReady(epoch, index, 4, next(self.slots), 4096, inline=False))
            speaker.place += 1

    @rule(some=some)
    @precondition(lambda self: self.speakers)
    def arrive(self, some: int) -> None:
        """As it should be."""
        speaker = self.speakers[-1]
        for number in range(speaker.arrived, min(speaker.arrived + some, len(speaker.frames))):
            speaker.arrived += 1
            self.say(speaker, speaker.frames[number], number)

    @rule(who=which, number=which, now=seldom)
    @precondition(lambda self: self.speakers)
    def arrive_otherwise(self, who: int, number: int, now: bool) -> None:
        """Any frame of any session, at any time, perhaps again."""
        speaker = self.speakers[-1 - who % min(len(self.speakers), 3)]
        if now and speaker.frames:
            self.say(speaker, speaker.frames[number % len(speaker.frames)], number % len(speaker.frames))

    @rule(who=which, now=seldom)
    @precondition(lambda self: self.speakers)
    def deny(self, who: int, now: bool) -> None:
        """A session is denied; only the one that is meant is shaken by it."""
        speaker = self.speakers[-1 - who % len(self.speakers)]
        before = self.session.state
        if now:
            self.say(speaker, NoSession())
        assert self.session.state == before or speaker is self.here, "the denial of another session ends nothing"

    @rule()
    @precondition(lambda self: self.pong is not None and self.here is not None)
    def answer(self) -> None:
        """The truth of when it was asked; where a frame was lost on the way, the session must not go on."""
        assert self.here is not None
        assert self.pong is not None
        pong, self.pong = self.pong, None
        active = self.session.state == "active"
        self.say(self.here, pong)
        if active:
            whole = pong.sent == self.taken + len(self.inbox)
            assert (self.session.state == "active") == whole, "what was lost is found out, and nothing else"


TestTalk = Talk.TestCase
TestTalk.settings = explored()
