"""The client: finding a daemon, sending it requests, and the errors for wrong arguments."""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from support.daemon_process import LIMIT_S, DaemonProcess, Start, stream_config, write_images
from support.forked_child import in_a_forked_child

import streamd
from streamd.client import Client, Stream, client
from streamd.client.sockets import find_connect_address
from streamd.core.spec import OrderId
from streamd.errors import (
    BatchesHeldError,
    ConfigError,
    ConnectError,
    ForkedClientError,
    RefusedError,
    StreamdError,
)
from streamd.limits import DEFAULT_CREDIT


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 20, "dog": 20})
    streams = {"train": stream_config(folder), "validation": stream_config(folder, shuffle="none")}
    with DaemonProcess(place, {"streams": streams}) as daemon:
        yield daemon.endpoint


def test_a_client_knows_the_streams_and_their_specs(endpoint: str) -> None:
    with streamd.connect(endpoint) as client:
        streams = client.streams()
        assert list(streams) == ["train", "validation"]
        spec = streams["train"]
        assert (spec.samples, spec.batches, spec.batch_size, spec.image_shape) == (40, 5, 8, (32, 32, 3))
        assert spec.labels["label"].classes == ("cat", "dog")
        assert spec.labels["label"].counts == (20, 20)
        assert client.stats()["daemon"]["sessions"] == 0
        assert repr(client) == f"<Client {endpoint}, serves train, validation>"
    assert repr(client) == f"<Client {endpoint}, closed>"
    assert repr(Client("ipc:///run/x", 1.0, None)) == "<Client ipc:///run/x>"


