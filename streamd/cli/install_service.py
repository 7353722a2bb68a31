"""streamd as a service of this host: what is written for systemd and its operators, and taken away again.

What is written lies in share/ beside this file, so that an installed wheel has it as a checkout does: units, users, the
first configuration, alert rules and a Grafana dashboard, and under share/man, share/zsh and the like, what man and
shells look for. Nothing is started. What the operator wrote, and what the daemon did, is never taken away.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.cli.unit_values import mount_units, quoted_path, started_command
from streamd.errors import ConfigError, HostError

SHARE: Final = Path(__file__).parents[1] / "share"
CONFIG: Final = Path("/etc/streamd/config.yaml")
_LOCAL: Final = Path("/usr/local")
_UNITS: Final = _LOCAL / "lib" / "systemd" / "system"
_OPERATORS: Final = _LOCAL / "share" / "streamd"
_SYSTEMD: Final = {  # in share/systemd : where it goes
    "streamd.service": (_UNITS / "streamd.service", _UNITS / "streamd@.service"),
    "streamd.socket": (_UNITS / "streamd.socket", _UNITS / "streamd@.socket"),
    "streamd-train@.service": (_UNITS / "streamd-train@.service",),
    "sysusers.conf": (_LOCAL / "lib/sysusers.d/streamd.conf",),
    "tmpfiles.conf": (_LOCAL / "lib/tmpfiles.d/streamd.conf",),
    "streamd.catalog": (_LOCAL / "lib/systemd/catalog/streamd.catalog",),
}
_CATALOG: Final = ("journalctl", "--update-catalog")
_SHELLS_AND_MAN: Final = ("man", "bash-completion", "zsh", "fish")  # as they are, under /usr/local/share
_SERVICES: Final = ("streamd.service", "streamd@.service", "streamd-train@.service")
_ALL_UNITS: Final = (*_SERVICES, "streamd.socket", "streamd@.socket")
_RUNNING: Final = ("streamd-train@*.service", "streamd@*.socket", "streamd@*.service", "streamd.s*")
_UNSEEN: Final = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108 - what the services do not see
_HOMES: Final = "20-environment.conf"
_MOUNTS: Final = "30-data.conf"
_CONFIGS: Final = ("streamd/config.yaml", "streamd@*/config.yaml")  # in /etc, a daemon each
_COMMAND: Final = re.compile(r"@streamd@(-\w+)?")  # a path, which has to be spelled as units do
_SCHEMA: Final = "streamd/config/config.schema.json"


@dataclass(frozen=True)
class Host:
    """Where it is installed, by what commands are carried out, and who is told of what is done."""

    say: Callable[[str], None]
    run: Callable[[tuple[str, ...]], None]
    root: Path = Path("/")

    def at(self, place: Path) -> Path:
        """`place` on this host."""
        return self.root / place.relative_to("/")

    def make_folder(self, place: Path) -> None:
        """Makes a folder that anybody may enter, whatever the umask says, where it is missing."""
        path = self.at(place)
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            each.chmod(0o755)

    def drop_folder(self, place: Path) -> None:
        """Takes a folder away, if it is there and nothing is in it."""
        path = self.at(place)
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()

    def write(self, place: Path, text: str) -> None:
        """Writes a file that anybody may read, and says so."""
        path = self.at(place)
        self.make_folder(place.parent)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        self.say(f"wrote {place}")


def carry_out(command: tuple[str, ...]) -> None:
    """Runs a command of the host's. Raises HostError with what it said."""
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise HostError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr.strip()}")


def check_host() -> None:
    """Raises ConfigError for anybody but root, and where there is no systemd."""
    if os.geteuid() != 0:
        raise ConfigError(f"run it as root:  sudo {command()} service ...")
    if not Path("/run/systemd/system").is_dir():
        raise ConfigError("this host does not run systemd")


def command() -> Path:
    """The `streamd` of this environment, as systemd can start it. Raises ConfigError if there is none."""
    places = [Path(sysconfig.get_path("scripts", scheme)) for scheme in (sysconfig.get_default_scheme(), "posix_user")]
    for place in places:
        if os.access(place / "streamd", os.X_OK):
            return place / "streamd"
    raise ConfigError(f"there is no command streamd in {places[0]}: install it with  pip install 'streamd[serve]'")


def unseen_homes() -> list[Path]:
    """What this environment needs and the services would not see, since it lies in a home or a temporary folder."""
    needed = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2]}
    return sorted(place for place in needed if f"{place}/".startswith(_UNSEEN))


def install(host: Host, streamd: Path, unseen: list[Path]) -> None:
    """Makes `streamd` a service, or brings it up to date; `unseen` are folders it needs in spite of ProtectHome."""
    for place, text in files(streamd):
        host.write(place, text)
    _let_in(host, unseen)
    _order_after_mounts(host)  # before there is a first configuration, which names no data of anybody's
    _configure(host)
    host.run(("systemd-sysusers", str(_SYSTEMD["sysusers.conf"][0])))
    host.run(("systemd-tmpfiles", "--create", str(_SYSTEMD["tmpfiles.conf"][0])))
    host.run(("systemctl", "daemon-reload"))
    host.run(_CATALOG)
    host.say(f"installed for {streamd}; start it with:  systemctl enable --now streamd.socket streamd.service")


