"""The door: accepts clients at the public path, and refers each to the socket that serves its user.

It reads nothing from a client. It asks the kernel for the client's user, writes one line with a path, and closes the
connection. If the user's gate has yet to start, the client waits; a client that is sent away reads the end alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from typing import Final

from streamd.ipc.endpoint import encode_referral
from streamd.ipc.fd_passing import accept_connection, read_peer
from streamd.ipc.record_link import USER, LinkCallbacks, RecordKind, RecordLink
from streamd.limits import DOOR_REFUSAL_S, DOOR_WAITING

_ROOT: Final = 0


class Door:
    """Accepts clients at `knocks`. `link` asks the daemon for the gates of users. Lives on the event loop."""

    def __init__(self, knocks: socket.socket) -> None:
        self._knocks = knocks
        self._link: RecordLink | None = None
        self._paths: dict[int, bytes] = {}  # of users whose clients can be referred at once
        self._waiting: deque[tuple[int, socket.socket]] = deque()  # with their users, the oldest first
        self._asked: set[int] = set()  # users whose gate the daemon was asked for, and has not answered
        self._sent_away_until_s: dict[int, float] = {}  # users without a gate, by the loop's clock
        self._ended = asyncio.Event()

    async def run(self, end: socket.socket) -> None:
        """Serves until the daemon's end of the link closes."""
        self._link = await RecordLink.open(end, LinkCallbacks(self._handle_record, self._ended.set))
        await self._ended.wait()

    def _handle_record(self, kind: RecordKind, body: bytes) -> None:
        if kind is RecordKind.SETTINGS:
            settings = json.loads(body)
            path = os.fsencode(settings["own_path"])
            self._paths |= {_ROOT: path, settings["own_user"]: path}
            asyncio.get_running_loop().add_reader(self._knocks, self._accept_client)
        elif kind is RecordKind.REFERRAL:
            user, path = USER.unpack_from(body)[0], body[USER.size :]
            if path:
                self._paths[user] = path
            else:
                # Its clients are sent away, and try again later.
                self._paths.pop(user, None)
                if user in self._asked:  # else a gate has ended, and may be started again at once
                    now_s = asyncio.get_running_loop().time()
                    self._sent_away_until_s = {
                        other: until_s for other, until_s in self._sent_away_until_s.items() if until_s > now_s
                    }
                    self._sent_away_until_s[user] = now_s + DOOR_REFUSAL_S
            # The waiting clients of the user are answered.
            self._asked.discard(user)
            waiting, self._waiting = self._waiting, deque()
            for each, client in waiting:
                if each == user:
                    _answer_client(client, path)
                else:
                    self._waiting.append((each, client))

    def _accept_client(self) -> None:
        client = accept_connection(self._knocks, self._accept_client)
        if client is None:
            return
        client.setblocking(False)
        user = read_peer(client)[1]
        if path := self._paths.get(user):
            _answer_client(client, path)
        elif self._sent_away_until_s.get(user, 0.0) > asyncio.get_running_loop().time():
            _answer_client(client, b"")
        elif self._link is not None:
            # The daemon is asked once, however many clients of the user come meanwhile: they may come by the thousand.
            if user not in self._asked:
                self._asked.add(user)
                self._link.send_record(RecordKind.WANTED, USER.pack(user))
            self._waiting.append((user, client))
            if len(self._waiting) > DOOR_WAITING:
                # Sends away the oldest client of the user that has the most waiting ones.
                users = [user for user, _ in self._waiting]
                crowd = max(users, key=users.count)
                place = users.index(crowd)
                _answer_client(self._waiting[place][1], b"")
                del self._waiting[place]


def _answer_client(client: socket.socket, path: bytes) -> None:
    """Sends a client the path, if there is one, and closes its connection."""
    try:
        if path:
            client.send(encode_referral(path))  # the buffer of a new connection has room for a line
    except OSError:
        pass  # the client is gone
    finally:
        client.close()
