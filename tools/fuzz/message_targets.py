"""What processes send each other: frames, worker records, tokens, and the accounts that tokens lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from fuzz.structures import build_msgpack_edit, edit_json
from fuzz.target import FuzzTarget, RunCase
from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.receipt import PlannedBatches, format_digest, sum_expected_lanes
from streamd.core.sampler import BadRow, BadSample, SampleOrder, compute_batch_ids, compute_ids_of_batches
from streamd.core.spec import Cursor, ImageSpec, LabelSpec, OrderId, PixelId, RankSteps, Segment, StreamSpec
from streamd.core.token import Token, parse_token_for_rank, resume_tally
from streamd.errors import ProtocolError, TokenError
from streamd.ipc import messages
from streamd.ipc.messages import (
    EMPTY_HEADER,
    FrameHeader,
    bundle_records,
    decode_client_frame,
    decode_daemon_frame,
    encode_frame,
    split_records,
)
from streamd.ipc.worker_messages import (
    GROUP_RESULT,
    CachePlace,
    CloseStream,
    FillRows,
    GroupResult,
    InspectRows,
    OpenStream,
    SampleFault,
    StreamOpenFailed,
    StreamReady,
    StreamRemark,
    TaskDone,
    TaskResult,
    TransformPlace,
    UnmapSlots,
    WorkerCommand,
    WorkerReport,
    decode_command,
    decode_report,
    encode_command,
    encode_report,
    join_result,
    split_result,
)

HEADER_BYTES: Final = len(encode_frame(EMPTY_HEADER, messages.AskStreams())) - 2  # that message takes two bytes
_HEADER: Final = FrameHeader(1, 1, 0)

SPEC: Final = StreamSpec(
    name="train",
    samples=103,
    batch_size=10,
    batches=11,
    images={"image": ImageSpec(5, 7, 3)},
    labels={
        "label": LabelSpec("label", "category", classes=("cat", "dog"), counts=(60, 43)),
        "angle": LabelSpec("angle", "float", mean=0.25, std=1.5),
        "text": LabelSpec("text", "string", text_bytes=9),
    },
    normalize={"mean": [1.0, 2.0, 3.0], "std": [4.0, 5.0, 6.0]},
    shuffle="full",
    seed=3,
    remainder="keep",
    bad_policy="substitute",
    order_id=OrderId("0123456789abcdef0123456789abcdef"),
    pixel_id=PixelId("fedcba9876543210fedcba9876543210"),
)
_CURSOR: Final = Cursor(2, (Segment(0, 2, 1, 3), Segment(6, 3, 0, 1)))
_TIMING: Final = EpochTiming(2, 9.5, 0.25, "disk", BatchSupply(7, 3))


def list_client_messages(order_id: str | None = None) -> list[messages.ClientMessage]:
    """Returns one message of every kind that a client sends, and several subscriptions."""
    first = messages.Subscribe("train", 0, 1, None, Cursor(), "drop", 4, "shared", None, resuming=False)
    return [
        messages.AskStreams(),
        messages.AskStats(),
        messages.AskStatus(),
        messages.AskMonitor(),
        messages.AskNames("train", (0, 5, 39)),
        first,
        replace_message(first, world=2, rank=1, cursor=_CURSOR, resuming=True, order_id=order_id, name="t", pid=77),
        replace_message(first, epochs=2, transport="inline", uneven="pad", credit=16, batch_size=8, steps=5),
        replace_message(first, live=True, together=2, earlier=((1, 1), (1, 2)), order=SPEC.order_facts),
        messages.Progress(4, (0, 1), 2, 5000, (1,)),
        messages.Progress(16, (), 0, 0),
        messages.ReceiptSeen(2, "0" * 32, ok=True, timing=_TIMING),
        messages.Goodbye((2, 3)),
        messages.Ping(),
    ]


def replace_message(message: messages.Subscribe, **changes: object) -> messages.Subscribe:
    """Returns a subscription with other fields."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return messages.Subscribe(**{**fields, **changes})


def _make_client_frames() -> list[bytes]:
    return [encode_frame(_HEADER, each) for each in list_client_messages()]


def _make_daemon_frames() -> list[bytes]:
    sent: list[messages.DaemonMessage] = [
        messages.Streams({"train": SPEC}),
        messages.Stats({"engine": {"idle": 1.5}}),
        messages.Welcome(bytes(16), SPEC, 8, "shared", _CURSOR, (3,)),
        messages.Refused("memory", "too little", 0.5),
        messages.BatchReady(0, 3, 10, 2, 4096, inline=False, bad=(BadRow(1, 5, "a.jpg", "damaged", "masked"),)),
        messages.ReceiptDue(2, "0" * 32, 3, BatchSupply(7, 3)),
        messages.SlotsGone((1, 2, 3)),
        messages.Stopped("for good", changed=True),
        messages.Pong(1, 2, 3, 4),
        messages.Names(("a.jpg", "b.jpg")),
        messages.MonitorAt("http://127.0.0.1:1/", "x"),
    ]
    frames = [encode_frame(_HEADER, each) for each in sent]
    return [*frames, bundle_records(frames[:4])]


def _run_client_frame(data: bytes) -> str:
    return type(decode_client_frame(data)[1]).__name__


def _run_daemon_frames(data: bytes) -> str:
    return " ".join(type(decode_daemon_frame(record)[1]).__name__ for record in split_records(data)[:4])


