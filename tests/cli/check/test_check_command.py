"""`streamd check`: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.crashing_decoders import Broken
from support.daemon_process import stream_config, wait_until, write_images
from typer.testing import CliRunner, Result

from streamd.cli.main import app
from streamd.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 5, "dog": 3})


@pytest.fixture
def config(tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "config.yaml"
    listen = f"ipc://{tmp_path}/s"
    path.write_text(json.dumps({"listen": listen, "workers": 1, "streams": {"train": stream_config(folder)}}))
    return path


def check(config: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["check", "--config", str(config), *options])


def test_good_data_are_reported_with_exit_status_0(config: Path) -> None:
    done = check(config)
    assert done.exit_code == 0, done.output
    assert "train: 8 samples" in done.stdout
    assert "cat" in done.stdout
    assert done.stdout.endswith("Nothing stands in the way of serving this.\n")


@pytest.mark.long
def test_the_configuration_may_be_named_without_an_option_but_not_twice(config: Path) -> None:
    named = CliRunner().invoke(app, ["check", str(config)])
    assert named.exit_code == 0, named.output
    assert CliRunner().invoke(app, ["check", str(config), "--config", "other.yaml"]).exit_code == 2


def test_an_unreadable_file_is_named_with_exit_status_1(config: Path, folder: Path) -> None:
    (folder / "cat" / "empty.jpg").write_bytes(b"")
    done = check(config)
    assert done.exit_code == 1
    assert "cat/empty.jpg: an empty file" in done.stdout


@pytest.mark.long
def test_warnings_alone_are_exit_status_0(config: Path, folder: Path) -> None:
    (folder / "notes.txt").write_text("no image")
    (folder / "dog" / "copy.jpg").write_bytes((folder / "dog" / "0000.jpg").read_bytes())
    done = check(config)
    assert done.exit_code == 0
    assert "1 file with the same content as another, such as dog/0000.jpg and dog/copy.jpg" in done.stdout
    assert ".txt" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(("spoilt", "status"), [(False, 0), (True, 1)])
def test_json_prints_one_object_on_standard_output(config: Path, folder: Path, *, spoilt: bool, status: int) -> None:
    if spoilt:
        (folder / "cat" / "page.jpg").write_bytes(b"<html>")
    done = check(config, "--json")
    assert done.exit_code == status
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["ok"] is not spoilt
    assert found["streams"]["train"]["labels"]["label"]["classes"] == {"cat": 5 + spoilt, "dog": 3}
    assert [each["file"] for each in found["streams"]["train"]["unreadable"]] == ["cat/page.jpg"] * spoilt


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "read"),
    [
        (["--sample", "3"], 3),
        (["--quick"], 8),
        ([], 8),
    ],
)
def test_the_sample_has_the_requested_size(config: Path, options: list[str], read: int) -> None:
    assert json.loads(check(config, "--json", *options).stdout)["streams"]["train"]["read"] == read


@pytest.mark.parametrize("text", ["streams: {train: {source: {kind: foldr, path: x}}}", "", "streams: {train: {"])
def test_check_reports_a_mistake_in_the_configuration_as_serve_does(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    refused = CliRunner().invoke(app, ["serve", "--config", str(path)]).exception
    assert isinstance(refused, ConfigError)
    for options in ([], ["--json"]):
        done = check(path, *options)
        assert (done.exit_code, done.stderr) == (1, f"streamd: {refused}\n")
    assert json.loads(done.stdout) == {"ok": False, "troubles": str(refused).splitlines(), "warnings": []}


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


MAIN = "from streamd.cli.main import main; main()"


@pytest.mark.long
def test_a_pipe_gets_plain_text_and_a_quick_check_is_silent_on_stderr(config: Path) -> None:
    done = run_python(MAIN, "--config", str(config))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


@pytest.mark.long
def test_escape_sequences_in_file_names_never_reach_the_terminal(config: Path, folder: Path) -> None:
    (folder / "cat" / "a\x1b[2J\n[red]b.jpg").write_bytes(b"")
    done = check(config)
    assert "             cat/a\\x1b[2J\\n[red]b.jpg: an empty file\n" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.long
def test_a_folder_whose_name_is_not_utf_8_is_still_reported(tmp_path: Path, folder: Path) -> None:
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    odd.mkdir()
    folder.rename(odd / "data")
    (odd / "config.yaml").write_text(json.dumps({"workers": 1, "streams": {"train": stream_config(Path("data"))}}))
    done = check(odd / "config.yaml", "--json")
    assert done.exit_code == 1, done.exception
    found = json.loads(done.stdout)
    assert found["streams"]["train"]["root"] == f"{tmp_path}/\\xff/data"
    assert "whose name is not UTF-8, is not served by this version" in json.dumps(found)


@pytest.mark.long
@pytest.mark.parametrize(("library", "purpose"), [("aiofiles", "streamd serve"), ("aiohttp", "the monitor")])
def test_a_library_missing_for_serve_is_trouble(config: Path, library: str, purpose: str) -> None:
    config.write_text(json.dumps({**json.loads(config.read_text()), "monitor": "127.0.0.1:0"}))
    done = run_python(f"import sys; sys.modules['{library}'] = None; {MAIN}", "--config", str(config), "--json")
    said = f"{purpose} needs {library}, which is not installed: run  pip install 'streamd-loader[serve]'"
    assert (done.returncode, done.stderr) == (1, f"streamd: {said}\n")
    assert json.loads(done.stdout) == {"ok": False, "troubles": [said], "warnings": []}


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_check_silently_and_leaves_no_files(
    tmp_path: Path, config: Path, number: signal.Signals, status: int
) -> None:
    ills = Broken(tmp_path / "ills")
    ills.hang_reads()
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, **ills.environment, "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-c", MAIN, "check", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, process_group=0) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(children.read_text, "the reading begins")
        os.killpg(process.pid, number)
        _, said = process.communicate()
    assert (process.returncode, said) == (status, b"")
    assert list((tmp_path / "tmp").iterdir()) == []
