"""`streamd service`: installs the daemon as a service of this host, under systemd, and removes it again.

The installed files are in share/ beside this file, so that a wheel has them as a checkout does: units, users, the first
configuration, alert rules and a Grafana dashboard. Nothing is started. What the operator wrote, and what the daemon
did, is never removed.
"""

from __future__ import annotations

import os
import re
import string
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

import typer

from streamd.cli.options import UncutHelpGroup
from streamd.core.text import is_encodable
from streamd.errors import ConfigError, HostError, format_install_command

HELP: Final = "Installs streamd as a systemd service on this host, or removes the service. Run it as root."

service = typer.Typer(cls=UncutHelpGroup, help=HELP, no_args_is_help=True, rich_markup_mode=None)

SHARE_FOLDER: Final = Path(__file__).parents[1] / "share"
CONFIG_PATH: Final = Path("/etc/streamd/config.yaml")
_LOCAL_FOLDER: Final = Path("/usr/local")
_UNITS_FOLDER: Final = _LOCAL_FOLDER / "lib" / "systemd" / "system"
_OPERATORS_FOLDER: Final = _LOCAL_FOLDER / "share" / "streamd"
_SYSTEMD_FILES: Final = {  # in share/systemd : where it goes
    "streamd.service": (_UNITS_FOLDER / "streamd.service", _UNITS_FOLDER / "streamd@.service"),
    "streamd.socket": (_UNITS_FOLDER / "streamd.socket", _UNITS_FOLDER / "streamd@.socket"),
    "streamd-train@.service": (_UNITS_FOLDER / "streamd-train@.service",),
    "sysusers.conf": (_LOCAL_FOLDER / "lib/sysusers.d/streamd.conf",),
    "tmpfiles.conf": (_LOCAL_FOLDER / "lib/tmpfiles.d/streamd.conf",),
}
_FORMER_FILES: Final = tuple(  # that earlier versions installed
    _LOCAL_FOLDER / name
    for name in (
        "lib/systemd/catalog/streamd.catalog",
        "share/man/man1/streamd.1",
        "share/man/man1/streamd-train.1",
        "share/man/man5/streamd-config.5",
        "share/bash-completion/completions/streamd",
        "share/bash-completion/completions/streamd-train",
        "share/zsh/site-functions/_streamd",
        "share/zsh/site-functions/_streamd-train",
        "share/fish/vendor_completions.d/streamd.fish",
        "share/fish/vendor_completions.d/streamd-train.fish",
    )
)
_SERVICES: Final = ("streamd.service", "streamd@.service", "streamd-train@.service")
_ALL_UNITS: Final = (*_SERVICES, "streamd.socket", "streamd@.socket")
_RUNNING_UNITS: Final = ("streamd-train@*.service", "streamd@*.socket", "streamd@*.service", "streamd.s*")
_UNSEEN_PREFIXES: Final = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108 - what the services do not see
_HOMES_DROP_IN: Final = "20-environment.conf"
_MOUNTS_DROP_IN: Final = "30-data.conf"
_CONFIG_PATTERNS: Final = ("streamd/config.yaml", "streamd@*/config.yaml")  # in /etc, a daemon each
_COMMAND_PATTERN: Final = re.compile(r"@streamd@(-\w+)?")  # a path, which has to be spelled as units do
_SCHEMA_PATH: Final = "streamd/config/config.schema.json"

_UNIT_NAME_BYTES: Final = 255
_UNSTARTABLE_CHARS: Final = frozenset("'\"\\")
_UNQUOTED_CHARS: Final = frozenset(string.ascii_letters + string.digits + "/._-+,@=")


@service.command()
def install() -> None:
    """Installs units, users and a first configuration, or brings them up to date. Nothing is started.

    The units are streamd, streamd@NAME for more daemons, and streamd-train@NAME for training runs. All of them run the
    streamd of this Python environment. Daemons run as the user streamd, and training runs as the user streamd-train;
    both are in the group streamd. /etc/streamd/config.yaml is written unless the file already exists. Alert rules and a
    Grafana dashboard go to /usr/local/share/streamd.

    \b
    Example:
      sudo "$(command -v streamd)" service install
      sudo systemctl enable --now streamd.socket streamd.service
      sudo usermod --append --groups streamd NAME        # allows the user NAME to train
    """
    check_root_and_systemd()
    install_on_host(
        ServiceHost(typer.echo, run_host_command), find_streamd_command(), find_folders_hidden_from_services()
    )


@service.command()
def remove() -> None:
    """Stops the services and removes the installed files; configuration, state, caches and users stay."""
    check_root_and_systemd()
    remove_from_host(ServiceHost(typer.echo, run_host_command))


# --- on the host


