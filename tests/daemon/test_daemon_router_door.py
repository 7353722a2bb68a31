"""The socket that trainers knock at: it lets in a few at a time, and nobody when there is no room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from streamd.daemon.router import ConnectionGate
from streamd.limits import KNOCKS

LIMIT_S = 10.0
MODE = 0o660


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield Path(folder) / "s"


class House:
    """What libzmq is to a door: it accepts all who wait at a socket that it is given, when it is told to."""

    def __init__(self, place: Path, most: int) -> None:
        self.place = place
        self.inside: dict[str, socket.socket] = {}
        self.guests: list[socket.socket] = []
        self.dismissed: list[str] = []
        self._news = asyncio.Event()
        self.door = ConnectionGate(place, MODE, most, self._let_in, self.dismissed.append)

    def _let_in(self, waiting: socket.socket, name: str) -> None:
        self.inside[name] = waiting
        self._news.set()

    def knock(self) -> bool:
        """Whether somebody who connects now is in the queue, at least."""
        guest = socket.socket(socket.AF_UNIX)
        guest.setblocking(False)
        self.guests.append(guest)
        return not guest.connect_ex(str(self.place))

    async def group(self, number: int) -> str:
        """The name of the socket that was let in so many others after the first, once it is."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.inside) <= number:
                self._news.clear()
                await self._news.wait()
        return list(self.inside)[number]

    def accept(self, name: str) -> int:
        """Accepts who waits in a group, and tells the door; how many they were."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.guests.append(self.inside[name].accept()[0])
                self.door.on_connection_accepted(name)
                count += 1
        return count

    def close(self) -> None:
        self.door.close()
        for link in (*self.inside.values(), *self.guests):
            link.close()


def at(place: Path, what: Callable[[House], Awaitable[None]], most: int = 100) -> None:
    async def run() -> None:
        house = House(place, most)
        try:
            await what(house)
        finally:
            house.close()

    asyncio.run(run())


def test_who_knocks_is_let_in_and_the_path_is_for_the_next(place: Path) -> None:
    async def scene(house: House) -> None:
        for number in range(5):
            assert house.knock()
            assert house.accept(await house.group(number)) == 1
        found.extend((path.name, stat.S_IMODE(path.stat().st_mode)) for path in place.parent.iterdir())

    found: list[tuple[str, int]] = []
    at(place, scene)
    assert found == [("s", MODE)]


def test_no_more_are_let_in_at_a_time_than_may_wait(place: Path) -> None:
    async def scene(house: House) -> None:
        assert [house.knock() for _ in range(KNOCKS + 2)] == [True] * KNOCKS + [False] * 2
        first = await house.group(0)
        assert house.knock()  # at the next socket
        await asyncio.sleep(0)
        assert len(house.inside) == 1, "the next group waits until the first is known to be accepted"
        assert house.accept(first) == KNOCKS
        assert house.accept(await house.group(1)) == 1

    at(place, scene)


def test_with_no_room_who_knocks_waits_and_is_let_in_when_others_have_gone(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    most = 1 + 4 * (1 + KNOCKS)

    async def scene(house: House) -> None:
        names: list[str] = []
        while house.door.used_descriptor_count + 1 + KNOCKS <= most:
            for _ in range(KNOCKS):
                house.knock()
            names.append(await house.group(len(names)))
            house.accept(names[-1])
        house.knock()
        await asyncio.sleep(0)
        assert len(house.inside) == len(names)
        assert house.door.used_descriptor_count <= most
        for _ in range(KNOCKS):
            house.door.on_connection_ended(names[0])
        assert house.dismissed == names[:1]
        assert house.accept(await house.group(len(names))) == 1

    with caplog.at_level(logging.WARNING, "streamd"):
        at(place, scene, most)
    assert {each.message.partition(";")[0] for each in caplog.records} == {
        f"no more connections for now: they take {most} of the {most} descriptors that there are for them"
    }


def test_what_a_killed_daemon_left_beside_the_path_is_no_obstacle(place: Path) -> None:
    mine = Path(f"{place}~01")
    mine.touch()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{place}~00")

    async def scene(house: House) -> None:
        for number in range(3):
            assert house.knock()
            assert house.accept(await house.group(number)) == 1

    at(place, scene)
    assert sorted(place.parent.iterdir()) == [place, mine]


def test_a_folder_that_may_not_be_written_any_more_costs_newcomers_a_pause(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamd.daemon.router._LISTEN_RETRY_S", 0.01)

    async def scene(house: House) -> None:
        listen, refused = house.door._open_listening_socket, iter([OSError(28, "No space left on device")])

        def listen_later() -> tuple[socket.socket, str]:
            for error in refused:
                raise error
            return listen()

        monkeypatch.setattr(house.door, "_open_listening_socket", listen_later)
        assert house.knock()
        assert house.accept(await house.group(0)) == 1

    with caplog.at_level(logging.WARNING, "streamd"):
        at(place, scene)
    assert caplog.messages == [f"no new trainer for 0.01 s: {place}: No space left on device"]
