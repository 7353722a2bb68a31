"""Attacks by connections alone: claimed ids, silence, floods, half handshakes."""

from __future__ import annotations

import struct
from typing import Final

import zmq
from target import Attack, Target
from wire import HandmadeDealer, Intruder, connect_socket, knock, read_path

_FIRST_ID: Final = 0x6B8B4567  # libzmq numbers the peers of a ROUTER from here on
_IDS: Final = 400  # claimed at a time: as many connections may have come before
_SILENT: Final = 1001
_DROPPED: Final = 250


def claim_next_id(target: Target) -> dict[str, int]:
    """Claims the ids that the ROUTER gives next to others, then has others come."""
    for number in range(_IDS):
        intruder = Intruder(target.endpoint)
        target.kept.append(intruder)
        intruder.connect(b"\0" + struct.pack(">I", _FIRST_ID + number + 1))
        if number % 50 == 49:
            target.intrude().ask_spec()
    target.drop_kept()
    return {"ids claimed": _IDS}


ATTACKS: Final[tuple[Attack, ...]] = (claim_next_id,)
