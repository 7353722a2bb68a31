"""What the dashboard says of a daemon and its trainers, against what these know themselves."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest
from playwright.sync_api import expect
from support.chromium import Go
from support.daemon_process import LIMIT_S, wait_until
from support.dashboard_daemon import Board, StartBoard, Trainer, all_leave, cell, config, draw, region
from support.monitor_fake import monitor

from streamd.errors import StreamStoppedError

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

STREAMS, TRAINERS = "Streams", "Trainers"
CROWD, SHOWN = 14, 12


def test_the_figures_are_those_of_the_receipts(board: Board, go: Go) -> None:
    page = go(board.address).page
    with board.client.subscribe("train", epochs=3) as first, board.client.subscribe("train", epochs=2) as second:
        batches = sum(1 for _ in first) + sum(1 for _ in second)
        receipts = [*first.receipts, *second.receipts]
    all_leave(board)
    status = board.client.status().streams[0]

    assert batches == sum(each.steps for each in receipts)
    assert all(each.ok for each in receipts)
    expect(cell(page, STREAMS, "train", "Taken since start")).to_have_text(str(sum(each.samples for each in receipts)))
    expect(cell(page, STREAMS, "train", "Receipts")).to_have_text(f"{len(receipts)} ok ")
    expect(cell(page, STREAMS, "train", "Bad")).to_have_text("2 1 damaged, 1 unfit")
    expect(cell(page, STREAMS, "train", "Shuffle score")).to_have_text(f"{status.shuffle_score:.2f}")
    expect(page.get_by_role("region", name="Trainers")).to_contain_text("No trainer yet")


def test_a_trainer_is_shown_where_it_stands(board: Board, trainer: Trainer, go: Go) -> None:
    page = go(board.address).page
    steps = board.client.spec("train").batches
    for _ in range(steps + 2):
        trainer.take()
    # Before its last report reaches the daemon, it also has as many as it may have.
    wait_until(
        lambda: [(each.held, each.own_step) for each in board.client.status().sessions] == [(2, 2)],
        "it has what it may have",
    )
    (session,) = board.client.status().sessions
    row = re.compile(rf"session {session.session}\b")

    assert (session.epoch, session.steps) == (1, steps)
    assert session.last_epoch is not None
    expect(cell(page, TRAINERS, row, "Epoch")).to_contain_text("epoch 2")
    expect(cell(page, TRAINERS, row, "Epoch")).to_contain_text(f"step {session.own_step} of {steps}")
    expect(cell(page, TRAINERS, row, "Lag, held")).to_contain_text(f"{session.held} of {session.credit}")
    expect(cell(page, TRAINERS, row, "Last epoch")).to_contain_text(
        session.last_epoch.summary_text.removeprefix("epoch 0 ")
    )
    trainer.leave()
    expect(page.get_by_role("table", name=re.compile(TRAINERS))).to_be_hidden()


def test_a_crowd_of_trainers_is_shown_in_part_until_somebody_asks(board: Board, go: Go) -> None:
    page = go(board.address).page
    with ExitStack() as crowd:
        for _ in range(CROWD):
            crowd.enter_context(board.client.subscribe("train", epochs=1, prefetch=2))
        places = page.get_by_role("table", name=re.compile(TRAINERS)).get_by_role("rowheader")
        more = page.get_by_role("button", name=f"Show all {CROWD} sessions")
        expect(more).to_be_visible()
        expect(places).to_have_count(SHOWN)
        more.press("Enter")
        expect(places).to_have_count(CROWD)
        expect(page.get_by_role("button", name=f"Show the first {SHOWN} only")).to_be_focused()


@contextmanager
def a_starting_daemon() -> Iterator[str]:
    """The address of a monitor that nobody has given a service yet."""
    loop, addresses, end = asyncio.new_event_loop(), Queue[str](), asyncio.Event()

    async def run() -> None:
        async with monitor() as running:
            addresses.put(running.url)
            await end.wait()

    thread = Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        yield addresses.get(timeout=LIMIT_S)
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


def test_a_daemon_that_lists_its_samples_says_so(go: Go) -> None:
    with a_starting_daemon() as address:
        page = go(address, forgiven="net::ERR_").page
        expect(page.get_by_role("main")).to_contain_text("the samples are being listed")
        expect(page.get_by_role("table", name=STREAMS)).to_be_hidden()


def test_a_daemon_that_is_killed_is_away_and_its_return_is_seen(
    tmp_path: Path, start_board: StartBoard, go: Go
) -> None:
    board = start_board(config(draw(tmp_path / "data")))
    # It gets a port of its own each time; a page comes back to the one it knows.
    port = board.address.rstrip("/").rpartition(":")[2]
    rewrite(board, port)
    visit = go(board.url, forgiven="net::ERR_|401")
    live, identity = visit.page.get_by_text("live", exact=True), visit.page.get_by_role("contentinfo")
    expect(identity).to_contain_text(f"pid {board.daemon.pid}")
    board.daemon.process.kill()
    board.daemon.process.wait()
    expect(visit.page.get_by_role("main")).to_contain_text("Away since")
    expect(live).to_be_hidden()
    board.daemon.start()
    expect(live).to_be_visible()
    expect(identity).to_contain_text(f"pid {board.daemon.pid}")
    expect(visit.page.get_by_role("main")).to_contain_text("the daemon started again")
    region(visit, "Batch now leaving").scroll_into_view_if_needed()
    expect(region(visit, "Access to pictures")).to_contain_text("after a restart, the daemon has a new one")


def rewrite(board: Board, port: str) -> None:
    """From its next start on the daemon answers at a port that was free a moment ago."""
    board.daemon.config.write_text(board.daemon.config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))


def test_a_stream_that_is_stopped_is_shown_as_trouble_and_its_file_with_the_token_only(
    tmp_path: Path, start_board: StartBoard, go: Go
) -> None:
    board = start_board(config(draw(tmp_path / "data"), bad_samples={"policy": "fail"}))
    visits = entitled, stranger = go(board.url), go(board.address)
    for visit in visits:
        expect(visit.page.get_by_role("table", name=STREAMS)).to_be_visible()
        expect(region(visit, "Troubles")).to_be_hidden()
    with pytest.raises(StreamStoppedError), board.client.subscribe("train", epochs=1) as batches:
        list(batches)
    (trouble,) = board.client.status().all_troubles

    assert ".jpg" in trouble
    expect(region(entitled, "Troubles").get_by_role("listitem")).to_have_text(trouble)
    expect(entitled.page.get_by_role("status")).to_contain_text(f"trouble: {trouble}")
    for visit in visits:
        expect(region(visit, "Troubles").get_by_role("listitem")).to_contain_text("stream 'train' is stopped")
        expect(visit.page).to_have_title(re.compile("^⚠ 1 trouble"))
    assert ".jpg" not in stranger.page.inner_text("body")
    with urllib.request.urlopen(f"{board.address}live") as events:  # noqa: S310 - an address of a test's own server
        assert b".jpg" not in events.readline()
