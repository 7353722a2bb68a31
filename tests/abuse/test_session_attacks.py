"""Sessions of another user of the group, in whatever numbers and with whatever claims, cost the trainers nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from logged import finish_all, running
from scene import times
from siege import Record, besiege
from users import ATTACKER, STRANGER

from streamd.limits import MIB

pytestmark = pytest.mark.timeout(300)

SIX = 6


def serve_rows(rows: int, batch_size: int, size: int) -> Callable[[Path], dict[str, dict[str, object]]]:
    """A stream `large` over one array of pixels."""

    def build(place: Path) -> dict[str, dict[str, object]]:
        (place / "rows").mkdir()
        np.save(place / "rows" / "rows.npy", np.zeros((rows, size, size, 3), np.uint8))
        return {
            "large": {
                "source": {"kind": "npy", "path": str(place / "rows" / "rows.npy")},
                "batch_size": batch_size,
                "labels": {},
            }
        }

    return build


@pytest.mark.abuse("1c", "Subscribe(live, epochs=2**64-1), then anyone's status")
def test_a_session_of_endless_epochs_leaves_the_status_readable(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("live_for_ever", rounds=times(5, 2))
        siege.end(record_property)


@pytest.mark.abuse("2a", "batches through the socket, not read; goodbye; again")
def test_batches_that_nobody_reads_stay_within_the_memory(record_property: Record) -> None:
    with besiege(memory_bytes=16 * MIB, streams=serve_rows(4096, 32, 64)) as siege:
        siege.withstand("leave_batches_unread", rounds=times(200, 20))
        siege.end(record_property)


@pytest.mark.abuse("3a", "150 subscriptions at the end of an epoch each, of a million samples")
def test_ends_of_epochs_that_nobody_has_read_cost_the_attacker(record_property: Record) -> None:
    with besiege(streams=serve_rows(1_000_000, 512, 2)) as siege:
        siege.withstand("end_epochs", rounds=1)
        siege.end(record_property)


@pytest.mark.abuse("3c", "Progress with 2,000 numbers, again and again")
def test_reports_of_thousands_of_releases_cost_the_attacker(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("report_thousands", rounds=times(100, 20))
        siege.end(record_property)


@pytest.mark.abuse("3e", "one user takes all 256 sessions")
def test_one_user_cannot_take_all_sessions(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("take_all_sessions", rounds=3, is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("3f", "six clients that hold what they got")
@pytest.mark.parametrize("memory_bytes", [MIB, 32 * MIB], ids=["little memory", "enough memory"])
def test_clients_that_hold_their_batches_slow_nobody_down(record_property: Record, memory_bytes: int) -> None:
    with besiege(memory_bytes=memory_bytes) as siege:
        siege.withstand("hold_batches", attackers=SIX, rounds=5, is_joined=True, is_reading=True)
        siege.end(record_property)


@pytest.mark.abuse("3g", "six honest trainers of the attacker's user, stopped with SIGSTOP in mid-epoch")
def test_stopped_trainers_slow_nobody_down_and_go_on(record_property: Record) -> None:
    with besiege() as siege, ExitStack() as stack:
        stopped = [siege.build_trainer(ATTACKER, f"stopped-{number}") for number in range(SIX)]
        stack.enter_context(running(*stopped))
        for each in stopped:
            each.wait_for(10)
        for each in stopped:
            each.send(signal.SIGSTOP)
        siege.withstand("burn", rounds=1)
        for each in stopped:
            each.send(signal.SIGCONT)
            each.send(signal.SIGTERM)
        finish_all(stopped)
        assert [problem for each in stopped for problem in each.judge(siege.truth).problems] == []
        siege.end(record_property)


@pytest.mark.abuse("35", "subscriptions with numbers beyond all bounds, one after the other")
def test_greedy_subscriptions_cost_nobody_else(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("want_everything", rounds=times(10, 3), is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("36", "a session that grants itself all deliveries there are, and releases none")
def test_a_lie_about_credit_gains_nothing(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("lie_about_credit", attackers=2, is_reading=True)
        siege.end(record_property)


@pytest.mark.abuse("37", "writes to a slot, by each way that there is")
def test_no_client_can_write_to_its_slots(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("write_to_slots", is_reading=True)
        assert (siege.counts["writes refused"] > 0, siege.counts["writes done"]) == (True, 0)
        siege.end(record_property)


@pytest.mark.abuse("38", "a user who is not of the group, at the daemon's sockets")
def test_a_stranger_reaches_no_socket(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("enter_as_stranger", user=STRANGER)
        assert (siege.counts["attempts denied"] > 0, siege.counts["attempts allowed"]) == (True, 0)
        siege.end(record_property)


@pytest.mark.abuse("37", "batches that stay mapped after their session, again and again")
def test_mappings_that_outlive_their_session_take_no_memory_of_batches(record_property: Record) -> None:
    with besiege(memory_bytes=MIB) as siege:
        siege.withstand("keep_mappings", rounds=times(300, 100), is_reading=True)
        assert siege.counts["mappings kept after their session"] > 100
        siege.end(record_property)


@pytest.mark.abuse("45", "clients that die after a fork, whose children speak on their connections")
def test_forked_children_of_dead_clients_cost_nobody_else(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("fork_after_connecting", rounds=times(40, 10), is_reading=True)
        siege.end(record_property)
