"""What a key may ask and see."""

from __future__ import annotations

import pytest
from support.sample_specs import SPEC

from streamd.core.spec import Cursor
from streamd.core.status import DaemonStatus
from streamd.gate.network_gate import find_refusal, limit_answer
from streamd.ipc.key_files import ClientKey
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    AskStreams,
    ClientMessage,
    Draining,
    Stats,
    StatusNow,
    Streams,
    Subscribe,
)

FREE = ClientKey("free", "")
LIMITED = ClientKey("limited", "", frozenset({"train"}))


def subscribe(stream: str) -> Subscribe:
    return Subscribe(stream, 0, 1, 1, Cursor(), "drop", 4, "inline", None, resuming=False)


@pytest.mark.parametrize("message", [subscribe("test"), AskNames("test", (0,)), AskMonitor()])
def test_a_limited_key_is_refused_what_is_not_its_own(message: ClientMessage) -> None:
    assert find_refusal(LIMITED, message) is not None
    assert find_refusal(FREE, message) is None


@pytest.mark.parametrize("message", [subscribe("train"), AskNames("train", (0,)), AskStreams()])
def test_a_limited_key_may_ask_for_its_own(message: ClientMessage) -> None:
    assert find_refusal(LIMITED, message) is None


def test_the_refusal_names_the_key_and_its_streams() -> None:
    refusal = find_refusal(LIMITED, subscribe("test"))
    assert refusal is not None
    assert "no stream 'test' for the key limited, which may read: train" in refusal.text


def test_answers_leave_out_the_streams_of_others() -> None:
    assert limit_answer(LIMITED, Streams({"train": SPEC, "test": SPEC})) == Streams({"train": SPEC})
    stats = Stats({"daemon": {"a": 1.0}, "stream.train": {}, "stream.test": {}})
    assert limit_answer(LIMITED, stats) == Stats({"daemon": {"a": 1.0}, "stream.train": {}})
    assert limit_answer(FREE, stats) is stats
    assert limit_answer(LIMITED, Draining()) == Draining()


def test_the_status_leaves_out_the_streams_of_others() -> None:
    status = StatusNow(DaemonStatus("1", 1, "ipc:///s", 1.0, 1, 0.0, 1, 0, draining=False))
    assert limit_answer(LIMITED, status) == status