@dataclass(frozen=True)
class ServiceHost:
    """The host on which the service is installed; its parts can be replaced in tests.

    `run_command` runs a command and returns its output, `print_line` prints what was done, and `root` is the root of
    all paths.
    """

    print_line: Callable[[str], None]
    run_command: Callable[[tuple[str, ...]], str]
    root: Path = Path("/")

    def resolve_path(self, place: Path) -> Path:
        """Returns the absolute path `place` below this host's root."""
        return self.root / place.relative_to("/")

    def create_folder(self, place: Path) -> None:
        """Creates a missing folder, with its parents, that all users may enter, whatever the umask is."""
        path = self.resolve_path(place)
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            each.chmod(0o755)

    def remove_empty_folder(self, place: Path) -> None:
        """Removes a folder if it exists and is empty."""
        path = self.resolve_path(place)
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()

    def write_file(self, place: Path, text: str) -> None:
        """Writes a file that all users may read, and prints its path."""
        path = self.resolve_path(place)
        self.create_folder(place.parent)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        self.print_line(f"wrote {place}")


def run_host_command(command: tuple[str, ...]) -> str:
    """Runs a command of the host, and returns its output. Raises HostError, with the command's stderr, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def check_root_and_systemd() -> None:
    """Raises ConfigError unless the user is root and the host runs systemd."""
    if os.geteuid() != 0:
        raise ConfigError(f"run it as root:  sudo {find_streamd_command()} service ...")
    if not Path("/run/systemd/system").is_dir():
        raise ConfigError("this host does not run systemd")


def find_streamd_command() -> Path:
    """Returns the path of this environment's `streamd`, for systemd. Raises ConfigError if there is none."""
    places = [Path(sysconfig.get_path("scripts", scheme)) for scheme in (sysconfig.get_default_scheme(), "posix_user")]
    for place in places:
        if os.access(place / "streamd", os.X_OK):
            return place / "streamd"
    raise ConfigError(f"there is no streamd command in {places[0]}: install it with  {format_install_command('serve')}")


def find_folders_hidden_from_services() -> list[Path]:
    """Returns the folders that this environment needs and services cannot see: those in home or temporary folders."""
    needed = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2]}
    return sorted(place for place in needed if f"{place}/".startswith(_UNSEEN_PREFIXES))


def install_on_host(host: ServiceHost, streamd: Path, unseen: list[Path]) -> None:
    """Makes `streamd` a service, or brings it up to date; `unseen` are folders it needs in spite of ProtectHome."""
    for place, text in read_files_to_install(streamd):
        host.write_file(place, text)
    _remove_files(host, _FORMER_FILES)
    # Services cannot see these folders, so drop-ins make them visible.
    binds = "".join(f"BindReadOnlyPaths={quote_path(folder)}\n" for folder in unseen)
    why = "# Services cannot see the folder of the command, so this makes it visible to them.\n"
    _write_drop_ins(host, _HOMES_DROP_IN, dict.fromkeys(_SERVICES, f"{why}[Service]\n{binds}" if unseen else ""))
    # Comes before the first configuration, whose data are only an example.
    _write_drop_ins(host, _MOUNTS_DROP_IN, _build_mount_orders(host))
    # A first configuration, and the folders for further ones.
    for folder in (CONFIG_PATH.parent, Path("/etc/streamd-train")):
        host.create_folder(folder)
    if host.resolve_path(CONFIG_PATH).exists():
        host.print_line(f"left {CONFIG_PATH} as it is")
    else:
        first = (SHARE_FOLDER / "config.yaml").read_text(encoding="utf-8")
        schema = SHARE_FOLDER.parent / "config" / "config.schema.json"
        host.write_file(CONFIG_PATH, first.replace(f"$schema={_SCHEMA_PATH}", f"$schema={schema}"))
        host.print_line(
            f"say in {CONFIG_PATH} where the images are; if they are on a separate file system, install again after "
            "that"
        )
    host.run_command(("systemd-sysusers", str(_SYSTEMD_FILES["sysusers.conf"][0])))
    host.run_command(("systemd-tmpfiles", "--create", str(_SYSTEMD_FILES["tmpfiles.conf"][0])))
    host.run_command(("systemctl", "daemon-reload"))
    host.print_line(f"installed for {streamd}; start it with:  systemctl enable --now streamd.socket streamd.service")


def remove_from_host(host: ServiceHost) -> None:
    """Stops the services and takes away what `install` wrote; configuration, state, caches and users stay."""
    host.run_command(("systemctl", "stop", *_RUNNING_UNITS))
    if units := [unit for unit in _ALL_UNITS if host.resolve_path(_UNITS_FOLDER / unit).exists()]:
        host.run_command(("systemctl", "disable", "--quiet", *units))  # of a template, all its instances
    _remove_files(host, [*(place for place, _ in read_files_to_install(Path())), *_FORMER_FILES])
    _write_drop_ins(host, _HOMES_DROP_IN, dict.fromkeys(_SERVICES, ""))
    _write_drop_ins(host, _MOUNTS_DROP_IN, _find_mount_orders(host))
    host.remove_empty_folder(_OPERATORS_FOLDER)
    host.run_command(("systemctl", "daemon-reload"))
    host.print_line("left /etc/streamd*, /var/lib/streamd*, /var/cache/streamd* and the users as they are")


