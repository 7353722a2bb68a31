"""`streamd.local`: a daemon that starts and ends with its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import LIMIT_S, stream_config, wait_until, write_images

import streamd
from streamd.client import Stream
from streamd.client.local import LocalClient
from streamd.errors import ConfigError, ConnectError
from streamd.ipc.local_daemon import LOCAL_STOP_S

SCRIPT = """
import json, os, signal, subprocess, sys, threading
import streamd
clients = []
making = threading.Thread(target=lambda: clients.append(streamd.local(json.loads(sys.argv[1]))))
making.start()
making.join()  # the end of the thread that made it ends no daemon
print(clients[0].pid, clients[0].endpoint, flush=True)
child = "import signal; signal.pause()"
match sys.argv[2]:
    case "fork": pid = os.fork()
    case "spawn": pid = subprocess.Popen([sys.executable, "-c", child], close_fds=False).pid
if not pid:
    exec(child)
print(pid, list(clients[0].streams()), flush=True)
sys.stdin.readline()
match sys.argv[3]:
    case "os._exit": os._exit(0)
    case "exec": os.execv(sys.executable, [sys.executable, "-c", child])
    case "close":
        clients[0].close()
        print("closed", flush=True)
        exec(child)
"""


@pytest.fixture
def config(tmp_path: Path) -> dict[str, object]:
    folder = write_images(tmp_path / "data", {"cat": 20, "dog": 12})
    return {"workers": 1, "memory": "32MiB", "streams": {"train": stream_config(folder)}}


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClient]:
    """A client that no test changes; its mapping holds paths, NumPy values and endpoints."""
    folder = write_images(tmp_path_factory.mktemp("d") / "data", {"cat": 20, "dog": 12})
    source = {"kind": "folder", "path": folder}
    stream = stream_config(folder, source=source, batch_size=np.int64(4), drop_remainder=np.True_)
    listen = {"listen": ["ipc:///run/a", "ipc:///run/b"], "monitor": "127.0.0.1:0"}
    with streamd.local({"memory": "32MiB", **listen, "workers": np.uint8(1), "streams": {"train": stream}}) as client:
        yield client


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it is gone, or goes between opening and reading
        return False


def test_a_mapping_is_served_and_its_daemon_ends_quietly_with_the_client(
    config: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    with streamd.local(config) as client:
        folder = Path(client.endpoint.removeprefix("ipc://")).parent
        assert is_running(client.pid)
        with client.subscribe("train", epochs=1) as stream:
            assert sum(len(batch) for batch in stream) == 32
            assert stream.receipts[0].ok
    assert not is_running(client.pid)
    assert not folder.exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_file_is_served_and_its_paths_are_relative_to_it(
    config: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config["streams"] = {"train": stream_config(Path("data"))}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    with streamd.local(tmp_path / "config.yaml") as client:
        assert client.streams()["train"].samples == 32
    monkeypatch.chdir(tmp_path)
    with streamd.local(config) as client:
        assert client.streams()["train"].samples == 32


@pytest.mark.long
def test_a_mapping_may_hold_paths_and_numpy_numbers_and_its_endpoints_are_ignored(lasting: LocalClient) -> None:
    assert repr(lasting) == f"<LocalClient {lasting.endpoint}, serves train>"
    assert {name: (spec.samples, spec.batch_size) for name, spec in lasting.streams().items()} == {"train": (32, 4)}


@pytest.mark.long
def test_two_local_daemons_are_separate_and_the_later_one_sees_new_files(
    config: dict[str, object], tmp_path: Path
) -> None:
    with streamd.local(config) as one:
        write_images(tmp_path / "data", {"emu": 4})
        with streamd.local(config) as other:
            assert one.endpoint != other.endpoint
            assert [client.streams()["train"].samples for client in (one, other)] == [32, 36]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"streams": {}}, "streams"),
        ({"memroy": "1GiB"}, "memroy: unknown key; did you mean 'memory'"),
        ({"streams": {"train": stream_config(Path("/no/such/folder"))}}, "streams.train.source.path: .*no/such/folder"),
    ],
)
def test_configuration_mistakes_raise_and_leave_no_files(
    config: dict[str, object], change: dict[str, object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with pytest.raises(ConfigError, match=says):
        streamd.local({**config, **change})
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("given", "size", "says"),
    [
        ({"streams": {}}, 128, "size=128 is for a path of data, but a mapping is given"),
        ("pets", "128", "size='128': give a number of pixels, or .height, width."),
        ("pets", (1, 2, 3), "such as 128 or"),
        ("pets", 0, "such as 128 or"),
        ("pets", True, "size=True: give"),
    ],
)
def test_an_invalid_size_or_one_given_with_a_mapping_is_refused(
    given: str | dict[str, object], size: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        streamd.local(given, size=size)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"config": None}, "config=None: give streamd.local the path of a config.yaml"),
        ({"config": []}, "config=.*: give streamd.local the path"),
        ({"config": ""}, "config='': give streamd.local the path"),
        ({"config": "/no/such"}, "'/no/such': there is no such file or folder; give streamd.local the path"),
        ({"config": "a\0b"}, "there is no such file or folder"),
        ({"timeout": 0}, "timeout=0: write"),
        ({"patience": -1}, "patience=-1: write"),
    ],
)
def test_wrong_arguments_are_refused_before_a_daemon_is_started(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        streamd.local(**{"config": {"streams": {}}, **wrong})


@pytest.mark.long
def test_data_of_one_class_only_cause_a_warning_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "data" / "pets", {"cat": 6, "dog": 6})
    with streamd.local(tmp_path / "data", size=8):
        pass
    # Closing joins the thread that passes the daemon's lines on.
    assert f"one class only, pets: name '{tmp_path}/data/pets' for the classes cat, dog" in capfd.readouterr().err


@pytest.mark.long
def test_a_folder_is_served_as_init_would_configure_it(config: dict[str, object], tmp_path: Path) -> None:
    assert config
    with streamd.local(tmp_path / "data", size=(20, 30)) as client:
        specs = client.streams()
    assert {name: spec.image_shape for name, spec in specs.items()} == {
        "train": (20, 30, 3),
        "validation": (20, 30, 3),
    }
    assert sum(spec.samples for spec in specs.values()) == 32


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "is of type object; use only"),
        (np.arange(2), "is of type ndarray; use only"),
        ("a\udcff", "surrogates"),
    ],
)
def test_values_that_no_file_could_hold_are_refused_before_a_daemon_is_started(
    config: dict[str, object], value: object, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=says):
        streamd.local({**config, "workers": value})
    assert capfd.readouterr().err == ""


@pytest.mark.long
def test_a_temporary_folder_with_a_path_too_long_for_a_socket_is_not_used(
    config: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with streamd.local(config) as client:
        assert list(client.streams()) == ["train"]
        assert list(long.iterdir()) == []


@pytest.mark.long
def test_a_client_that_is_garbage_collected_ends_its_daemon(config: dict[str, object]) -> None:
    client = streamd.local(config)
    pid = client.pid
    del client
    assert not is_running(pid)


@pytest.mark.long
@pytest.mark.parametrize("child", ["fork", "spawn"])
@pytest.mark.parametrize("ending", ["SIGKILL", "SIGINT", "exit", "os._exit", "exec", "close"])
def test_the_daemon_ends_however_its_process_ends_while_a_child_of_that_lives(
    config: dict[str, object], child: str, ending: str
) -> None:
    command = [sys.executable, "-c", SCRIPT, json.dumps(config), child, ending]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid, endpoint = process.stdout.readline().split()
        living, served = process.stdout.readline().split(maxsplit=1)
        folder = Path(endpoint.removeprefix("ipc://")).parent
        try:
            assert served == "['train']\n"
            began_s = time.monotonic()
            if ending.startswith("SIG"):
                process.send_signal(signal.Signals[ending])
            else:
                process.stdin.close()
            wait_until(lambda: not is_running(int(pid)), "the daemon has ended")
            # By itself: it was not killed after waiting for the end of a pipe.
            assert time.monotonic() - began_s < LOCAL_STOP_S
            wait_until(lambda: not folder.exists(), "its folder is gone")
            assert is_running(int(living))
            if ending == "close":
                assert process.stdout.readline() == "closed\n"
        finally:
            os.kill(int(living), signal.SIGKILL)
            process.kill()


@pytest.mark.long
def test_a_forked_child_that_ends_does_not_end_the_daemon(lasting: LocalClient) -> None:
    child = os.fork()
    if not child:
        lasting.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(lasting.streams()) == ["train"]


@pytest.mark.long
def test_a_daemon_that_is_killed_ends_every_wait_and_leaves_no_folder(config: dict[str, object]) -> None:
    with streamd.local(config) as client, client.subscribe("train", start={"together": 2}) as stream:
        folder = Path(client.endpoint.removeprefix("ipc://")).parent
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, iter(stream))  # for a trainer that never comes
            os.kill(client.pid, signal.SIGKILL)
            with pytest.raises(ConnectError, match=rf"daemon of this process, pid {client.pid}, ended by SIGKILL"):
                waiting.result(LIMIT_S)
        assert not folder.exists()
        for ask in (client.streams, lambda: client.batch("train", 0, 0), lambda: next(iter(stream))):
            with pytest.raises(ConnectError, match=r"streamd\.local again: to continue a stream"):
                ask()


def raises_connect_error(stream: Stream) -> bool:
    try:
        next(iter(stream))
    except ConnectError:
        return True
    return False


@pytest.mark.long
def test_a_seek_after_the_daemon_was_killed_raises_without_waiting(config: dict[str, object]) -> None:
    with streamd.local(config) as client, client.subscribe("train") as stream:
        token = next(iter(stream)).token
        os.kill(client.pid, signal.SIGKILL)
        wait_until(lambda: raises_connect_error(stream), "what came before it is read")
        stream.seek(token)
        with pytest.raises(ConnectError, match="ended by SIGKILL"):
            next(iter(stream))


@pytest.mark.long
def test_sighup_changes_nothing_and_the_error_repeats_the_daemons_last_stderr_line(
    config: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    with streamd.local(config) as client, client.subscribe("train", start={"together": 2}) as stream:
        before = client.streams()
        os.kill(client.pid, signal.SIGHUP)
        said = ""

        def heard() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return "reload.nothing" in said

        wait_until(heard, "the daemon says that there is nothing to reload")
        assert client.streams() == before
        os.kill(client.pid, signal.SIGABRT)
        with pytest.raises(ConnectError, match=r"ended by SIGABRT; it last said: .*reload\.nothing: .*; call"):
            next(iter(stream))
