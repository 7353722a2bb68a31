"""`streamd service`: the daemon as a service of this host, under systemd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from streamd.cli.install_service import ServiceHost

HELP: Final = "Makes streamd a service of this host, under systemd, or takes it away again. Run it as root."

service = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@service.command()
def install() -> None:
    """Installs units, users and a first configuration, or brings them up to date. Nothing is started.

    The units are streamd, streamd@NAME for more daemons, and streamd-train@NAME for trainings, all of this very
    environment; the user and group are called streamd, and /etc/streamd/config.yaml is written unless there is one.
    Manual pages and completions go to /usr/local/share, alert rules and a Grafana dashboard to
    /usr/local/share/streamd.

    \b
    Example:
      sudo "$(command -v streamd)" service install
      sudo systemctl enable --now streamd.socket streamd.service
      sudo usermod --append --groups streamd NAME        who may train
    """
    from streamd.cli import install_service  # noqa: PLC0415 - only when it is needed, not for --help

    install_service.check_host()
    install_service.install_on_host(
        _build_host(), install_service.find_command(), install_service.find_unseen_folders()
    )


@service.command()
def remove() -> None:
    """Stops the services and takes away what was installed; configuration, state, caches and users stay."""
    from streamd.cli import install_service  # noqa: PLC0415 - as above

    install_service.check_host()
    install_service.remove_from_host(_build_host())


def _build_host() -> ServiceHost:
    from streamd.cli.install_service import ServiceHost, run_host_command  # noqa: PLC0415 - as above

    return ServiceHost(typer.echo, run_host_command)
