"""Tokens on real daemons: every position of an epoch, other worlds, other data, other orders, other pixels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, write_images
from support.short_stream import CLASSES, FULL, SAMPLES, STEPS, all_rows, rows

import streamd
from streamd.client import Client
from streamd.core.receipt import Receipt
from streamd.errors import TokenError

pytestmark = pytest.mark.long

NOT_TOKENS: Final[list[Any]] = ["", "no token", "null", "5", "-1", str(1 << 63), "{}", b"\xff", 5, 1.5, {}, [], ("{}",)]
DAMAGE: Final[list[dict[str, Any]]] = [
    {"rows": -1},
    {"rows": 8},
    {"rows": 1 << 63},
    {"samples": -1},
    {"samples": 1 << 63},
    {"bad": -1},
    {"version": 2},
    {"digest": "0" * 31},
    {"order_id": None},
    {"order_id": "0" * 32},
    {"order": {"samples": "many"}},
    *({"cursor": {"epoch": epoch}} for epoch in (-1, 1 << 40, 1 << 63, "0", None)),
    *({"cursor": {"begin": begin}} for begin in (-1, STEPS, 1 << 63)),
    *(
        {"cursor": {"history": [{"base": base, "steps": steps, "rank": rank, "world": world}]}}
        for base, steps, rank, world in [
            (1, 1, 0, 1),
            (0, -1, 0, 1),
            (0, 1, 1, 1),
            (0, 1, -1, 1),
            (0, STEPS + 1, 0, 1),
            (0, 1 << 63, 0, 1),
            (0, 1, 0, 1 << 63),
        ]
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "data", CLASSES)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[DaemonProcess]:
    streams = {"train": stream_config(folder), "validation": stream_config(folder)}
    with DaemonProcess(tmp_path_factory.mktemp("d"), {"streams": streams}) as daemon:
        yield daemon


def taken(client: Client, steps: int, **wish: Any) -> tuple[list[int], str]:
    """The samples of the first `steps` steps, and the token after them."""
    with client.subscribe("train", **wish) as stream:
        return rows(islice(stream, steps)), stream.token


def resumed(endpoint: str, token: str | bytes, **wish: Any) -> tuple[list[int], list[bool]]:
    """The rest of the epochs, and whether each receipt was ok and whole."""
    with streamd.connect(endpoint) as client, client.subscribe("train", resume=token, **wish) as stream:
        return rows(stream), [receipt.ok and receipt.complete for receipt in stream.receipts]


def changed(token: str, **fields: Any) -> str:
    """A token with other fields; those of its cursor are changed one by one."""
    said = json.loads(token)
    cursor = {**said["cursor"], **fields.pop("cursor", {})}
    return json.dumps({**said, "cursor": cursor, **fields})


# --- any place


@pytest.mark.fault("31", "resumed and sought at every edge of an epoch, in whole batches, parts and groups")
@pytest.mark.parametrize("size", [4, 8, 16])
def test_a_token_at_any_edge_of_an_epoch_resumes_and_seeks_to_the_next_row(client: Client, size: int) -> None:
    whole = all_rows(client, 3)
    with client.subscribe("train", epochs=3, batch_size=size) as stream:
        places = [(0, stream.token)]
        for batch in stream:
            places.append((places[-1][0] + len(batch), batch.token))
            assert stream.token == batch.token
        steps = len(stream)
        for step in (0, 1, steps - 1, steps, steps + 1, 2 * steps, 3 * steps - 1, 3 * steps):
            done, token = places[step]
            stream.seek(token)
            assert rows(stream) == whole[done:], step
            assert resumed(client.endpoint, token, epochs=3, batch_size=size) == (
                whole[done:],
                [True] * (3 - done // SAMPLES),
            )


@pytest.mark.fault("31", "garbage, damaged numbers and wrong types in place of a token")
def test_an_invalid_token_is_refused_with_a_remedy_and_the_stream_does_not_move(client: Client) -> None:
    with client.subscribe("train", epochs=1) as stream:
        first = rows(islice(stream, 2))
        another_stream = stream.token.replace('"train"', '"validation"')
        damaged = [changed(stream.token, **damage) for damage in DAMAGE]
        for wrong in [*NOT_TOKENS, stream.token[:-1], another_stream, *damaged]:
            for use in (stream.seek, lambda token: client.subscribe("train", resume=token)):
                with pytest.raises(
                    TokenError, match=r"an earlier checkpoint|as batch.token gives|start from the beginning"
                ):
                    use(wrong)
        assert first + rows(stream) == all_rows(client)


def test_a_token_of_a_version_without_order_facts_is_read(client: Client) -> None:
    done, token = taken(client, 3)
    old = {key: value for key, value in json.loads(token).items() if key not in {"order", "changed"}}
    assert done + resumed(client.endpoint, json.dumps(old), epochs=1)[0] == all_rows(client)
    with pytest.raises(TokenError, match="drop_remainder, shuffle or seed differ: the token was saved for order 0000"):
        client.subscribe("train", resume=json.dumps({**old, "order_id": "0" * 32}))


_CHECKPOINTS: Final = """
import sys
from itertools import islice
import streamd

