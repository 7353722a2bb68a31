"""What the journal has of a daemon: every event with its id, its priority and its fields, none of a client's making."""

from __future__ import annotations

import json

import pytest
import zmq
from support.daemon_process import wait_until
from support.systemd_box import LIMIT_S, Service, run

import streamd
from streamd.client.sockets import find_served_path
from streamd.core.log.events import compute_message_id

pytestmark = pytest.mark.systemd


def entries(service: Service, event: str) -> list[dict[str, str]]:
    """Those of the daemon that runs now, as `journalctl MESSAGE_ID=...` finds them."""
    found = run(
        "journalctl", "--no-pager", "--output=json", f"_PID={service.pid}", f"MESSAGE_ID={compute_message_id(event)}"
    )
    return [json.loads(line) for line in found.splitlines() if line.startswith("{")]


def test_an_event_is_found_by_its_id_with_its_fields(service: Service) -> None:
    with streamd.connect(service.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        for _ in stream:
            pass
    wait_until(lambda: entries(service, "epoch.finished"), "the journal has it", LIMIT_S)
    (epoch,) = entries(service, "epoch.finished")
    assert epoch["MESSAGE"].startswith("epoch.finished: ")
    assert (epoch["PRIORITY"], epoch["SYSLOG_IDENTIFIER"], epoch["_SYSTEMD_UNIT"]) == ("6", "streamd", service.unit)
    assert (epoch["STREAMD_STREAM"], epoch["STREAMD_EPOCH"], epoch["STREAMD_SAMPLES"]) == ("train", "0", "64")
    assert epoch["_TRANSPORT"] == "journal"


def test_what_a_stranger_says_is_a_warning_and_no_field(service: Service) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as strange:
        strange.linger = 0
        strange.connect(f"ipc://{find_served_path(service.endpoint, LIMIT_S)}")
        strange.send(b"\x1b[31mno\nPRIORITY=0\nMESSAGE_ID=0\n")
        wait_until(lambda: entries(service, "wire.malformed"), "the journal has it", LIMIT_S)
    (said,) = entries(service, "wire.malformed")
    assert said["PRIORITY"] == "4"
    assert isinstance(said["MESSAGE"], str), "a list of bytes is what the journal makes of what is not for printing"
    assert "\x1b" not in said["MESSAGE"]