def remove(host: Host) -> None:
    """Stops the services and takes away what `install` wrote; configuration, state, caches and users stay."""
    host.run(("systemctl", "stop", *_RUNNING))
    if units := [unit for unit in _ALL_UNITS if host.at(_UNITS / unit).exists()]:
        host.run(("systemctl", "disable", "--quiet", *units))  # of a template, all its instances
    for place, _ in files(Path()):
        if host.at(place).exists():
            host.at(place).unlink()
            host.say(f"removed {place}")
    _let_in(host, [])
    _drop_orders(host)
    host.drop_folder(_OPERATORS)
    host.run(("systemctl", "daemon-reload"))
    host.run(_CATALOG)
    host.say("left /etc/streamd*, /var/lib/streamd*, /var/cache/streamd* and the users as they are")


def files(streamd: Path) -> Iterator[tuple[Path, str]]:
    """Where each file goes, and what is in it."""
    for name, places in _SYSTEMD.items():
        text = (SHARE / "systemd" / name).read_text(encoding="utf-8")
        text = _COMMAND.sub(lambda found: started_command(f"{streamd}{found[1] or ''}"), text)
        for place in places:
            yield place, text
    for tree in _SHELLS_AND_MAN:
        for path in sorted(each for each in (SHARE / tree).rglob("*") if each.is_file()):
            yield _LOCAL / "share" / path.relative_to(SHARE), path.read_text(encoding="utf-8")
    for path in sorted((SHARE / "monitoring").iterdir()):
        yield _OPERATORS / path.name, path.read_text(encoding="utf-8")


def _let_in(host: Host, unseen: list[Path]) -> None:
    """Has the services see these folders, and no longer those of an earlier environment."""
    for service in _SERVICES:
        place = _UNITS / f"{service}.d" / _HOMES
        host.at(place).unlink(missing_ok=True)
        if unseen:
            binds = "".join(f"BindReadOnlyPaths={quoted_path(folder)}\n" for folder in unseen)
            host.write(place, f"# The command lies where services see nothing else.\n[Service]\n{binds}")
        else:
            host.drop_folder(place.parent)


def _order_after_mounts(host: Host) -> None:
    """Has each daemon start after the mounts that its data may lie on, and only wish for them.

    A mount that is required and fails would fail the daemon, which nothing starts again; so it waits by itself.
    """
    orders: dict[str, str] = {}
    unread: set[str] = set()
    for config in sorted(path for pattern in _CONFIGS for path in host.at(Path("/etc")).glob(pattern)):
        unit, place = f"{config.parent.name}.service", f"/etc/{config.parent.name}/config.yaml"
        try:
            mounts = _mounts_of(config)
        except ConfigError as error:
            waits = "as before" if host.at(_order_of(unit)).exists() else "for no mount"
            host.say(f"{unit} waits {waits}, since {place} cannot be read: {error}; mend it, and install again")
            unread.add(unit)
            continue
        if mounts:
            orders[unit] = f"# The mounts that the data named in {place} may lie on.\n[Unit]\n"
            orders[unit] += "".join(f"{key}={mount}\n" for mount in mounts for key in ("Wants", "After"))
    _drop_orders(host, unread)
    for unit, text in orders.items():
        host.write(_order_of(unit), text)


def _order_of(unit: str) -> Path:
    return _UNITS / f"{unit}.d" / _MOUNTS


def _mounts_of(config: Path) -> list[str]:
    """The units of the mounts below which configured data and caches lie, by their names and where links lead now."""
    from streamd.config import load_config  # noqa: PLC0415 - heavy, and only here
    from streamd.daemon.data_places import list_data_places  # noqa: PLC0415 - as above

    streams = load_config(config).streams.values()
    places = [*list_data_places(streams), *(each.cache.path for each in streams if each.cache)]
    return mount_units([*places, *(place.resolve() for place in places)])


def _drop_orders(host: Host, kept: Collection[str] = ()) -> None:
    """Takes away what orders daemons after mounts, but for the units `kept`."""
    for path in host.at(_UNITS).glob(f"streamd*.service.d/{_MOUNTS}"):
        if path.parent.name.removesuffix(".d") not in kept:
            path.unlink()
            host.drop_folder(_UNITS / path.parent.name)


def _configure(host: Host) -> None:
    """A first configuration, and the folders where the others go."""
    for folder in (CONFIG.parent, Path("/etc/streamd-train")):
        host.make_folder(folder)
    if host.at(CONFIG).exists():
        host.say(f"left {CONFIG} as it is")
        return
    first = (SHARE / "config.yaml").read_text(encoding="utf-8")
    schema = SHARE.parent / "config" / "config.schema.json"
    host.write(CONFIG, first.replace(f"$schema={_SCHEMA}", f"$schema={schema}"))
    host.say(f"say in {CONFIG} where the images are; if they lie on a file system of their own, install once more then")
