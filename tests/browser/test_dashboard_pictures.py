"""The batch now leaving and the bad samples on the dashboard: whose they are, and when they are asked for."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from playwright.sync_api import Locator, expect
from support.chromium import Go, Visit
from support.daemon_process import wait_until, write_images
from support.dashboard_daemon import BROKEN, CUT, SIDE, Board, StartBoard, Trainer, config, region

from streamd.client import Batch

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

PICTURES: Final = "Batch now leaving"
PLACE: Final = re.compile(r"train (\d+):(\d+) · \d+ samples")
JPEG_ERROR: Final = 6.0  # of 255, in the mean colour of a quarter of a picture
Pixels = npt.NDArray[np.uint8]
Colours = npt.NDArray[np.float64]

LOW: Final = {"width": 1000, "height": 300}  # a window in which the pictures are out of sight at first
LONG_S: Final = 3.0  # the page asks every two
TWO_FRAMES: Final = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
MANY_BAD: Final = 30  # more than are listed at a time
BIDI: Final = re.compile("[\u202a-\u202e\u2066-\u2069\x00-\x08]")
# Names of classes, and what is to be read.
HOSTILE: Final = {
    "<img src=x onerror='window.ran=1'>": "<img src=x onerror='window.ran=1'>",
    "a\u202egpj.exe": "a⟨U+202E⟩gpj.exe",
    "bell\x07 and tab\t": "bell⟨U+0007⟩ and tab⟨U+0009⟩",
    '&lt;b&gt; "quoted" ${1+1} {{2}}': '&lt;b&gt; "quoted" ${1+1} {{2}}',
    "\u0645\u0631\u062d\u0628\u0627 \U0001f408\u200d\u2b1b": "\u0645\u0631\u062d\u0628\u0627 \U0001f408\u200d\u2b1b",
}


def see(visit: Visit, trainer: Trainer) -> tuple[int, int]:
    """Lets batches leave until one is shown that was not; its epoch and index."""
    shown = region(visit, PICTURES)
    shown.scroll_into_view_if_needed()
    before = set(PLACE.findall(shown.inner_text()))

    def others() -> set[tuple[str, str]]:
        trainer.take()
        return set(PLACE.findall(shown.inner_text())) - before

    wait_until(others, "others are shown")
    ((epoch, index),) = PLACE.findall(shown.inner_text())
    return int(epoch), int(index)


def quarters(pixels: Pixels) -> Colours:
    """Mean colours (2, 2, 3) of an image (H, W, 3)."""
    half = pixels.shape[0] // 2
    parts = pixels[: 2 * half, : 2 * half].reshape(2, half, 2, half, 3)
    means: Colours = parts.mean(axis=(1, 3))
    return means


def apart(one: Pixels, other: Pixels) -> float:
    """How far the colours of two pictures are from each other."""
    return float(np.abs(quarters(one) - quarters(other)).max())


def shown_pixels(visit: Visit, row: int) -> Pixels:
    """What the page shows in a row, decoded."""
    kind, _, data = (button(visit, row).locator("img").get_attribute("src") or "").partition(",")
    assert kind == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        return np.asarray(picture.convert("RGB"), np.uint8)


def button(visit: Visit, row: int) -> Locator:
    return region(visit, PICTURES).get_by_role("button", name=re.compile(rf"^Row {row}:"))


def test_the_pictures_shown_are_those_of_the_batch(board: Board, trainer: Trainer, go: Go) -> None:
    visit = go(board.url)
    epoch, index = see(visit, trainer)
    batch: Batch = board.client.batch("train", epoch, index)
    files = board.client.names("train", batch.sample_ids)
    classes = batch.spec.labels["label"].classes

    expect(region(visit, PICTURES).get_by_role("listitem")).to_have_count(len(batch))
    for row, image in enumerate(batch.images):
        picture = shown_pixels(visit, row)
        label = classes[batch.labels["label"][row]]
        assert picture.shape == (SIDE, SIDE, 3)
        assert apart(picture, image) < JPEG_ERROR < apart(picture, batch.images[row - 1])
        expect(button(visit, row)).to_have_accessible_name(re.compile(f"^Row {row}: {label}\\b"))
        expect(button(visit, row)).to_have_attribute("title", files[row])


def test_enter_shows_a_picture_large_with_its_file_and_escape_goes_back(board: Board, trainer: Trainer, go: Go) -> None:
    visit = go(board.url)
    epoch, index = see(visit, trainer)
    batch = board.client.batch("train", epoch, index)
    button(visit, 1).press("Enter")
    large = visit.page.get_by_role("dialog")

    expect(large).to_contain_text(f"Row 1 of batch train {epoch}:{index}")
    expect(large).to_contain_text(board.client.names("train", batch.sample_ids)[1])
    visit.page.keyboard.press("ArrowRight")
    expect(large).to_contain_text(board.client.names("train", batch.sample_ids)[2])
    visit.page.keyboard.press("Escape")
    expect(large).to_be_hidden()
    expect(button(visit, 1)).to_be_focused()


def test_other_pictures_leave_the_focus_where_it_is(board: Board, trainer: Trainer, go: Go) -> None:
    visit = go(board.url)
    see(visit, trainer)
    button(visit, 2).focus()
    see(visit, trainer)

    expect(button(visit, 2)).to_be_focused()


def test_a_row_that_was_filled_says_why(board: Board, trainer: Trainer, go: Go) -> None:
    visit = go(board.url)
    marked = region(visit, PICTURES).get_by_role("button", name="substituted")
    # One batch is shown every two seconds, and chance may put off those with a bad row.
    wait_until(lambda: any(see(visit, trainer)) and marked.count(), "a batch with a bad row is shown", 120)
    marked.first.click()
    large = visit.page.get_by_role("dialog")

    expect(large).to_contain_text(re.compile(f"{BROKEN}|{CUT}"))
    expect(large).to_contain_text("Reason")


AWAY: Final[dict[str, tuple[Callable[[Visit], object], Callable[[Visit], object]]]] = {
    "paused": (
        lambda visit: visit.page.get_by_role("button", name="Pause pictures").click(),
        lambda visit: visit.page.get_by_role("button", name="Resume pictures").click(),
    ),
    "hidden": (lambda visit: visit.hide(), lambda visit: visit.hide(False)),
    "out of sight": (
        lambda visit: visit.page.evaluate("scrollTo(0, 0)"),
        lambda visit: region(visit, PICTURES).scroll_into_view_if_needed(),
    ),
}


@pytest.mark.parametrize("how", AWAY)
def test_nothing_is_asked_for_or_drawn_while_nobody_looks(board: Board, trainer: Trainer, go: Go, how: str) -> None:
    leave, come_back = AWAY[how]
    visit = go(board.url, viewport=LOW)
    see(visit, trainer)
    leave(visit)
    visit.page.evaluate(TWO_FRAMES)  # it notices in the next that it is out of sight
    before = count(visit, board)
    end_s = uptime_s(board) + LONG_S
    wait_until(lambda: trainer.take() and uptime_s(board) > end_s, "the page had time to ask")

    assert count(visit, board) == before
    come_back(visit)
    wait_until(lambda: trainer.take() and count(visit, board) > before, "pictures are asked for and drawn")


def count(visit: Visit, board: Board) -> tuple[int, float]:
    """How often pictures were asked for by this page, and how many batches the daemon has drawn for any."""
    return len(visit.asked_for("/pictures")), board.client.stats().get("dashboard", {}).get("drawn", 0)


def uptime_s(board: Board) -> float:
    return float(board.client.status().uptime_s)


def test_bad_samples_are_listed_with_reason_and_what_can_be_seen(board: Board, go: Go) -> None:
    with board.client.subscribe("train", epochs=1) as batches:
        reasons = {row.file: row.reason for batch in batches for row in batch.bad}
    visit = go(board.url)
    bad = region(visit, "Bad samples")
    bad.get_by_role("button", name="Show 2 bad samples").click()

    assert reasons.keys() == {BROKEN, CUT}
    for file, reason in reasons.items():
        expect(bad.get_by_role("listitem").filter(has_text=file)).to_contain_text(reason)
    bad.scroll_into_view_if_needed()
    expect(bad.get_by_role("img", name=f"what can be seen of {CUT}")).to_be_visible()
    expect(bad.get_by_role("listitem").filter(has_text=BROKEN)).to_contain_text("nothing to see")
    assert sorted(visit.asked_for("/thumbnails")) == sorted(set(visit.asked_for("/thumbnails")))


def test_names_that_would_do_harm_stay_text(tmp_path: Path, start_board: StartBoard, go: Go) -> None:
    folder = write_images(tmp_path / "data", dict.fromkeys(HOSTILE, 2))
    for number in range(MANY_BAD):
        (folder / next(iter(HOSTILE)) / f"{number:02} <b onclick=alert(1)>\u202egpj.jpg").write_text("none")
    board = start_board(config(folder, batch_size=64, bad_samples={"max_fraction": 1.0}))
    visit = go(board.url)
    trainer = Trainer(board.client)
    see(visit, trainer)
    trainer.leave()
    shown = region(visit, PICTURES).get_by_role("listitem")
    assert set(shown.locator("bdi").all_text_contents()) == set(HOSTILE.values())
    listed = region(visit, "Bad samples")
    listed.get_by_role("button", name=f"Show {MANY_BAD} bad samples").click()
    expect(listed.get_by_role("listitem")).to_have_count(24)
    listed.get_by_role("button", name="More bad samples").press("Enter")
    expect(listed.get_by_role("listitem")).to_have_count(MANY_BAD)
    assert listed.get_by_text(f"{MANY_BAD - 1} <b onclick=alert(1)>⟨U+202E⟩gpj.jpg").count() == 1
    assert visit.page.evaluate("window.ran") is None
    assert visit.page.locator("[onerror], [onclick], img[src=x]").count() == 0
    assert BIDI.search(visit.page.inner_text("body")) is None
