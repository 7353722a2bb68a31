"""`streamd serve` up to the point where the daemon starts."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.daemon_process import LIMIT_S, wait_until, write_images
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.errors import ConfigError

HEAVY = {"zmq", "numpy", "PIL", "pyarrow", "ruamel.yaml", "streamd.daemon.daemon", "streamd.cli.check.run"}


def run_streamd(prelude: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `streamd` in a process of its own, after `prelude`."""
    code = f"import sys; {prelude}; from streamd.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("command", "options"), [("serve", ("--config", "--rescan")), ("check", ("--sample",))])
def test_help_shows_the_options_and_loads_nothing_heavy(command: str, options: tuple[str, ...]) -> None:
    done = run_streamd("import atexit; atexit.register(lambda: print(*sys.modules))", command, "--help")
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in options)
    loaded = set(done.stdout.split())
    assert "streamd.cli.main" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.long
@pytest.mark.parametrize(("command", "library"), [("serve", "ruamel.yaml"), ("check", "rich.cells")])
def test_a_missing_library_names_the_extra(command: str, library: str) -> None:
    package = library.removesuffix(".console")
    done = run_streamd(f"sys.modules['{package}'] = None", command, "--config", "x")
    assert done.returncode == 2
    assert done.stderr == (
        f"streamd: streamd {command} needs {library}, which is not installed: run  "
        "pip install 'streamd-loader[serve]'\n"
    )


@pytest.mark.parametrize("command", [["serve"], ["check"], ["pack", "train", "packed", "--format", "npy"]])
def test_commands_default_to_config_yaml_in_the_current_folder(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command)
    assert done.exit_code
    assert (
        "config.yaml: there is no such file; give the path of your configuration (--config FILE), "
        "or let streamd write one"
    ) in f"{done.output}{done.exception}"


def test_serve_refuses_a_path_together_with_a_configuration(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["serve", str(tmp_path), "--config", "config.yaml"])
    assert done.exit_code == 2
    assert "is served without a configuration, but --config gives one" in done.stderr


def test_serve_refuses_a_size_without_a_path() -> None:
    done = CliRunner().invoke(app, ["serve", "--config", "config.yaml", "--size", "128"])
    with pytest.raises(ConfigError, match="--size: works only with PATH, but you serve a configuration"):
        raise done.exception or AssertionError


def test_a_path_with_streams_is_served_as_a_configuration_and_takes_no_choices(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("streams:\n  train: {sorce: 1}\n")
    for options, says in (
        ([], "mine.yaml:2: streams.train.sorce: "),
        (["--label", "a"], "--label: is for the data at PATH"),
    ):
        done = CliRunner().invoke(app, ["serve", str(tmp_path / "mine.yaml"), *options])
        assert says in str(done.exception)


def has_started_or_ended(log: Path, daemon: subprocess.Popen[bytes]) -> bool:
    return b"daemon.ready" in log.read_bytes() or daemon.poll() is not None


@pytest.mark.long
def test_serve_takes_a_path_and_reuses_its_manifest(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pets", {"cat": 12, "dog": 9})
    (tmp_path / "run").mkdir()
    environment = {
        **os.environ,
        "STATE_DIRECTORY": str(tmp_path / "state"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "STREAMD_ENDPOINT": "",
    }
    for listed in ("manifest.made", "manifest.reused"):
        log = tmp_path / listed
        with log.open("wb") as said, subprocess.Popen(
            [sys.executable, "-m", "streamd.cli.main", "serve", folder.name, "--size", "20x30"],
            cwd=tmp_path, env=environment, stderr=said,
        ) as daemon:  # fmt: skip
            wait_until(partial(has_started_or_ended, log, daemon), "it serves")
            with streamd.connect(f"ipc://{tmp_path}/run/streamd/streamd.sock") as client:
                specs = client.streams()
            daemon.terminate()
            assert daemon.wait(LIMIT_S) == 0
        assert [spec.image_shape for spec in specs.values()] == [(20, 30, 3)] * 2
        assert sum(spec.samples for spec in specs.values()) == 21
        assert listed in log.read_text()
