"""The daemon of `streamd.local`: one line in, one line out, and it ends with its input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.daemon_process import LIMIT_S, stream_config, write_images

from streamd.daemon.embedded import choose_config_source
from streamd.errors import ConfigError
from streamd.ipc.local_daemon import READY_LINE, LocalDaemonRequest

COMMAND = [sys.executable, "-m", "streamd.daemon.embedded"]


@pytest.mark.long
def test_it_reports_ready_and_ends_when_its_input_closes(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 8})
    (tmp_path / "own").mkdir()
    errand = LocalDaemonRequest({"workers": 1, "streams": {"train": stream_config(folder)}}, str(tmp_path / "own"))
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(errand) + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == READY_LINE
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
    assert not (tmp_path / "own").exists()


@pytest.mark.long
def test_an_error_is_written_to_standard_output_with_its_exit_status(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    line = msgspec.json.encode(LocalDaemonRequest(str(tmp_path / "none.yaml"), str(tmp_path / "own"))) + b"\n"
    said = subprocess.run(COMMAND, input=line, stdout=subprocess.PIPE, check=False, timeout=LIMIT_S)
    assert said.returncode == 2
    assert b"none.yaml: there is no such file" in said.stdout
    assert not (tmp_path / "own").exists()


def run_without(
    libraries: tuple[str, ...], config: dict[str, object], tmp_path: Path
) -> subprocess.CompletedProcess[bytes]:
    """Runs the daemon's side on a configuration, where these libraries cannot be imported."""
    for folder in ("hidden", "own"):
        (tmp_path / folder).mkdir()
    for library in libraries:
        (tmp_path / "hidden" / f"{library}.py").write_text(f"raise ModuleNotFoundError('no', name='{library}')")
    line = msgspec.json.encode(LocalDaemonRequest(config, str(tmp_path / "own"))) + b"\n"
    path = {"PYTHONPATH": f"{tmp_path}/hidden:{Path(__file__).resolve().parents[2]}"}
    return subprocess.run(COMMAND, input=line, stdout=subprocess.PIPE, check=False, timeout=LIMIT_S, env=path)


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
