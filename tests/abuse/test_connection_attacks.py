"""Connections alone, from another user of the group, end nothing and slow nobody down."""

from __future__ import annotations

from typing import Final

import pytest
from scene import times
from siege import Record, besiege

pytestmark = pytest.mark.timeout(300)

MANY_FILES: Final = 4096
FEW_FILES: Final = 1024  # what a process may open where nobody has said anything


@pytest.mark.abuse("1a", "a connection claims the next routing id of the socket")
def test_a_claimed_routing_id_ends_nothing(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("claim_next_id", rounds=2)
        siege.end(record_property)


@pytest.mark.abuse("1b", "a thousand silent connections, then one more; 1,024 descriptors")
@pytest.mark.abuse("44", "a thousand silent connections at a daemon that may open 1,024 files")
@pytest.mark.parametrize("is_activated", [False, True], ids=["own socket", "handed over"])
def test_silent_connections_end_nothing(record_property: Record, *, is_activated: bool) -> None:
    with besiege(max_files=FEW_FILES, is_activated=is_activated) as siege:
        siege.withstand("stay_silent", rounds=2, is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("44", "the daemon can start no process and no thread, while a user without a gate knocks")
def test_without_processes_the_trainers_read_on(record_property: Record) -> None:
    with besiege() as siege:
        with siege.use_up_tasks():
            siege.withstand("flood_door", rounds=times(20, 4))
        siege.end(record_property)


@pytest.mark.abuse("44", "a file system without room at /dev/shm, which holds nothing of streamd's")
def test_a_full_shared_memory_file_system_changes_nothing(record_property: Record) -> None:
    with besiege(is_shm_full=True) as siege:
        siege.withstand("connect_and_drop", rounds=times(20, 4), is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("1d", "sessions that ask for descriptors of slots and read none of them")
def test_descriptors_in_flight_stop_no_trainer(record_property: Record) -> None:
    with besiege(max_files=FEW_FILES) as siege:
        siege.withstand("fetch_without_reading", rounds=times(60, 20), is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("2b", "a message of ever more parts, by ZMTP written by hand")
@pytest.mark.abuse("32", "a message of ever more parts, on the local socket")
def test_a_message_without_end_takes_no_memory(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("send_endless_message", rounds=times(400, 100))
        siege.end(record_property)


@pytest.mark.abuse("3d", "600 idle connections to the descriptor socket")
def test_idle_connections_to_the_descriptor_socket_keep_nobody_out(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("idle_on_descriptor_socket", rounds=2, is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("34", "connections opened and closed, one after the other")
def test_connections_opened_and_dropped_cost_nobody_else(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("connect_and_drop", rounds=times(20, 4), is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("34", "a hundred handshakes, a byte at a time")
def test_slow_handshakes_cost_nobody_else(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("shake_hands_slowly", rounds=times(2000, 200), is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("door", "garbage to the public path")
def test_garbage_to_the_public_path_costs_nobody_else(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("send_garbage_to_door", rounds=times(50, 10), is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("door", "connections to the public path, 5,000 of them one after the other")
def test_a_flood_at_the_public_path_costs_nobody_else(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("flood_door", rounds=times(20, 4), is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("door", "connections to the public path that never read")
def test_connections_that_never_read_keep_nobody_out(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("never_read_door", rounds=150, is_joined=True)
        siege.end(record_property)


@pytest.mark.abuse("38", "another member of the group at the socket's folder, the daemon's process and its files")
@pytest.mark.parametrize("is_activated", [False, True], ids=["own socket", "handed over"])
def test_a_member_of_the_group_reaches_nothing_beyond_the_socket(
    record_property: Record, *, is_activated: bool
) -> None:
    with besiege(is_activated=is_activated) as siege:
        siege.withstand("reach_beyond_socket", rounds=5)
        assert (siege.counts["attempts denied"] > 0, siege.counts["attempts allowed"]) == (True, 0)
        siege.end(record_property)