client = streamd.connect(sys.argv[1])
stream = client.subscribe("train", epochs=2, prefetch=4)
for batch in islice(stream, int(sys.argv[2])):
    token = batch.token
print(token, flush=True)
next(iter(stream))
print("one more", flush=True)
sys.stdin.read()
"""


@pytest.mark.fault("46", "a plain loop with prefetch 4, killed with -9 after a checkpoint, with batches lying ready")
@pytest.mark.parametrize("steps", [1, STEPS - 1, STEPS, STEPS + 3])
def test_a_trainer_killed_with_batches_in_flight_resumes_with_the_step_after_its_checkpoint(
    client: Client, steps: int
) -> None:
    command = [sys.executable, "-c", _CHECKPOINTS, client.endpoint, str(steps)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        token = trainer.stdout.readline()
        assert trainer.stdout.readline() == "one more\n"
        trainer.kill()
    with client.subscribe("train", epochs=2, resume=token) as stream:
        assert [(batch.epoch, batch.index) for batch in stream] == [divmod(k, STEPS) for k in range(steps, 2 * STEPS)]
        assert all(receipt.ok for receipt in stream.receipts)


# --- other worlds


@dataclass(frozen=True)
class Walked:
    """What the ranks of a world got together: samples, each one's steps, receipts of whole epochs and token."""

    rows: list[int]
    steps: set[int]
    receipts: list[Receipt]
    tokens: list[str]


def walk(client: Client, world: int, steps: int | None, token: str | None, uneven: Any) -> Walked:
    """So many steps of every rank of a world, all resumed from one token; None goes to the epoch's end."""
    walked = Walked([], set(), [], [])
    for rank in range(world):
        wish = {"rank": rank, "world": world, "uneven": uneven, "resume": token}
        with client.subscribe("train", epochs=1, **wish) as stream:
            batches = [batch.copy() for batch in islice(stream, steps)]
        walked.rows.extend(rows(batches))
        walked.steps.add(len(batches))
        walked.receipts.extend(receipt for receipt in stream.receipts if receipt.complete)
        walked.tokens.append(stream.token)
        assert all(receipt.ok for receipt in stream.receipts)
    return walked


@pytest.mark.fault("3", "4, 3 and 4 ranks in one epoch, each world resumed from any rank's token")
@pytest.mark.parametrize("uneven", ["drop", "pad"])
@pytest.mark.parametrize("worlds", [[4, 3, 4], [3, 4, 3], [4, 2, 3], [1, 4, 5]])
def test_another_world_resumes_in_equal_steps_and_gets_exactly_the_rest_of_the_epoch(
    client: Client, worlds: list[int], uneven: str
) -> None:
    parts: list[Walked] = []
    for turn, world in enumerate(worlds):
        any_token = parts[-1].tokens[turn % len(parts[-1].tokens)] if parts else None
        parts.append(walk(client, world, 1 if turn < 2 else None, any_token, uneven))
    assert [len(part.steps) for part in parts] == [1, 1, 1]
    (dropped,) = {receipt.dropped for receipt in parts[-1].receipts}
    assert len(parts[-1].receipts) == worlds[-1]
    whole = all_rows(client)
    assert sorted(row for part in parts for row in part.rows) == sorted(whole[: SAMPLES - dropped])
    left = STEPS - worlds[0] - worlds[1]
    assert (dropped > 0) == (uneven == "drop" and left % worlds[-1] > 0)


@pytest.mark.fault("3", "a world that has no step left of an epoch that others had begun")
def test_a_world_too_large_for_the_rest_of_an_epoch_gets_a_receipt_that_counts_the_dropped_samples(
    client: Client,
) -> None:
    done, token = taken(client, STEPS - 3)
    with client.subscribe("train", epochs=2, rank=1, world=4, resume=token) as stream:
        assert next(iter(stream)).epoch == 1
        (receipt,) = stream.receipts
    assert (receipt.epoch, receipt.steps, receipt.samples) == (0, STEPS - 3, len(done))
    assert (receipt.dropped, receipt.complete, receipt.ok) == (SAMPLES - len(done), True, True)


