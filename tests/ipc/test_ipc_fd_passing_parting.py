"""Sessions that are over while batches of them are held: what their lifelines are for."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator

import pytest
from support.descriptor_server import Desk, answered, at_desk_of, ended, raw

from streamd.errors import ConnectError


@pytest.fixture
def path() -> Iterator[str]:
    """A short place, whatever pytest calls its folders."""
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield f"{folder}/d"


def test_what_is_held_of_a_session_that_is_over_is_told_until_it_is_dropped(path: str) -> None:
    async def scene(desk: Desk) -> None:
        line = await desk.connect(4)
        line.report_held_leases((3, 5, 8))
        line.report_dropped_leases((5,))
        line.report_retired_leases((8,))
        await answered()
        assert desk.told == [
            ("parted", 4, (3, 5, 8), "its connection ended"),
            ("dropped", 4, (5,), ()),
            ("dropped", 4, (8,), (8,)),
        ]
        assert desk.lost == []
        line.close()
        assert await desk.news() == (4, "its connection ended")

    at_desk_of(path, scene)


def test_who_is_hung_up_on_sees_the_end_and_is_heard_on(path: str) -> None:
    async def scene(desk: Desk) -> None:
        line = await desk.connect(4)
        await answered()
        assert desk.server.half_close_session(4)
        assert line.has_ended()
        line.report_dropped_leases((1,))
        await answered()
        assert desk.told == [("dropped", 4, (1,), ())]
        line.close()
        assert await desk.news() == (4, "its connection ended")

    at_desk_of(path, scene)


def test_who_is_hung_up_on_gets_no_slot_any_more(path: str) -> None:
    async def scene(desk: Desk) -> None:
        line = await desk.connect(4)
        await answered()
        desk.server.half_close_session(4)
        with pytest.raises(ConnectError, match="the daemon is gone"):
            await asyncio.to_thread(line.fetch_descriptor, 7)
        assert desk.lost == []
        line.close()

    at_desk_of(path, scene)


def test_who_has_no_lifeline_cannot_be_hung_up_on(path: str) -> None:
    async def scene(desk: Desk) -> None:
        secret = desk.server.issue_secret(4)
        assert not desk.server.half_close_session(4)
        with raw(desk.path) as link:
            link.send(secret)
            assert await ended(link)

    at_desk_of(path, scene)
