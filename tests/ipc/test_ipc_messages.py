"""The messages are a closed set; on the wire each is an array, so tags and the order of fields are the protocol."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec
import pytest

from streamd.ipc import messages
from streamd.ipc.messages import VERSION, ClientMessage, DaemonMessage

# Changing anything here makes old and new daemons misunderstand each other: give wire.VERSION another number then.
PROTOCOL: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "AskStreams": (1, ()),
    "AskStats": (2, ()),
    "Subscribe": (
        3,
        (
            *("stream", "rank", "world", "epochs", "cursor", "uneven", "credit", "transport", "order_id", "resuming"),
            *("live", "together", "order", "earlier", "name", "pid", "batch_size", "steps"),
        ),
    ),
    "Progress": (4, ("upto", "released", "taken", "waited_ns", "retired")),
    "ReceiptSeen": (5, ("epoch", "digest", "ok", "timing")),
    "Goodbye": (6, ("kept",)),
    "AskNames": (7, ("stream", "sample_ids")),
    "AskStatus": (8, ()),
    "Ping": (9, ()),
    "AskMonitor": (10, ()),
    "Streams": (65, ("streams",)),
    "Stats": (66, ("values",)),
    "Welcome": (67, ("secret", "spec", "credit", "transport", "cursor", "earlier")),
    "Refused": (68, ("why", "text", "retry_s")),
    "BatchReady": (69, ("epoch", "index", "rows", "slot", "slot_bytes", "inline", "bad")),
    "ReceiptDue": (70, ("epoch", "digest", "dropped", "supply")),
    "SlotsGone": (71, ("slots",)),
    "Stopped": (72, ("text", "changed")),
    "Draining": (73, ()),
    "Names": (74, ("names",)),
    "StatusNow": (75, ("status",)),
    "Pong": (76, ("sent", "upto", "released", "receipts", "paused")),
    "NoSession": (77, ()),
    "CreditNow": (78, ("credit",)),
    "MonitorAt": (79, ("url", "token")),
}

DEFINED: Final[set[type[Any]]] = {
    value
    for value in vars(messages).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and not value.__name__.startswith("_")
    if value.__module__ == messages.__name__ and value is not messages.FrameHeader  # it is no message
}


def test_the_protocol_is_unchanged() -> None:
    assert {kind.__name__: (kind.__struct_config__.tag, kind.__struct_fields__) for kind in DEFINED} == PROTOCOL
    assert VERSION == 10


def test_every_message_is_sent_by_exactly_one_side() -> None:
    client, daemon = set(get_args(ClientMessage)), set(get_args(DaemonMessage))
    assert client | daemon == DEFINED
    assert client & daemon == set()


@pytest.mark.parametrize("kind", sorted(DEFINED, key=str))
def test_messages_are_frozen_arrays_that_refuse_unknown_fields(kind: type[Any]) -> None:
    config = kind.__struct_config__
    assert (config.frozen, config.array_like, config.forbid_unknown_fields) == (True, True, True)
    assert kind.__doc__