def test_the_environment_names_the_endpoint(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMD_ENDPOINT", endpoint)
    with streamd.connect() as client:
        assert client.endpoint == endpoint


def test_a_path_is_an_endpoint_and_one_without_a_socket_is_refused_at_once(endpoint: str, tmp_path: Path) -> None:
    with streamd.connect(endpoint.removeprefix("ipc://")) as client:
        assert client.endpoint == endpoint
    with pytest.raises(ConnectError, match=rf"no streamd daemon at ipc://{tmp_path}/s: there is no socket s in"):
        streamd.connect(f"{tmp_path}/s")


def test_connect_with_a_timeout_waits_for_a_daemon_that_starts_later(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def find_and_tell(*arguments: Any) -> str:
        asked.set()
        return find_connect_address(*arguments)

    monkeypatch.setattr(client, "find_connect_address", find_and_tell)
    with tempfile.TemporaryDirectory(prefix="sd") as folder, ThreadPoolExecutor() as threads:
        connecting = threads.submit(streamd.connect, f"{folder}/s", timeout=LIMIT_S)
        assert asked.wait(LIMIT_S)
        Path(f"{folder}/s").symlink_to(endpoint.removeprefix("ipc://"))
        with connecting.result(LIMIT_S) as there:
            assert "train" in there.streams()


def test_a_batch_knows_the_names_of_its_samples_after_its_client_was_closed(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.client.client.SHOWN_NAMES_TIMEOUT_S", LIMIT_S)
    with streamd.connect(endpoint) as client:
        batch = client.batch("train", 0, 0)
        ids = batch.sample_ids.tolist()
        names = dict(zip(ids, client.names("train", ids), strict=True))
        with client.subscribe("train", batch_size=4) as stream:
            (part,) = islice(stream, 1)
    assert batch.find_names(ids) == names
    assert part.find_names(ids[:4]) == {each: names[each] for each in ids[:4]}
    assert batch.find_names([999]) == {}, "it is not a sample"


def test_no_names_are_found_where_the_daemon_is_gone_or_silent_or_serves_other_samples(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamd.connect(endpoint) as there:
        spec = there.spec("train")
    monkeypatch.setattr(client, "SHOWN_NAMES_TIMEOUT_S", 0.05)
    assert client._find_names(f"ipc://{tmp_path}/s", spec, [0]) == {}
    with tempfile.TemporaryDirectory(prefix="sd") as folder, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/s")
        silent.listen()
        assert client._find_names(f"ipc://{folder}/s", spec, [0]) == {}
    monkeypatch.undo()
    assert client._find_names(endpoint, replace(spec, order_id=OrderId("other")), [0]) == {}
    assert client._find_names(endpoint, replace(spec, name="gone"), [0]) == {}


def test_leaving_the_client_closes_its_streams(endpoint: str) -> None:
    with streamd.connect(endpoint) as client:
        stream = client.subscribe("train")
        next(iter(stream))
        assert stream._session.subscription.credit == DEFAULT_CREDIT
    with pytest.raises(ConnectError, match="this stream is closed; subscribe again"):
        next(iter(stream))
    with pytest.raises(ConnectError, match="closed"):
        stream.seek(stream.token)
    assert [receipt.complete for receipt in stream.receipts] == [False]


def test_an_error_within_the_client_closes_its_streams_and_propagates(endpoint: str) -> None:
    streams: list[Stream] = []

    def fail() -> None:
        with streamd.connect(endpoint) as client, client.subscribe("train") as stream:
            streams.append(stream)
            next(iter(stream))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(streams[0].receipts) == 1


def test_a_missing_daemon_is_a_connect_error_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ConnectError, match=r"no answer within 0\.1 s; there is no socket s in .*; start `streamd"
    ) as raised:
        streamd.connect(f"ipc://{tmp_path}/s", timeout=0.1)
    assert raised.value.endpoint == f"ipc://{tmp_path}/s"


@pytest.mark.parametrize(
    ("wish", "error", "says"),
    [
        (
            {"stream": "trian"},
            RefusedError,
            "there is no stream 'trian'; the daemon serves: train, validation; did you mean 'train'\\?",
        ),
        ({"stream": "zzz"}, RefusedError, "there is no stream 'zzz'; the daemon serves: train, validation"),
        ({"rank": 2, "world": 2}, ConfigError, "rank 2 of world 2 does not exist: ranks go from 0 to world - 1"),
        ({"rank": -1}, ConfigError, "rank -1"),
        ({"world": 0}, ConfigError, "world=0: write a whole number from 1 to 1048575"),
        ({"rank": "Auto"}, ConfigError, "rank='Auto': write a whole number, or \"auto\" for what"),
        (
            {"rank": "auto", "world": 3},
            ConfigError,
            'world=3 was given with rank="auto", but this process is in a world of 1',
        ),
        ({"epochs": 0}, ConfigError, "epochs=0: write a whole number of at least 1, or None"),
        ({"uneven": "Pad"}, ConfigError, "uneven='Pad': write \"drop\" or \"pad\", or None .*; did you mean 'pad'"),
        ({"prefetch": 1}, ConfigError, "prefetch=1: write a whole number from 2 to 1024, or None for 16"),
        ({"batch_size": "8"}, ConfigError, "batch_size='8': write a whole number"),
        (
            {"transport": "inlin"},
            ConfigError,
            "transport='inlin': write \"shared\" or \"inline\"; did you mean 'inline'",
        ),
        ({"start": {"together": True}}, ConfigError, "start={'together': True}: use"),
        ({"stream": ["train"]}, ConfigError, "stream=.*: write the name of one stream as text"),
        ({"start": "alive"}, ConfigError, 'start=\'alive\': use "begin", "live"'),
        ({"start": {"together": 0}}, ConfigError, "begin when K trainers are there, at most 256"),
        ({"start": {"togther": 2}}, ConfigError, '{"together": K}'),
        ({"start": {"together": 257}}, ConfigError, "at most 256"),
        ({"batch_size": 5}, ConfigError, "use a divisor or a multiple of 8, such as 1, 2, 4, 16"),
        ({"world": 6}, RefusedError, 'use fewer ranks, a smaller batch_size or uneven="pad"'),
    ],
)
def test_an_impossible_subscription_is_refused_with_the_reason(
    endpoint: str, wish: dict[str, Any], error: type[StreamdError], says: str
) -> None:
    with streamd.connect(endpoint) as client:
        with pytest.raises(error, match=says):
            client.subscribe(**{"stream": "train", **wish})
        assert client.stats()["daemon"]["sessions"] == 0


def test_numpy_numbers_are_accepted_as_arguments(endpoint: str) -> None:
    with streamd.connect(endpoint, patience=np.float64(60)) as client:
        numbers: dict[str, Any] = {
            "epochs": np.int64(1),
            "world": np.int64(2),
            "rank": np.uint8(1),
            "prefetch": np.int16(4),
        }
        with client.subscribe("train", batch_size=np.int64(4), start={"together": np.int64(1)}, **numbers) as stream:
            assert [(batch.index, len(batch)) for batch in stream] == [(2, 4), (3, 4), (6, 4), (7, 4)]
        assert client.batch("train", np.int64(0), np.int64(1)).index == 1
        assert len(client.names("train", np.array([0, 1]))) == 2


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda client: client.batch("train", 0.0, 0), "epoch=0.0: write a whole number of at least 0"),
        (lambda client: client.batch("train", 0, False), "index=False: write a whole number"),
        (lambda client: client.batch("train", 10**20, 0), "epoch=1000.*: write a whole number from 0 to 10995"),
        (lambda client: client.spec(1), "stream=1: write the name of one stream as text"),
        (lambda client: client.names("train", [0, 1.5]), "sample_ids: 1.5 is not a sample id; write whole numbers"),
        (lambda client: client.names(1, [1]), "stream=1: write"),
    ],
)
def test_a_request_with_a_wrong_argument_is_refused_before_it_is_sent(
    ask: Callable[[Client], object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        ask(Client("ipc:///no/daemon", 0.001, None))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"patience": "60"}, "patience='60': write a number of seconds, 0 or more"),
        ({"timeout": -1}, "timeout=-1: write a finite number of seconds above 0"),
        ({"endpoint": 3}, "endpoint 3: write the path of the daemon's socket as text"),
        ({"endpoint": b"/run/x"}, "endpoint b'/run/x': write"),
    ],
)
def test_wrong_arguments_of_connect_are_refused_at_once(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        streamd.connect(**{"endpoint": "/no/such/socket", **wrong})


def test_keys_for_a_socket_of_this_host_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"keys are for tcp:// endpoints, and ipc://.* is none"):
        streamd.connect(endpoint, curve={"secret": "me.key_secret", "server": "daemon.key"})