def _make_worker_records() -> list[bytes]:
    rows, ids = np.arange(5, dtype=np.uint16), np.arange(100, 105, dtype=np.int64)
    place = OpenStream(3, "/m", SPEC, CachePlace("/c", 1 << 30, writable=True), TransformPlace("m", "f", "/", "0"))
    task = FillRows(7, 3, 1, 8192, 10, rows, ids, 2)
    commands: list[WorkerCommand] = [task, place, CloseStream(3), UnmapSlots((1, 2)), InspectRows(3, [0, 5], [5])]
    reports: list[WorkerReport] = [
        TaskDone(7, 10, 20, 30, gathered=2),
        TaskDone(7, 10, 20, 30, (BadSample(5, "damaged", lasting=True),), 0, "unfit", 4),
        StreamReady(3, "0" * 32),
        StreamOpenFailed(3, "no such file"),
        StreamRemark(3, "nothing is cached"),
        *split_result(GroupResult(3, [0, 5], faults=[SampleFault(5, "damaged", "verdict")])),
    ]
    records = [encode_command(each) for each in commands] + [encode_report(each) for each in reports]
    return [*records, bundle_records(records[:1] + records[3:6])]


def _run_worker_records(data: bytes) -> str:
    """Decodes records in both directions; a record that one direction refuses may suit the other."""
    kinds = []
    for record in split_records(data):
        try:
            kinds.append(type(decode_command(record)).__name__)
        except ProtocolError as error:
            report = decode_report(record)
            kinds.append(f"{type(report).__name__}, and {error}")
            if isinstance(report, TaskResult):
                join_result([report.part], GROUP_RESULT)
    return " ".join(kinds[:4])


def _make_tokens() -> list[bytes]:
    cursors = [Cursor(), _CURSOR, Cursor(5, (Segment(4, 7, 0, 1),), 4), Cursor(1, (Segment(0, 11, 0, 1),))]
    tokens = [
        Token("train", SPEC.order_id, SPEC.pixel_id, cursor, "0123456789abcdef" * 2, 20, 1, order=SPEC.order_facts)
        for cursor in cursors
    ]
    return [each.to_json().encode() for each in [*tokens, replace(tokens[1], rows=4, world=2, changed=True)]]


def _run_token(data: bytes) -> str:
    token = parse_token_for_rank(data, SPEC, world=1 + data.count(b"1") % 3, rows=(None, 5, 4)[len(data) % 3])
    return "at the start" if token.cursor == Cursor() else "resumed"


def _run_receipt(data: bytes) -> str:
    """Continues a token's account to the end of its epoch, as the client does, and compares it with the daemon's."""
    token = parse_token_for_rank(data, SPEC, world=1)
    steps = RankSteps(SPEC.batches, 0, 1, "drop", None)
    tally, order = resume_tally(token, SPEC, steps), SampleOrder.from_spec(SPEC)
    for epoch, index in steps.iterate_batches(tally.cursor):
        if epoch != tally.cursor.epoch:
            break
        ids = compute_batch_ids(order, epoch, index, SPEC.batch_rows(index))
        tally.add_batch(index, ids, np.zeros(ids.size, np.uint8), tally.cursor.after_step(0, 1))
    epoch = tally.cursor.epoch

    def plan_batches(indices: range) -> PlannedBatches:
        rows = np.fromiter(map(SPEC.batch_rows, indices), np.int64, len(indices))
        return compute_ids_of_batches(order, epoch, np.array(indices, np.int64), rows), rows

    digest = format_digest(sum_expected_lanes(SPEC.order_id, epoch, tally.cursor.history, plan_batches))
    receipt = tally.build_receipt(expected_digest=digest, steps_left=0, dropped=0)
    return f"ok {receipt.ok} missed {receipt.missed > 0} repeated {receipt.repeated > 0}"


def open_plain_runner(run: RunCase) -> Callable[[], AbstractContextManager[RunCase]]:
    """Returns what opens a runner that needs no preparation."""

    @contextmanager
    def open_runner() -> Iterator[RunCase]:
        yield run

    return open_runner


def _build_targets() -> Sequence[FuzzTarget]:
    frame_edit = build_msgpack_edit(HEADER_BYTES)
    return (
        FuzzTarget(
            "frames",
            "a client's frames, as the daemon decodes them",
            _make_client_frames,
            open_plain_runner(_run_client_frame),
            (ProtocolError,),
            frame_edit,
        ),
        FuzzTarget(
            "daemon_frames",
            "a daemon's frames, as a client decodes them",
            _make_daemon_frames,
            open_plain_runner(_run_daemon_frames),
            (ProtocolError,),
            frame_edit,
        ),
        FuzzTarget(
            "worker_records",
            "records between daemon and worker, in both directions",
            _make_worker_records,
            open_plain_runner(_run_worker_records),
            (ProtocolError,),
            build_msgpack_edit(1),
        ),
        FuzzTarget(
            "tokens",
            "tokens of a checkpoint",
            _make_tokens,
            open_plain_runner(_run_token),
            (TokenError,),
            edit_json,
        ),
        FuzzTarget(
            "receipts",
            "the accounts of epochs that continue from a token",
            _make_tokens,
            open_plain_runner(_run_receipt),
            (TokenError,),
            edit_json,
        ),
    )


TARGETS: Final = {each.name: each for each in _build_targets()}
