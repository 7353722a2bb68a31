"""`streamd service install` and `remove` on a folder that stands for the host."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from streamd.cli import service
from streamd.cli.main import main
from streamd.cli.service import (
    ServiceHost,
    find_streamd_command,
    format_start_command,
    install_on_host,
    quote_path,
    remove_from_host,
    run_host_command,
)
from streamd.config.load import load_config
from streamd.errors import ConfigError, HostError

STREAMD = Path("/opt/streamd/bin/streamd")
UNITS = Path("usr/local/lib/systemd/system")
ORDERS = ("Wants", "After")


class HostRecorder:
    """What a host was told to do, and what its operator was told."""

    def __init__(self, root: Path) -> None:
        self.commands: list[str] = []
        self.said: list[str] = []
        self.host = ServiceHost(self.said.append, self.run, root)

    def run(self, command: tuple[str, ...]) -> str:
        """Does nothing, but escapes plain paths as systemd-escape does."""
        self.commands.append(" ".join(command))
        if command[0] != "systemd-escape":
            return ""
        assert command[1:3] == ("--path", "--suffix=mount")
        return " ".join(f"{path.strip('/').replace('/', '-')}.mount" for path in command[3:])

    def write_config(self, unit: str, text: str) -> Path:
        path = self.host.root / "etc" / unit / "config.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return path

    def files(self) -> set[str]:
        root = self.host.root
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def recorder(tmp_path: Path) -> HostRecorder:
    return HostRecorder(tmp_path)


def test_units_start_the_command_and_have_no_placeholder_left(recorder: HostRecorder) -> None:
    install_on_host(recorder.host, STREAMD, [])
    units = {path.name: path.read_text() for path in (recorder.host.root / UNITS).iterdir()}
    assert set(units) == {
        "streamd.service", "streamd@.service", "streamd.socket", "streamd@.socket", "streamd-train@.service"
    }  # fmt: skip
    assert f"ExecStart={STREAMD} serve" in units["streamd@.service"]
    assert f"ExecStart={STREAMD}-train " in units["streamd-train@.service"]
    assert [name for name, text in units.items() if re.search(r"@\w+@", text)] == []


def test_install_writes_alert_rules_and_a_dashboard(recorder: HostRecorder) -> None:
    install_on_host(recorder.host, STREAMD, [])
    assert {"usr/local/share/streamd/alerts.yml", "usr/local/share/streamd/streamd-grafana.json"} <= recorder.files()


def test_installed_files_are_readable_by_everybody(recorder: HostRecorder) -> None:
    before = os.umask(0o077)
    try:
        install_on_host(recorder.host, STREAMD, [])
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode) for path in recorder.host.root.rglob("*") if path.is_file()} == {"0o100644"}
    assert {oct(path.stat().st_mode) for path in recorder.host.root.rglob("*") if path.is_dir()} == {"0o40755"}


def test_users_and_folders_are_created_before_systemd_reloads(recorder: HostRecorder) -> None:
    install_on_host(recorder.host, STREAMD, [])
    assert recorder.commands == [
        "systemd-sysusers /usr/local/lib/sysusers.d/streamd.conf",
        "systemd-tmpfiles --create /usr/local/lib/tmpfiles.d/streamd.conf",
        "systemctl daemon-reload",
    ]


def test_files_of_earlier_versions_are_removed(recorder: HostRecorder) -> None:
    former = recorder.host.root / "usr/local/share/man/man1/streamd.1"
    former.parent.mkdir(parents=True)
    former.write_text("of a version with manual pages")
    install_on_host(recorder.host, STREAMD, [])
    assert not former.exists()
    assert "removed /usr/local/share/man/man1/streamd.1" in recorder.said


def test_the_first_configuration_loads_and_names_an_existing_schema(recorder: HostRecorder) -> None:
    install_on_host(recorder.host, STREAMD, [])
    first = recorder.host.root / "etc/streamd/config.yaml"
    assert {"train", "validation"} <= set(load_config(first).streams)
    schema = re.match(r"# yaml-language-server: \$schema=(.*)\n", first.read_text())
    assert schema is not None
    assert Path(schema[1]).is_file()


def test_an_existing_configuration_survives_install_and_remove(recorder: HostRecorder) -> None:
    mine = recorder.write_config("streamd", "of mine")
    install_on_host(recorder.host, STREAMD, [])
    remove_from_host(recorder.host)
    assert recorder.files() == {"etc/streamd/config.yaml"}
    assert mine.read_text() == "of mine"
    assert "left /etc/streamd/config.yaml as it is" in recorder.said


def test_a_home_folder_is_bound_only_while_the_environment_lies_in_it(recorder: HostRecorder) -> None:
    install_on_host(recorder.host, STREAMD, [Path("/home/ada/env")])
    drop_in = recorder.host.root / UNITS / "streamd-train@.service.d" / "20-environment.conf"
    assert "BindReadOnlyPaths=/home/ada/env\n" in drop_in.read_text()
    install_on_host(recorder.host, STREAMD, [])
    assert not drop_in.parent.exists()


def test_files_of_the_operator_survive_remove(recorder: HostRecorder) -> None:
    install_on_host(recorder.host, STREAMD, [Path("/home/ada/env")])
    theirs = recorder.host.root / UNITS / "streamd.service.d" / "theirs.conf"
    theirs.write_text("[Service]\n")
    rules = recorder.host.root / "usr/local/share/streamd/rules-of-mine.yml"
    rules.touch()
    remove_from_host(recorder.host)
    left = {recorder.host.root / file for file in recorder.files() if not file.startswith("etc")}
    assert left == {theirs, rules}


def test_remove_on_a_clean_host_does_nothing(recorder: HostRecorder) -> None:
    remove_from_host(recorder.host)
    assert not any("disable" in each for each in recorder.commands)
    assert not any(line.startswith("removed") for line in recorder.said)


@pytest.mark.parametrize(
    ("prefix", "unseen"),
    [("/home/ada/env", True), ("/root/env", True), ("/opt/env", False), ("/homestead/env", False)],
)
def test_environments_in_a_home_are_hidden_from_services(
    prefix: str, unseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    assert (Path(prefix) in service.find_folders_hidden_from_services()) is unseen


def test_the_found_command_belongs_to_this_environment() -> None:
    assert find_streamd_command() == Path(sys.prefix) / "bin" / "streamd"


def test_an_environment_without_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip install 'streamd-loader\[serve\]'"):
        find_streamd_command()


def test_a_failing_host_command_is_reported_with_its_output() -> None:
    with pytest.raises(HostError, match="sh -c echo no >&2; exit 3 ended with status 3: no"):
        run_host_command(("sh", "-c", "echo no >&2; exit 3"))


def test_an_unusual_environment_path_is_quoted_for_systemd(recorder: HostRecorder) -> None:
    install_on_host(recorder.host, Path("/home/it's 100% mine/bin/streamd"), [Path("/home/it's 100% mine")])
    units = recorder.host.root / UNITS
    assert '"/home/it\'s 100%% mine/bin/streamd" serve' in (units / "streamd.service").read_text()
    assert '"/home/it\'s 100%% mine/bin/streamd-train" $ARG' in (units / "streamd-train@.service").read_text()
    bound = (units / "streamd.service.d" / "20-environment.conf").read_text()
    assert 'BindReadOnlyPaths="/home/it\'s 100%% mine"\n' in bound


def test_each_daemon_wants_the_mounts_of_its_data_and_starts_after_them(recorder: HostRecorder) -> None:
    image = "image: {size: [8, 8]}"
    for name, source in (("streamd", "{kind: folder, path: /mnt/pets}"), ("streamd@x", "{kind: tar, path: /s/*.tar}")):
        recorder.write_config(name, f"streams:\n  train: {{source: {source}, {image}}}\n")
    install_on_host(recorder.host, STREAMD, [])
    units = recorder.host.root / UNITS
    one = (units / "streamd.service.d" / "30-data.conf").read_text().splitlines()
    assert one[1:] == ["[Unit]", *(f"{key}={unit}" for unit in ("mnt.mount", "mnt-pets.mount") for key in ORDERS)]
    assert "After=s.mount" in (units / "streamd@x.service.d" / "30-data.conf").read_text()
    remove_from_host(recorder.host)
    assert not units.exists() or not list(units.iterdir())


def test_a_daemon_starts_after_the_mounts_of_its_labels_weights_and_cache(recorder: HostRecorder) -> None:
    stream = "source: {kind: folder, path: /p}, image: {size: [8, 8]}, labels: {y: {type: int, from: /l/y.npy}}"
    recorder.write_config("streamd", f"streams:\n  train: {{{stream}, weights: /w/w.npy, cache: {{path: /c}}}}\n")
    install_on_host(recorder.host, STREAMD, [])
    orders = (recorder.host.root / UNITS / "streamd.service.d" / "30-data.conf").read_text().splitlines()
    assert {f"{key}={unit}.mount" for unit in "plwc" for key in ORDERS} <= set(orders)


def test_reinstalling_keeps_mount_orders_only_where_a_configuration_exists(recorder: HostRecorder) -> None:
    text = "streams: {t: {source: {kind: folder, path: /p}, image: {size: [8, 8]}}}\n"
    configs = {name: recorder.write_config(f"streamd@{name}", text) for name in ("gone", "kept", "broken")}
    install_on_host(recorder.host, STREAMD, [])
    configs["gone"].unlink()
    configs["broken"].write_text("of mine")
    install_on_host(recorder.host, STREAMD, [])
    orders = (recorder.host.root / UNITS).glob("streamd@*/30-data.conf")
    assert {path.parent.name for path in orders} == {"streamd@kept.service.d", "streamd@broken.service.d"}
    assert not (recorder.host.root / UNITS / "streamd@gone.service.d").exists()
    assert any(line.startswith("streamd@broken.service waits as before, since") for line in recorder.said)


def test_an_unreadable_configuration_is_reported_and_the_rest_is_installed(recorder: HostRecorder) -> None:
    recorder.write_config("streamd", "of mine")
    install_on_host(recorder.host, STREAMD, [])
    assert any(
        line.startswith("streamd.service waits for no mount, since /etc/streamd/config") for line in recorder.said
    )
    assert (recorder.host.root / UNITS / "streamd.service").exists()


@pytest.mark.parametrize(
    ("path", "spelled"),
    [
        ("/opt/streamd/bin/streamd", "/opt/streamd/bin/streamd"),
        ("/opt/it's 100% mine/bin/streamd", '"/opt/it\'s 100%% mine/bin/streamd"'),
        ('/opt/"so\\called"', '"/opt/\\"so\\\\called\\""'),
        ("/opt/größer", '"/opt/größer"'),
        ("/opt/a:b", '"/opt/a:b"'),
    ],
)
def test_any_path_is_quoted_as_one_word(path: str, spelled: str) -> None:
    assert quote_path(Path(path)) == spelled


def test_a_command_name_that_systemd_rejects_is_started_by_a_shell() -> None:
    assert format_start_command("/opt/my env/streamd") == '"/opt/my env/streamd"'
    assert format_start_command("/opt/it's $mine/streamd") == (
        """/bin/sh -c 'exec "$$0" "$$@"' "/opt/it's $$mine/streamd\""""
    )


@pytest.mark.parametrize("path", ["/opt/a\nb", "/opt/\udcff"])
def test_a_path_that_no_unit_can_hold_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"a systemd unit cannot name '/opt/.*': install streamd at a path of"):
        quote_path(path)


def test_mounts_above_data_are_named_once_if_systemd_can_name_them(recorder: HostRecorder) -> None:
    paths = {"a": "/mnt/a/b/../b", "b": "/mnt/a", "c": f"/mnt/{'x' * 250}"}
    streams = (
        f"  {name}: {{source: {{kind: folder, path: {path}}}, image: {{size: [8, 8]}}}}\n"
        for name, path in paths.items()
    )
    recorder.write_config("streamd", f"streams:\n{''.join(streams)}")
    install_on_host(recorder.host, STREAMD, [])
    orders = (recorder.host.root / UNITS / "streamd.service.d" / "30-data.conf").read_text().splitlines()
    units = ("mnt.mount", "mnt-a.mount", "mnt-a-b.mount")
    assert orders[2:] == [f"{key}={unit}" for unit in units for key in ORDERS]


@pytest.mark.parametrize("what", ["install", "remove"])
def test_service_commands_without_root_show_the_sudo_command(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["streamd", "service", what])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("streamd: run it as root:  sudo ")