def _remove_files(host: ServiceHost, places: Iterable[Path]) -> None:
    for place in places:
        if host.resolve_path(place).exists():
            host.resolve_path(place).unlink()
            host.print_line(f"removed {place}")


def read_files_to_install(streamd: Path) -> Iterator[tuple[Path, str]]:
    """Where each file goes, and what is in it."""
    for name, places in _SYSTEMD_FILES.items():
        text = (SHARE_FOLDER / "systemd" / name).read_text(encoding="utf-8")
        text = _COMMAND_PATTERN.sub(lambda found: format_start_command(f"{streamd}{found[1] or ''}"), text)
        for place in places:
            yield place, text
    for path in sorted((SHARE_FOLDER / "monitoring").iterdir()):
        yield _OPERATORS_FOLDER / path.name, path.read_text(encoding="utf-8")


def _write_drop_ins(host: ServiceHost, name: str, texts: Mapping[str, str]) -> None:
    """Writes the drop-in `name` of each unit; where the text is empty, removes that of an earlier installation."""
    for unit, text in texts.items():
        place = _UNITS_FOLDER / f"{unit}.d" / name
        if text:
            host.write_file(place, text)
        else:
            host.resolve_path(place).unlink(missing_ok=True)
            host.remove_empty_folder(place.parent)


def _find_mount_orders(host: ServiceHost) -> dict[str, str]:
    """Returns the units whose drop-ins of an earlier installation order them after mounts, each with an empty text."""
    found = host.resolve_path(_UNITS_FOLDER).glob(f"streamd*.service.d/{_MOUNTS_DROP_IN}")
    return {path.parent.name.removesuffix(".d"): "" for path in found}


def _build_mount_orders(host: ServiceHost) -> dict[str, str]:
    """Returns drop-ins that start each daemon after the mounts its data may be on, with Wants= and After=.

    With Requires=, the daemon's start would fail if a mount failed, and nothing would start it again. The daemon itself
    waits for missing data.
    """
    orders = _find_mount_orders(host)
    for config in sorted(
        path for pattern in _CONFIG_PATTERNS for path in host.resolve_path(Path("/etc")).glob(pattern)
    ):
        unit, place = f"{config.parent.name}.service", f"/etc/{config.parent.name}/config.yaml"
        try:
            mounts = _find_mount_units(host, config)
        except ConfigError as error:
            waits = "for no mount" if orders.pop(unit, None) is None else "as before"
            host.print_line(f"{unit} waits {waits}, since {place} cannot be read: {error}; fix it, and install again")
            continue
        if mounts:
            orders[unit] = f"# The mounts that the data named in {place} may lie on.\n[Unit]\n"
            orders[unit] += "".join(f"{key}={mount}\n" for mount in mounts for key in ("Wants", "After"))
    return orders


def _find_mount_units(host: ServiceHost, config: Path) -> list[str]:
    """Returns the units of all mounts on which configured data and caches may be, outermost first, without `/`."""
    from streamd.config.load import load_config  # noqa: PLC0415 - heavy, and only here
    from streamd.daemon.data_watch import list_data_places  # noqa: PLC0415 - as above

    streams = load_config(config).streams.values()
    places = [*list_data_places(streams), *(each.cache.path for each in streams if each.cache)]
    # The paths as they are written, and with links resolved; systemd takes none with `..` in it.
    paths = [Path(os.path.normpath(path)) for place in places for path in (place, place.resolve())]
    above = sorted({str(part) for path in paths for part in (path, *path.parents) if part.name})
    if not above:
        return []
    names = host.run_command(("systemd-escape", "--path", "--suffix=mount", *above)).split()
    return [name for name in names if len(name) <= _UNIT_NAME_BYTES]  # systemd has no unit for the others


# --- how paths are spelled in units: systemd.syntax(7), systemd.exec(5); pure


def quote_path(path: PurePath | str) -> str:
    """Quotes a path as one word of a setting with quotes and specifiers, such as ExecStart= and BindReadOnlyPaths=.

    A path of plain characters is not changed. Raises ConfigError for a path that a unit cannot contain.
    """
    text = str(path)
    if _UNQUOTED_CHARS.issuperset(text):
        return text
    if not is_encodable(text) or not text.isprintable():
        raise ConfigError(f"a systemd unit cannot name {text!a}: install streamd at a path of printable UTF-8")
    for mark, written in (("\\", r"\\"), ('"', r"\""), ("%", "%%")):
        text = text.replace(mark, written)
    return f'"{text}"'


def format_start_command(path: PurePath | str) -> str:
    """Formats a command as the beginning of ExecStart=. Raises ConfigError like `quote_path`.

    systemd does not start a command whose name has quotes or a backslash. A shell does, and replaces itself by it.
    """
    word = quote_path(path)
    if not _UNSTARTABLE_CHARS.intersection(str(path)):
        return word
    return f'/bin/sh -c \'exec "$$0" "$$@"\' {word.replace("$", "$$")}'
