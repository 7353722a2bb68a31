"""Attacks from the network, with and without a key, cost trainers of the daemon's host nothing.

A trainer of another host may lose its gate, and reads on where it was when the attack is over.
"""

from __future__ import annotations

import pytest
from network_siege import besiege_address
from scene import times
from siege import Record

pytestmark = pytest.mark.timeout(300)


@pytest.mark.abuse("34", "a thousand silent connections to the address for other hosts")
def test_silent_connections_from_another_host_keep_no_trainer_out(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("stay_silent_at_address", rounds=2, is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("34", "connections to the address for other hosts, opened and closed one after the other")
def test_connections_from_another_host_cost_nobody_else(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("connect_and_drop_at_address", rounds=times(20, 4))
        siege.end(record_property)


@pytest.mark.abuse("34", "two hundred CURVE handshakes that end half-way")
def test_half_handshakes_from_another_host_cost_nobody_else(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("stop_in_handshake", rounds=times(20, 4))
        siege.end(record_property)


@pytest.mark.abuse("33", "HTTP, TLS, other mechanisms, false boxes and noise in place of a CURVE handshake")
def test_garbage_before_the_handshake_ends_nothing(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("send_garbage_to_address", rounds=times(20, 2))
        siege.end(record_property)


@pytest.mark.abuse("39", "wrong keys at the address for other hosts, by the thousand")
def test_wrong_keys_get_in_nowhere_and_leave_the_log_short(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("try_wrong_keys", rounds=times(50, 4))
        log = siege.daemon.read_log()
        siege.end(record_property)
        assert siege.counts["wrong keys"] >= 100
        assert log.count("was refused: its key") <= siege.counts["wrong keys"]
        assert len(log.splitlines()) < 500


@pytest.mark.abuse("32", "frames of 16 MiB, with a key that may connect")
def test_huge_frames_with_a_key_cost_nobody_else(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("send_huge_frames", rounds=times(50, 10))
        siege.end(record_property)


@pytest.mark.abuse("32", "messages without end, with a key that may connect: they end the gate, which comes back")
def test_a_gate_that_is_ended_again_and_again_comes_back_and_local_trainers_read_on(record_property: Record) -> None:
    with besiege_address() as siege:
        attacker = siege.start_attacker("send_endless_message_to_address")
        try:
            siege.wait(lambda: len(siege.gates) > 1, "the gate has been ended, and another one serves")
        finally:
            attacker.kill()
        siege.withstand("connect_and_drop_at_address", rounds=2)
        siege.end(record_property)


@pytest.mark.abuse("33", "random, damaged, deep, empty and pickled frames, with a key that may connect")
def test_random_frames_with_a_key_end_nothing(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("send_nonsense", rounds=times(15, 2))
        siege.end(record_property)


@pytest.mark.abuse("3b", "questions of all kinds without end, with a key that may connect")
def test_questions_without_end_with_a_key_cost_nobody_else(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("flood_questions", rounds=times(6, 3), is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("2c", "answers that nobody reads, with a key that may connect")
def test_answers_that_another_host_does_not_read_cost_nobody_else(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("ignore_answers", rounds=times(10, 5))
        siege.end(record_property)


@pytest.mark.abuse("35", "all sessions of a key taken, and more asked for")
def test_one_key_cannot_take_all_sessions(record_property: Record) -> None:
    with besiege_address() as siege:
        siege.withstand("take_all_sessions", rounds=times(3, 1), is_joined=True)
        siege.end(record_property)
