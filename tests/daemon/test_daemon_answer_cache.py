"""Answers that are shared by all who ask: fresh while that costs little, never older than a second."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.dispatcher_rig import WISH, dispatching

from streamd.daemon.dispatcher import AnswerCache, Dispatcher, QueryMessage
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import AskNames, AskStats, AskStatus, AskStreams, StatusNow, Streams
from streamd.limits import ANSWER_AGE_S, ANSWER_BURST_S, ANSWER_SHARE


@dataclass
class Maker:
    """Makes numbered answers, each of which takes `cost_s` of the processor."""

    cost_s: float
    now_s: float = 100.0
    spent_s: float = 0.0
    made: int = 0

    def __post_init__(self) -> None:
        self.cache = AnswerCache(lambda: self.now_s, lambda: self.spent_s)

    def make(self) -> bytes:
        self.spent_s += self.cost_s
        self.made += 1
        return b"%d" % self.made

    def ask(self, question: QueryMessage = AskStatus()) -> bytes:  # noqa: B008 - a frozen value
        return self.cache.get_or_make_answer(question, self.make)


def test_seldom_questions_always_get_a_new_answer() -> None:
    maker = Maker(0.001)
    for number in range(1, 1000):
        maker.now_s += 0.001 / ANSWER_SHARE
        assert maker.ask() == b"%d" % number


@pytest.mark.parametrize("cost_s", [0.0001, 0.001, 0.01])
def test_a_flood_of_questions_takes_no_more_than_the_answers_share(cost_s: float) -> None:
    maker = Maker(cost_s)
    for _ in range(20_000):
        maker.now_s += 0.0005
        maker.ask()
    assert maker.spent_s <= ANSWER_BURST_S + ANSWER_SHARE * 10 + cost_s


def test_no_answer_is_older_than_its_bound_however_dear_it_is() -> None:
    maker = Maker(10.0)
    assert maker.ask() == b"1"
    maker.now_s += ANSWER_AGE_S / 2
    assert maker.ask() == b"1"
    maker.now_s += ANSWER_AGE_S / 2
    assert maker.ask() == b"2"


def test_a_question_of_another_kind_gets_its_own_answer_when_time_is_short() -> None:
    maker = Maker(10.0)
    assert [maker.ask(each()) for each in (AskStatus, AskStats, AskStatus, AskStats)] == [
        b"1",
        b"2",
        b"1",
        b"2",
    ]


def test_the_list_of_streams_is_made_once_until_it_is_forgotten() -> None:
    maker = Maker(0.0)
    assert [maker.ask(AskStreams()) for _ in range(3)] == [b"1"] * 3
    maker.cache.forget_streams_answer()
    assert maker.ask(AskStreams()) == b"2"


def test_a_question_with_facts_gets_an_answer_of_its_own() -> None:
    maker = Maker(10.0)
    assert [maker.ask(AskNames("train", (1,))), maker.ask(AskNames("train", (2,)))] == [b"1", b"2"]


async def test_hundreds_of_status_questions_make_few_answers(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.daemon.dispatcher.ANSWER_BURST_S", 0.0)
    built, build = list[bool](), StatusBuilder.build_status

    def count_and_build(*args: object, **options: object) -> object:
        built.append(True)
        return build(*args, **options)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(StatusBuilder, "build_status", count_and_build)
    async with dispatching(stream) as rig:
        for number in range(40):
            rig.subscribe(b"%d" % number)
        for _ in range(1000):
            rig.send(b"asker", AskStatus())
        answers = [message for _, message in rig.router.take_messages(b"asker")]
    assert len(answers) == 1000
    assert all(isinstance(each, StatusNow) and len(each.status.sessions) == 40 for each in answers)
    assert len(built) < 500


async def test_the_streams_are_encoded_once_until_one_changes(
    stream: ServedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = list[object](), Dispatcher._answer_query

    def count_and_answer(self: Dispatcher, question: AskStreams) -> object:
        asked.append(question)
        return answer(self, question)

    monkeypatch.setattr(Dispatcher, "_answer_query", count_and_answer)
    async with dispatching(stream) as rig:
        rig.subscribe(b"me", WISH)
        for _ in range(3):
            assert rig.ask(b"asker", AskStreams()) == Streams({"train": stream.spec})
        assert len(asked) == 1
        rig.dispatcher.replace_stream_ending_sessions("train", None, "it was removed")
        assert rig.ask(b"asker", AskStreams()) == Streams({})
