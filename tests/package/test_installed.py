"""Installed from the wheel, in an environment of its own and away from the checkout, it does what it does here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.installed_packages import Environment, serving
from support.monitor_requests import fetch

from streamd.cli import service

pytestmark = [pytest.mark.package, pytest.mark.timeout(180)]

TRAINER = """
import sys, streamd
with streamd.connect(sys.argv[1]) as client, client.subscribe("train", epochs=2) as stream:
    for batch in stream:
        batch.images.sum()
print(*[(receipt.ok, receipt.complete, receipt.samples) for receipt in stream.receipts], streamd.__file__, sep="\\n")
"""
INSTALL = """
import json, pathlib, sys
from streamd.cli import service as hosting
hosting.install_on_host(hosting.ServiceHost(print, print, pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2]), [])
"""


def test_a_trainer_carries_three_libraries(of_a_trainer: Environment) -> None:
    assert of_a_trainer.packages == {"streamd-loader", "pyzmq", "numpy", "msgspec"}


@pytest.mark.parametrize(("command", "extra"), [("streamd", "serve"), ("streamd-train", "train")])
def test_a_command_without_its_libraries_says_what_to_type(of_a_trainer: Environment, command: str, extra: str) -> None:
    done = of_a_trainer.run(command, "--help")
    assert done.returncode == 2
    assert done.stderr == (
        f"{command}: {command} needs typer, which is not installed: run  pip install 'streamd-loader[{extra}]'\n"
    )


def test_a_daemon_of_one_environment_serves_a_trainer_of_another(
    of_a_daemon: Environment, of_a_trainer: Environment, tmp_path: Path
) -> None:
    with serving(of_a_daemon, tmp_path) as daemon:
        trained = of_a_trainer.run("python", "-c", TRAINER, daemon.endpoint)
        status = of_a_daemon.run("streamd", "status", "--endpoint", daemon.endpoint, "--json")
        metrics, page = fetch(f"{daemon.url}/metrics"), fetch(f"{daemon.url}/")
        beside = {name: fetch(f"{daemon.url}/{name}") for name in re.findall(r'(?:src|href)="/?([\w./-]+)"', page)}
    whole = str((True, True, daemon.samples))
    assert trained.stdout.split("\n")[:2] == [whole, whole], trained.stderr
    assert str(of_a_trainer.folder) in trained.stdout
    assert json.loads(status.stdout)["ok"] is True
    assert re.search(rf'^streamd_samples_sent_total{{stream="train"}} {2 * daemon.samples}\.0$', metrics, re.MULTILINE)
    assert page.startswith("<!doctype html>")
    assert beside
    assert all(beside.values())


def test_the_command_that_trains_is_the_wheels_and_trains(
    of_a_daemon: Environment, of_training: Environment, tmp_path: Path
) -> None:
    found = of_training.run("python", "-c", "import streamd; print(streamd.__file__)").stdout
    assert str(of_training.folder) in found
    with serving(of_a_daemon, tmp_path) as daemon:
        command = (
            f"streamd-train --stream train --endpoint {daemon.endpoint} --epochs 2 --receipts r.json --save m.keras"
        )
        done = of_training.run(*command.split())
    assert done.returncode == 0, done.stderr
    receipts = json.loads((of_training.empty / "r.json").read_text())
    assert [(each["ok"], each["samples"]) for each in receipts] == [(True, daemon.samples)] * 2
    assert (of_training.empty / "m.keras").exists()


def test_every_command_is_explained(of_a_daemon: Environment) -> None:
    told = of_a_daemon.run("streamd", "--help").stdout
    commands = re.findall(r"^  ([a-z]+) ", told.partition("Commands:")[2], re.MULTILINE)
    assert len(commands) > 8
    for command in commands:
        done = of_a_daemon.run("streamd", command, "--help")
        assert (done.returncode, done.stderr) == (0, ""), command


def test_a_configuration_is_checked(of_a_daemon: Environment, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("streams: {train: {source: {kind: folder, path: nowhere}, image: {size: [8, 8]}}}")
    done = of_a_daemon.run("streamd", "check", "--config", str(config))
    assert done.returncode == 1
    assert "nowhere" in done.stdout + done.stderr
    assert done.stderr.count("Traceback") == 0


def test_the_service_that_is_installed_is_that_of_the_checkout(of_a_daemon: Environment, tmp_path: Path) -> None:
    streamd = Path("/opt/streamd/bin/streamd")
    done = of_a_daemon.run("python", "-c", INSTALL, str(tmp_path), str(streamd))
    assert done.returncode == 0, done.stderr
    expected = dict(service.read_files_to_install(streamd))
    assert {place: (tmp_path / place.relative_to("/")).read_text() for place in expected} == expected
    assert (tmp_path / "etc/streamd/config.yaml").exists()


def test_the_service_command_finds_its_own_environment(of_a_daemon: Environment) -> None:
    found = of_a_daemon.run(
        "python", "-c", "from streamd.cli import service as hosting; print(hosting.find_streamd_command())"
    ).stdout.strip()
    assert found == str(of_a_daemon.folder / "bin" / "streamd")