# --- other data, other orders


@pytest.fixture
def served(start_daemon: Start, folder: Path) -> Start:
    """A daemon on the folder, or on another, with changes to its stream."""

    def serve(place: Path = folder, **changes: object) -> DaemonProcess:
        return start_daemon({"workers": 1, "streams": {"train": stream_config(place, **changes)}})

    return serve


@pytest.mark.fault("31", "the data set copied elsewhere, with other times, listed anew by another daemon")
def test_a_token_resumes_on_a_copy_of_the_data_with_other_file_times(
    client: Client, served: Start, folder: Path, tmp_path: Path
) -> None:
    done, token = taken(client, 5)
    copied = tmp_path / "elsewhere" / "images"
    shutil.copytree(folder, copied)
    for each in copied.rglob("*"):
        os.utime(each, (1, 1))
    rest, receipts = resumed(served(copied).endpoint, token, epochs=1)
    assert (done + rest, receipts) == (all_rows(client), [True])


DIFFERENCES: Final[dict[str, dict[str, object]]] = {
    "batch_size was 8 and is 16; shuffle.seed was 0 and is 1": {
        "batch_size": 16,
        "shuffle": {"kind": "full", "seed": 1},
    },
    "shuffle.kind was full and is none": {"shuffle": "none"},
    "drop_remainder was false and is pad": {"drop_remainder": "pad"},
}


@pytest.mark.fault("31", "the token of another order: the error names each setting that differs")
@pytest.mark.parametrize("difference", DIFFERENCES if FULL else [*DIFFERENCES][:1])
def test_a_token_of_another_order_is_refused_and_the_difference_named(
    client: Client, served: Start, difference: str
) -> None:
    _, token = taken(client, 5)
    says = (
        f"^stream 'train' has a different order now: {difference}; to continue, serve the stream as it was before, or"
    )
    with streamd.connect(served(**DIFFERENCES[difference]).endpoint) as other, pytest.raises(TokenError, match=says):
        other.subscribe("train", resume=token)


@pytest.mark.fault("31", "an image more, or a longer one: the token is refused since the files differ")
def test_a_token_of_other_files_is_refused_and_the_difference_named(
    client: Client, served: Start, folder: Path, tmp_path: Path
) -> None:
    _, token = taken(client, 5)
    for number, change in enumerate((b"more", b"longer") if FULL else (b"more",)):
        copied = shutil.copytree(folder, tmp_path / str(number))
        first = copied / "cat" / "0000.jpg"
        (first if number else first.with_name("more.jpg")).write_bytes(first.read_bytes() + change)
        says = (
            f"now: the files or labels differ: 84 samples then, {85 - number} now; to continue, serve the stream as it "
            "was before"
        )
        with streamd.connect(served(copied).endpoint) as other, pytest.raises(TokenError, match=says):
            other.subscribe("train", resume=token)


# --- other pixels


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[str]:
    """The endpoint of a daemon with the same samples in other pixels."""
    stream = stream_config(folder, image={"size": [16, 16]})
    with DaemonProcess(tmp_path_factory.mktemp("d"), {"workers": 1, "streams": {"train": stream}}) as daemon:
        yield daemon.endpoint


@pytest.mark.fault("31", "the token of other pixels: accepted, and noted in the receipt of just that epoch")
def test_other_pixels_are_noted_in_the_receipt_of_their_epoch_after_any_number_of_resumes(
    client: Client, smaller: str
) -> None:
    done, token = taken(client, 3)
    for steps in (2, 3):  # the second time nothing changes any more, and the receipt must know all the same
        with streamd.connect(smaller) as other, other.subscribe("train", epochs=2, resume=token) as stream:
            done += rows(islice(stream, steps))
            token = stream.token
        assert [receipt.changed for receipt in stream.receipts] == [True]
    with streamd.connect(smaller) as other, other.subscribe("train", epochs=2, resume=token) as stream:
        done += rows(stream)
    assert done == all_rows(client, 2)
    assert [(receipt.changed, receipt.ok) for receipt in stream.receipts] == [(True, True), (False, True)]


@pytest.mark.long
def test_pixels_that_changed_between_two_epochs_are_noted_in_the_second(client: Client, smaller: str) -> None:
    _, token = taken(client, STEPS)
    with streamd.connect(smaller) as other:
        with other.subscribe("train", epochs=3, resume=token) as stream:
            rows(stream)
        assert [receipt.changed for receipt in stream.receipts] == [True, False]
