"""Makes the pictures of the dashboard that README.md shows: a daemon at work on drawn roads, in a real browser.

    scripts/docs screenshots [FOLDER]

One file is damaged, and the trainers are of different speed. What is drawn differs from run to run as a daemon's work
does; the sizes of the pictures do not.
"""

from __future__ import annotations

import io
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from support.chromium import PATIENCE_MS, chromium_path
from support.daemon_process import DaemonProcess

import streamd
from streamd.cli.demo import write_driving_set

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
ROADS: Final = 2000
BATCH: Final = 32
SEED: Final = 7
EPOCHS: Final = 90  # none comes to its end
HISTORY_S: Final = 120.0  # what the curves of the page cover
HOST: Final = "gpu1"  # whatever this one is called
_NAMED: Final = f"#host {{ font-size: 0 }} #host::after {{ content: '{HOST}'; font-size: 1rem }}"
MOST_COLOURS: Final = 256
MOST_BYTES: Final = 250_000  # README.md is read over slow lines, too


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: its file, the window in pixels, and the scheme."""

    name: str
    width: int
    height: int
    scheme: str

    @property
    def context(self) -> dict[str, Any]:
        return {
            "bypass_csp": True,  # of the page's own policy, which lets no style in from elsewhere
            "viewport": {"width": self.width, "height": self.height},
            "color_scheme": self.scheme,
        }


SHOTS: Final = (
    Shot("dashboard.png", 1280, 1460, "light"),
    Shot("dashboard-dark.png", 1280, 1460, "dark"),
    Shot("dashboard-phone.png", 390, 1400, "light"),
)


def config_of(folder: Path) -> dict[str, Any]:
    """Roads in two parts, of which one file is cut off."""
    table = write_driving_set(folder, ROADS, SEED, lambda _: None)
    cut = folder / "images" / "00021.jpg"
    cut.write_bytes(cut.read_bytes()[:1500])
    source = {"kind": "table", "path": str(table), "image": "image"}
    train = {
        "source": {**source, "where": {"split": "train"}},
        "labels": {"angle": "float"},
        "image": {"size": [128, 128]},
        "batch_size": BATCH,
    }
    validation = {"like": "train", "source": {**source, "where": {"split": "validation"}}, "shuffle": "none"}
    return {
        "monitor": "127.0.0.1:0",
        "workers": 2,
        "memory": "256MiB",
        "streams": {"train": train, "validation": validation},
    }


@dataclass(frozen=True, slots=True)
class Trainers:
    """Trainers of a stream, by their names, that stay level: each takes a batch every `step_s`, until `over`."""

    stream: str
    names: tuple[str, ...]
    step_s: float

    def run(self, endpoint: str, over: threading.Event) -> None:
        with ExitStack() as stack:
            client = stack.enter_context(streamd.connect(endpoint))
            wished = [client.subscribe(self.stream, epochs=EPOCHS, prefetch=8, name=name) for name in self.names]
            each = [stack.enter_context(stream) for stream in wished]
            for _ in zip(*each, strict=True):
                if over.wait(self.step_s):
                    return


TRAINERS: Final = (
    Trainers("train", ("lr-0.01", "lr-0.001"), 0.11),
    Trainers("train", ("augmented",), 0.17),
    Trainers("validation", ("lr-0.01",), 0.4),
)


@contextmanager
def at_work(endpoint: str) -> Iterator[None]:
    """The trainers, meanwhile."""
    over = threading.Event()
    threads = [threading.Thread(target=each.run, args=(endpoint, over)) for each in TRAINERS]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def serving(folder: Path) -> Iterator[DaemonProcess]:
    """A daemon that keeps nothing after it."""
    daemon = DaemonProcess(folder, config_of(folder))
    try:
        yield daemon.start()
    finally:
        daemon.kill()


def look(browser: Browser, url: str, shot: Shot) -> Page:
    """The dashboard in a window of its own, once it has something of everything to show."""
    page = browser.new_context(**shot.context).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url)
    pictures = page.get_by_role("region", name="Batch now leaving")
    pictures.scroll_into_view_if_needed()
    pictures.get_by_role("listitem").first.wait_for()
    page.get_by_role("button", name="Pause pictures").press("Enter")
    page.get_by_role("button", name="Show 1 bad sample").press("Enter")
    page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
    return page


def picture(page: Page) -> bytes:
    """The window as a PNG of few colours. Raises ValueError when it is too large a file for README.md."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(page.screenshot(style=_NAMED))) as shown:
        shown.convert("RGB").quantize(MOST_COLOURS).save(file, "PNG", optimize=True)
    if file.tell() > MOST_BYTES:
        raise ValueError(f"a picture of {file.tell():,} bytes; README.md shows at most {MOST_BYTES:,}")
    return file.getvalue()


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        daemon = stack.enter_context(serving(Path(place)))
        stack.enter_context(at_work(daemon.endpoint))
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=chromium_path())
        stack.callback(browser.close)
        with streamd.connect(daemon.endpoint) as client:
            url = client.dashboard()
        pages = [look(browser, url, shot) for shot in SHOTS]
        threading.Event().wait(HISTORY_S)
        for shot, page in zip(SHOTS, pages, strict=True):
            (folder / shot.name).write_bytes(picture(page))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
