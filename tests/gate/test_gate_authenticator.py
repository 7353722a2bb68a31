"""A gate whose authenticator fails, hangs or is gone lets nobody in."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq
from support.coroutine_tests import wait_for_condition
from support.gate_rig import connect_with_key, run_gate
from support.remote_daemon import RemoteKeys

from streamd.gate.network_router import Authenticator, ClientKeys
from streamd.ipc import router
from streamd.ipc.messages import EMPTY_HEADER, AskStreams, encode_frame

HANDSHAKE_MS = 300
QUESTION = encode_frame(EMPTY_HEADER, AskStreams())


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteKeys:
    monkeypatch.setattr(router, "HANDSHAKE_MS", HANDSHAKE_MS)
    return RemoteKeys(tmp_path / "keys")


async def test_an_allowed_key_is_let_in_and_its_frames_arrive(keys: RemoteKeys) -> None:
    async with run_gate(keys) as rig:
        with connect_with_key(rig, keys.add_client("me")) as client:
            client.dealer.send(QUESTION)
            await wait_for_condition(lambda: rig.frames, "its frame is there")
            assert client.is_let_in()


async def test_a_strange_key_is_refused_and_logged_once(keys: RemoteKeys, caplog: pytest.LogCaptureFixture) -> None:
    async with run_gate(keys) as rig:
        stranger = keys.add_client("stranger", allowed=False)
        for _ in range(2):
            with connect_with_key(rig, stranger) as client:
                await wait_for_condition(client.is_refused, "it is refused")
                assert not client.is_let_in()
    assert caplog.text.count("a client at 127.0.0.1 was refused") == 1


async def test_an_error_in_the_authenticator_ends_the_gate(keys: RemoteKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    me, other = keys.add_client("me"), keys.add_client("other")
    async with run_gate(keys) as rig:
        with connect_with_key(rig, me) as client:
            await wait_for_condition(client.is_let_in, "the first client is in")

            def fail(*_: object) -> None:
                raise RuntimeError("no keys today")

            monkeypatch.setattr(ClientKeys, "admit_client", fail)
            with connect_with_key(rig, other) as late:
                await wait_for_condition(lambda: rig.ending and rig.ending.done(), "the gate has ended")
                assert not late.is_let_in()
            await wait_for_condition(client.was_cut_off, "the first client's connection is closed")
        assert rig.ending is not None
        assert str(rig.ending.exception()) == "no keys today"


async def test_without_an_answer_of_the_authenticator_nobody_is_let_in_and_nobody_loses_a_connection(
    keys: RemoteKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, other = keys.add_client("me"), keys.add_client("other")
    async with run_gate(keys) as rig:
        with connect_with_key(rig, me) as client:
            client.dealer.send(QUESTION)
            await wait_for_condition(lambda: rig.frames, "the first client's frame is there")
            client.list_events().clear()  # its own handshake may have taken too long at first
            monkeypatch.setattr(zmq.Socket, "send_multipart", lambda *_: None)  # only the authenticator sends so
            with connect_with_key(rig, other) as late:
                await wait_for_condition(late.was_cut_off, "its handshake has taken too long")
                client.dealer.send(QUESTION)
                await wait_for_condition(lambda: len(rig.frames) == 2, "the first client is served")
                assert not late.is_let_in()
            assert not client.was_cut_off()


async def test_with_the_authenticator_gone_nobody_is_let_in(keys: RemoteKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Authenticator] = []
    begin = Authenticator.__init__

    def keep(self: Authenticator, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]  # whatever the gate gives
        made.append(self)

    monkeypatch.setattr(Authenticator, "__init__", keep)
    async with run_gate(keys) as rig:
        made[0].close()
        with connect_with_key(rig, keys.add_client("me")) as client:
            await wait_for_condition(client.was_cut_off, "its connection was closed")
            assert not client.is_let_in()
