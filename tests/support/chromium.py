"""Chromium for tests of the dashboard: one per module, one context per visit, and errors on a page fail the test."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:  # most runs of the tests have no use for a browser
    from playwright.sync_api import Browser, ConsoleMessage, Page

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")  # as in scripts/setup.sh
PATIENCE_MS: Final = 60_000  # for what the page shows within a second or two, or behind thumbnails that are drawn
NEVER: Final = r"(?!)"

# A headless browser never hides a tab: the page is told so instead.
_HIDING: Final = """
    let hidden = false;
    Object.defineProperty(document, "hidden", {get: () => hidden});
    Object.defineProperty(document, "visibilityState", {get: () => hidden ? "hidden" : "visible"});
    window.hideForTest = (now) => { hidden = now; document.dispatchEvent(new Event("visibilitychange")); };
"""


def chromium_path() -> str:
    """Where a Chromium is. Skips the test where there is none."""
    for path in map(shutil.which, PROGRAMS):
        if path is not None:
            return path
    pytest.skip(f"no Chromium, under any of the names {', '.join(PROGRAMS)}: scripts/test --all installs it")


class Visit:
    """A page in a context of its own; what it complained of fails the test, unless it matches `forgiven`.

    `asked` are the addresses that it asked for.
    """

    def __init__(self, browser: Browser, forgiven: str, options: dict[str, Any]) -> None:
        self._forgiven = re.compile(forgiven)
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(PATIENCE_MS)
        self._context.add_init_script(_HIDING)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page: Page = self._context.new_page()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.text} at {message.location.get('url')}")

    def hide(self, hidden: bool = True) -> None:
        """The tab goes behind another one, or comes back."""
        self.page.evaluate("hidden => window.hideForTest(hidden)", hidden)

    def catch_up(self) -> None:
        """What the browser has told meanwhile is heard only while it is spoken with."""
        self.page.evaluate("0")

    def asked_for(self, path: str) -> list[str]:
        """The paths asked for so far that begin so, each as often as it was asked for."""
        self.catch_up()
        return [found for url in self.asked if (found := urlsplit(url).path).startswith(path)]

    def complaints_now(self) -> list[str]:
        """What it has complained of so far."""
        self.catch_up()
        return self.complaints

    def strangers(self) -> set[str]:
        """Whom it asked besides the daemon."""
        here = urlsplit(self.page.url).netloc
        return {
            url for url in self.asked if urlsplit(url).scheme not in {"data", "blob"} and urlsplit(url).netloc != here
        }

    def leave(self) -> None:
        """Ends it. Raises AssertionError when anything went wrong on it."""
        strangers = self.strangers()
        self._context.close()
        assert strangers == set()
        assert [each for each in self.complaints if not self._forgiven.search(each)] == []


Go = Callable[..., Visit]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - as above

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path())
        yield browser
        browser.close()


@pytest.fixture
def go(chromium: Browser) -> Iterator[Go]:
    """Visits an address; the options are those of a context: a colour scheme, a viewport."""
    from playwright.sync_api import expect  # noqa: PLC0415 - as above

    expect.set_options(timeout=PATIENCE_MS)
    visits: list[Visit] = []

    def visit(url: str, *, forgiven: str = NEVER, **options: Any) -> Visit:
        visits.append(Visit(chromium, forgiven, options))
        visits[-1].page.goto(url)
        return visits[-1]

    yield visit
    for each in visits:
        each.leave()
