"""The daemon of `streamd.local`: a request in, one line out, and it ends with the lock of its owner."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.daemon_process import LIMIT_S, stream_config, write_images

from streamd.daemon.embedded import choose_config_source
from streamd.errors import ConfigError
from streamd.ipc.local_daemon import READY_LINE, LifeLock, LocalDaemonRequest

COMMAND = [sys.executable, "-m", "streamd.daemon.embedded"]


@contextmanager
def request(config: str | dict[str, object], folder: Path) -> Iterator[LifeLock]:
    """A request to serve `config` in `folder`, which is made."""
    folder.mkdir()
    lock = LifeLock(LocalDaemonRequest(config, str(folder)).encode())
    try:
        yield lock
    finally:
        lock.release()


@pytest.mark.long
def test_it_reports_ready_and_ends_when_its_owners_lock_is_released(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 8})
    config: dict[str, object] = {"workers": 1, "streams": {"train": stream_config(folder)}}
    with request(config, tmp_path / "own") as lock:
        held = lock.descriptor
        with subprocess.Popen([*COMMAND, str(held)], pass_fds=[held], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == READY_LINE
            assert process.stdout.read() == b""  # nothing that a library prints later can fill the pipe
            lock.release()
            assert process.wait(LIMIT_S) == 0
    assert not (tmp_path / "own").exists()


def run_request(
    config: str | dict[str, object], folder: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    with request(config, folder) as lock:
        command = [*COMMAND, str(lock.descriptor)]
        return subprocess.run(
            command, pass_fds=[lock.descriptor], stdout=subprocess.PIPE, check=False, timeout=LIMIT_S, env=env
        )


@pytest.mark.long
def test_an_error_is_written_to_standard_output_with_its_exit_status(tmp_path: Path) -> None:
    said = run_request(str(tmp_path / "none.yaml"), tmp_path / "own")
    assert said.returncode == 2
    assert b"none.yaml: there is no such file" in said.stdout
    assert not (tmp_path / "own").exists()


def run_without(
    libraries: tuple[str, ...], config: dict[str, object], tmp_path: Path
) -> subprocess.CompletedProcess[bytes]:
    """Runs the daemon's side on a configuration, where these libraries cannot be imported."""
    (tmp_path / "hidden").mkdir()
    for library in libraries:
        (tmp_path / "hidden" / f"{library}.py").write_text(f"raise ModuleNotFoundError('no', name='{library}')")
    path = {"PYTHONPATH": f"{tmp_path}/hidden:{Path(__file__).resolve().parents[2]}"}
    return run_request(config, tmp_path / "own", path)


def test_without_the_daemons_libraries_it_names_the_extra(tmp_path: Path) -> None:
    said = run_without(("pydantic",), {"streams": {}}, tmp_path)
    assert said.returncode == 2
    assert (
        b"streamd.local needs pydantic, which is not installed: run  pip install 'streamd-loader[serve]'" in said.stdout
    )


def test_data_paths_take_a_size_and_configurations_are_kept(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 6, "dog": 6})
    made = choose_config_source(LocalDaemonRequest(str(folder), "", (8, 9)))
    assert isinstance(made, dict)
    assert made["streams"]["train"]["image"] == {"size": [8, 9]}
    assert choose_config_source(LocalDaemonRequest("streams.conf", "")) == Path("streams.conf")
    assert choose_config_source(LocalDaemonRequest({"streams": {}}, "")) == {"streams": {}}


def test_root_label_and_encoding_decide_how_data_are_read_and_are_no_keys_of_a_configuration(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 6})
    (tmp_path / "all.csv").write_bytes(
        "file,größe,art\n".encode("cp1252") + b"".join(b"%04d.jpg,%d,x%d\n" % (n, n, n % 2) for n in range(6))
    )
    asked = LocalDaemonRequest(str(tmp_path / "all.csv"), "", (8, 9), str(folder / "cat"), ("größe",), "cp1252")
    made = choose_config_source(asked)
    assert isinstance(made, dict)
    assert made["streams"]["train"]["labels"] == {"größe": "int"}
    source = made["streams"]["train"]["source"]
    assert (source["root"], source["encoding"]) == (str(folder / "cat"), "cp1252")
    (tmp_path / "config.yaml").write_text("streams: {}\n")
    with pytest.raises(
        ConfigError, match=r"^root, label and encoding are for a path of data, and .* is a configuration"
    ):
        choose_config_source(LocalDaemonRequest(str(tmp_path / "config.yaml"), "", None, "here"))
    with pytest.raises(ConfigError, match=r"^label=: .*all.csv' has no column 'x'; its columns are: file, größe, art"):
        choose_config_source(LocalDaemonRequest(str(tmp_path / "all.csv"), "", None, None, ("x",), "cp1252"))


@pytest.mark.parametrize(
    ("path", "size", "says"),
    [
        ("config.yaml", (8, 8), "size is for a path of data, and config.yaml is a configuration"),
        ("x.h5", None, "there is no '.*x.h5'"),
        ("nothing", (8, 8), "^there is no '.*nothing'"),
        (".", None, "holds no images, only 'config.yaml'; .*: give streamd.local the path of that file$"),
    ],
)
def test_a_path_that_is_neither_data_nor_configuration_is_refused(
    path: str, size: tuple[int, int] | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        choose_config_source(LocalDaemonRequest(path, "", size))


def test_a_mistake_in_the_configuration_is_found_before_the_daemons_libraries_are_loaded(tmp_path: Path) -> None:
    said = run_without(("numpy", "zmq"), {"memroy": "1GiB"}, tmp_path)
    assert b"configuration: memroy: unknown key; did you mean 'memory'?" in said.stdout
