"""Who sees samples on the dashboard, and what its page may do."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Final

import pytest
from playwright.sync_api import expect
from support.chromium import Go
from support.daemon_process import wait_until
from support.dashboard_daemon import Board, Trainer, region
from support.monitor_requests import fetch

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

PAGE_BYTES: Final = 100_000
COMMAND: Final = "streamd status --url"
SECRET: Final = ("pictures/train", "bad/train", "thumbnails/train/0")


def token_of(board: Board) -> str:
    return board.url.partition("#")[2]


@pytest.mark.parametrize("path", SECRET)
@pytest.mark.parametrize("words", ["", "Bearer wrong", "Basic {token}", "Bearer {token}x"])
def test_nothing_of_a_sample_is_told_without_the_token(board: Board, path: str, words: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        fetch(f"{board.address}{path}", Authorization=words.format(token=token_of(board)))

    said = refused.value.read().decode()
    assert COMMAND in said
    assert "cat" not in said


def test_what_goes_on_names_no_file_and_no_class(board: Board) -> None:
    with urllib.request.urlopen(f"{board.address}live") as events:  # noqa: S310 - an address of a test's own server
        said = events.readline().decode()

    assert '"streams"' in said
    assert [each for each in ("cat", "dog", "page.jpg") if each in said] == []


def test_without_the_token_the_page_shows_no_sample_and_says_how_to_get_it(board: Board, go: Go) -> None:
    visit = go(board.address)
    access = region(visit, "Access to pictures")

    expect(access).to_contain_text(COMMAND)
    expect(visit.page.get_by_role("table", name="Streams")).to_be_visible()
    expect(region(visit, "Batch now leaving").get_by_role("img")).to_have_count(0)
    assert visit.asked_for("/pictures") == visit.asked_for("/bad") == visit.asked_for("/thumbnails") == []


def test_a_wrong_token_is_reported_and_a_pasted_address_fixes_it(board: Board, trainer: Trainer, go: Go) -> None:
    visit = go(f"{board.address}#wrong", forgiven="401")
    access = region(visit, "Access to pictures")
    region(visit, "Batch now leaving").scroll_into_view_if_needed()

    expect(access).to_contain_text("does not accept this token")
    expect(access).to_contain_text(COMMAND)
    access.get_by_role("textbox", name="Address or token").fill(board.url)
    access.get_by_role("button", name="Show pictures").press("Enter")
    expect(access).to_be_hidden()
    pictures = region(visit, "Batch now leaving").get_by_role("listitem")
    wait_until(lambda: trainer.take() and pictures.count(), "pictures are shown")


def test_the_token_leaves_the_address_bar_and_lasts_over_a_reload(board: Board, go: Go) -> None:
    visit = go(board.url)
    region(visit, "Batch now leaving").scroll_into_view_if_needed()
    wait_until(lambda: visit.asked_for("/pictures"), "pictures are asked for")

    assert visit.page.url == board.address
    visit.asked.clear()
    visit.page.reload()
    region(visit, "Batch now leaving").scroll_into_view_if_needed()
    wait_until(lambda: visit.asked_for("/pictures"), "pictures are asked for again")
    assert visit.page.evaluate("document.cookie + JSON.stringify(localStorage)").find(token_of(board)) == -1
    assert [url for url in visit.asked if token_of(board) in url] == []


def test_the_page_is_small_and_comes_with_a_policy(board: Board, go: Go) -> None:
    visit = go(board.address)
    expect(visit.page.get_by_role("table", name="Streams")).to_be_visible()
    files = {url for url in visit.asked if url == board.address or "/page/" in url}

    assert len(files) > 3
    assert sum(len(fetch(url).encode()) for url in files) < PAGE_BYTES
    for url in files:
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - an address of a test's own server
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_script_that_gets_into_the_page_does_not_run(board: Board, go: Go) -> None:
    visit = go(board.address, forgiven="Content Security Policy|/x$")
    visit.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = 1";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = 2'>");
        }"""
    )
    wait_until(lambda: len(visit.complaints_now()) >= 2, "the policy steps in")

    assert visit.page.evaluate("window.ran") is None
