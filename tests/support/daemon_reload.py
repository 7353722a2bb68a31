"""Sends SIGHUP to a daemon and waits for what it logs."""

from __future__ import annotations

import signal

from support.daemon_process import DaemonProcess, wait_until


def said(daemon: DaemonProcess, event: str) -> list[str]:
    return [line for line in daemon.log.read_text().splitlines() if f" {event}: " in line]


def reload(daemon: DaemonProcess, ends: str = "reload.done") -> str:
    """Sends SIGHUP; returns the last line about it."""
    before = len(said(daemon, ends))
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(said(daemon, ends)) > before, f"{ends} is logged")
    return said(daemon, ends)[-1]


def refusal(daemon: DaemonProcess) -> str:
    """Sends SIGHUP; returns the errors of the new configuration, and the line about the old one."""
    before = len(said(daemon, "reload.failed"))
    reload(daemon, "reload.failed")
    wait_until(lambda: "nothing was changed" in "".join(said(daemon, "reload.failed")[before:]), "it has refused")
    return "\n".join(said(daemon, "reload.failed")[before:])