def test_the_launchers_rank_takes_its_own_batches(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with streamd.connect(endpoint) as client, client.subscribe("train", epochs=1, rank="auto") as stream:
        assert [batch.index for batch in stream] == [1, 3]
        assert stream.receipts[0].dropped == 8


def test_holding_every_batch_raises_an_error_that_names_them_until_one_is_dropped(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.client.waiting.HELD_COLLECT_S", 0.01)
    monkeypatch.setattr("streamd.client.waiting.HELD_ERROR_S", 0.05)
    with streamd.connect(endpoint) as client, client.subscribe("train", prefetch=2) as stream:
        batches = stream.epochs()
        held = list(islice(next(batches), 2))
        with pytest.raises(
            BatchesHeldError, match=r"epoch:index 0:0, 0:1.*keep batch.copy\(\) or images.clone\(\)"
        ) as raised:
            next(next(batches))
        assert raised.value.held == ((0, 0), (0, 1))
        monkeypatch.undo()  # time for the release to reach the daemon, and for the batch to come
        held.pop()
        assert next(next(batches)).index == 2


def test_garbage_that_holds_batches_is_collected_before_an_error_is_raised(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.client.waiting.HELD_COLLECT_S", 0.01)
    with streamd.connect(endpoint) as client, client.subscribe("train", prefetch=2, epochs=1) as stream:
        for batch in stream:
            ring: list[Any] = [batch.images]
            ring.append(ring)
            del ring, batch
        assert stream.receipts[0].ok


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_and_disturbs_nothing(endpoint: str) -> None:
    with streamd.connect(endpoint) as client, client.subscribe("train", epochs=1) as stream:
        batches = iter(stream)
        first = next(batches)

        def misuse() -> None:
            for use in (
                lambda: next(batches),
                lambda: stream.seek(stream.token),
                lambda: client.subscribe("train"),
                client.streams,
                client.stats,
            ):
                with pytest.raises(ForkedClientError, match=r"call streamd\.connect\(\) after fork, in the child"):
                    use()
            assert first.images.sum() > 0
            client.close()

        assert in_a_forked_child(misuse) == 0
        assert [batch.index for batch in batches] == [1, 2, 3, 4]
        assert stream.receipts[0].ok


def test_a_daemon_that_dies_between_the_first_answer_and_the_subscription_is_a_connect_error(
    endpoint: str, tmp_path: Path
) -> None:
    with streamd.connect(endpoint) as known:
        spec = known.streams()["train"]
    lost = Client(f"ipc://{tmp_path}/s", 0.1, None)
    lost.streams = lambda: {"train": spec}  # type: ignore[method-assign]  # as the daemon said when it was there
    with pytest.raises(ConnectError, match=r"no answer to a subscription within 0\.1 s"):
        lost.subscribe("train")


def test_a_request_during_a_daemon_restart_is_sent_again(
    start_daemon: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.client.client.ASK_AGAIN_S", 0.05)
    daemon = start_daemon(
        {"workers": 1, "streams": {"train": stream_config(write_images(tmp_path / "data", {"cat": 8}))}}
    )
    with streamd.connect(daemon.endpoint, timeout=LIMIT_S) as client:
        daemon.process.send_signal(signal.SIGSTOP)
        asked: list[object] = []
        asking = threading.Thread(target=lambda: asked.append(client.streams()))
        asking.start()
        daemon.restart_after_kill()
        asking.join(LIMIT_S)
        assert len(asked) == 1


def test_a_request_to_a_daemon_that_has_ended_for_good_stops_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ASK_AGAIN_S", 0.01)
    nobody = Client(f"ipc://{tmp_path}/nobody", 1e6, None)
    gone = threading.Timer(0.05, nobody._fail_all_streams, [ConnectError(nobody.endpoint, "it was killed")])
    gone.start()
    with pytest.raises(ConnectError, match="it was killed"):
        nobody.status()
    gone.join()


def test_an_interrupted_request_leaves_the_client_usable(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with streamd.connect(endpoint) as asker:
        with monkeypatch.context() as patch:
            patch.setattr(zmq.Socket, "connect", interrupted)
            with pytest.raises(KeyboardInterrupt):
                asker.streams()
        assert "train" in asker.streams()


def test_the_second_subscription_to_one_shuffled_epoch_says_what_to_write(
    endpoint: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ONE_EPOCH_SUBSCRIPTIONS", {})

    def said_by(stream: str, times: int, **wish: Any) -> str:
        with streamd.connect(endpoint) as client:
            for _ in range(times):
                client.subscribe(stream, **wish).close()
        return capfd.readouterr().err

    with streamd.connect(endpoint) as opened, opened.subscribe("train") as stream:
        next(iter(stream))
        token = stream.token
    for wish in ({"epochs": 2}, {}, {"epochs": 1, "resume": token}, {"epochs": 1, "start": "live"}):
        assert said_by("train", 2, **wish) == ""
    assert said_by("validation", 2, epochs=1) == ""
    assert [said_by("train", 1, epochs=1, rank=rank, world=2) for rank in (0, 1)] == ["", ""]
    assert said_by("train", 1, epochs=1) == ""
    told = said_by("train", 2, epochs=1)
    assert told.count("\n") == 1
    assert "epoch 0 each time" in told
    assert "client.subscribe('train', epochs=N)" in told
