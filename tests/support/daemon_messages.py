"""Messages of a daemon to a client's session, and sessions that receive them."""

from __future__ import annotations

from streamd.client.session import ClientAction, ClientSession, FailStream, SendMessage
from streamd.core.spec import Cursor, ImageSpec, OrderId, StreamSpec
from streamd.ipc.messages import BatchReady, FrameHeader, Progress, Subscribe, Welcome
from support.sample_specs import some_spec

WISH = Subscribe("train", 0, 1, 2, Cursor(), "drop", 8, "shared", None, resuming=False)
SPEC = some_spec(
    samples=20,
    batch_size=4,
    batches=5,
    images={"image": ImageSpec(8, 8, 3)},
    labels={},
    normalize="none",
    order_id=OrderId("order"),
)
BOOT, NUMBER = 77, 3
HERE = FrameHeader(BOOT, NUMBER, 0)


def welcome(credit: int = 8, spec: StreamSpec = SPEC) -> Welcome:
    return Welcome(b"s" * 16, spec, credit, "shared")


def ready(epoch: int, index: int) -> BatchReady:
    return BatchReady(epoch, index, 4, 1, 4096, inline=False)


def asking(wish: Subscribe = WISH, cursor: Cursor | None = None, spec: StreamSpec | None = None) -> ClientSession:
    session = ClientSession(wish, spec)
    session.handle_opened(cursor or Cursor(), 0.0)
    return session


def active(wish: Subscribe = WISH, cursor: Cursor | None = None, *, credit: int = 8) -> ClientSession:
    session = asking(wish, cursor)
    session.handle_message(HERE, welcome(credit), 0.0)
    return session


def deliver(session: ClientSession, number: int, epoch: int, index: int) -> list[ClientAction]:
    return session.handle_message(FrameHeader(BOOT, NUMBER, number), ready(epoch, index), 1.0)


def told(what: list[ClientAction]) -> list[Progress]:
    return [do.message for do in what if isinstance(do, SendMessage) and isinstance(do.message, Progress)]


def failure(what: list[ClientAction]) -> Exception:
    (fail,) = what
    assert isinstance(fail, FailStream)
    return fail.error
