"""The dashboard on a phone, in the dark, by keyboard, read aloud, and without motion."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from support.chromium import Go, Visit
from support.daemon_process import wait_until
from support.dashboard_daemon import Board, Trainer, region

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

LANDMARKS: Final[tuple[Literal["banner", "main", "contentinfo"], ...]] = ("banner", "main", "contentinfo")
PHONE: Final = {"width": 360, "height": 740}
DESK: Final = {"width": 1280, "height": 900}
LARGE: Final = {"width": 3840, "height": 2160}

# What can be operated, each by a number that it keeps.
CONTROLS: Final = """() => {
    const all = document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']");
    const usable = [...all].filter((each) => each.checkVisibility({visibilityProperty: true}) && !each.disabled);
    return usable.map((each, number) => (each.dataset.control = String(number)));
}"""
# The control that has the focus, and whether that can be seen.
FOCUSED: Final = """() => {
    const style = getComputedStyle(document.activeElement);
    const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    const box = document.activeElement.getBoundingClientRect();
    const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    const isUncovered = document.activeElement.contains(top);
    return [document.activeElement.dataset.control ?? null, isOutlined && isUncovered];
}"""
LUMINANCE: Final = """() => {
    const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
    return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}"""
SIDEWAYS: Final = """() => {
    const wide = (each) => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth + 1;
    const isScrolled = document.documentElement.scrollWidth > innerWidth;
    return isScrolled ? [...document.querySelectorAll("body *")].filter(wide).map((each) => each.outerHTML) : [];
}"""
MOVING: Final = "() => document.getAnimations().filter((each) => each.playState === 'running').length"


def fill(visit: Visit, trainer: Trainer) -> Page:
    """A page with something of everything: trainers, pictures, bad samples."""
    pictures = region(visit, "Batch now leaving")
    pictures.scroll_into_view_if_needed()
    wait_until(lambda: trainer.take() and pictures.get_by_role("listitem").count(), "pictures are shown")
    visit.page.get_by_role("button", name="Pause pictures").click()
    bad = visit.page.get_by_role("button", name="Show 2 bad samples")
    wait_until(lambda: trainer.take() and bad.is_visible(), "the bad samples are known")
    bad.click()
    expect(region(visit, "Bad samples").get_by_role("listitem")).to_have_count(2)
    expect(visit.page.get_by_role("table", name=re.compile("^Trainers"))).to_be_visible()
    return visit.page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_a_machine_finds_no_fault_for_people_who_see_less(
    board: Board, trainer: Trainer, go: Go, scheme: str, size: dict[str, int]
) -> None:
    page = fill(go(board.url, color_scheme=scheme, viewport=size), trainer)
    found = Axe().run(page)

    assert found.violations_count == 0, found.generate_report()
    page.get_by_role("button", name="Row 0:").click()
    large = Axe().run(page)
    assert large.violations_count == 0, large.generate_report()


def test_what_is_read_aloud_has_an_order_and_names(board: Board, trainer: Trainer, go: Go) -> None:
    page = fill(go(board.url), trainer)
    headings = page.get_by_role("heading")
    levels = [int(each.evaluate("each => each.tagName[1]")) for each in headings.all()]

    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for landmark in LANDMARKS:
        expect(page.get_by_role(landmark)).to_have_count(1)
    for table in page.get_by_role("table").all():
        assert table.locator("caption").inner_text().strip()
    for picture in page.get_by_role("img").all():
        assert (
            picture.get_attribute("alt")
            or picture.get_attribute("aria-labelledby")
            or picture.get_attribute("aria-label")
        )
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("html").get_attribute("lang") == "en"


def test_the_way_of_the_data_is_told_in_words(board: Board, trainer: Trainer, go: Go) -> None:
    page = fill(go(board.url), trainer)
    told = page.get_by_role("img", name="Data flow")

    expect(told).to_have_count(1)
    expect(told).to_have_accessible_description(re.compile("train"))


def test_every_control_is_reached_by_tab_and_seen_there(board: Board, trainer: Trainer, go: Go) -> None:
    page = fill(go(board.url), trainer)
    page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
    controls = set(page.evaluate(CONTROLS))
    reached: dict[str, bool] = {}
    for _ in range(2 * len(controls)):
        page.keyboard.press("Tab")
        control, is_seen = page.evaluate(FOCUSED)
        if control is not None:
            reached[control] = is_seen

    assert len(controls) > 10
    assert controls - reached.keys() == set()
    assert [
        page.locator(f"[data-control='{each}']").text_content() for each, is_seen in reached.items() if not is_seen
    ] == []


def test_the_first_tab_skips_to_the_content(board: Board, go: Go) -> None:
    page = go(board.address).page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


@pytest.mark.parametrize("size", [PHONE, DESK, LARGE], ids=["phone", "desk", "large"])
def test_nothing_has_to_be_scrolled_sideways(board: Board, trainer: Trainer, go: Go, size: dict[str, int]) -> None:
    page = fill(go(board.url, viewport=size), trainer)

    assert page.evaluate(SIDEWAYS) == []


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_colours_follow_the_system_until_the_button_is_pressed(
    board: Board, go: Go, scheme: str, is_dark: bool
) -> None:
    page = go(board.address, color_scheme=scheme).page
    button = page.get_by_role("button", name="Colours:")

    expect(button).to_have_text("Colours: auto")
    assert (page.evaluate(LUMINANCE) < 0.5) is is_dark
    for wanted in ("light", "dark"):
        button.press("Enter")
        expect(button).to_have_text(f"Colours: {wanted}")
        assert (page.evaluate(LUMINANCE) < 0.5) is (wanted == "dark")
    page.reload()
    expect(button).to_have_text("Colours: dark")
    assert page.evaluate(LUMINANCE) < 0.5
    button.press("Enter")
    expect(button).to_have_text("Colours: auto")


@pytest.mark.parametrize(("motion", "moves"), [("reduce", False), ("no-preference", True)])
def test_who_wants_no_motion_gets_none(board: Board, trainer: Trainer, go: Go, motion: str, moves: bool) -> None:
    page = go(board.address, reduced_motion=motion).page
    flows = page.get_by_role("img", name="Data flow")
    expect(flows).to_be_visible()
    seen: list[int] = []
    rates = page.get_by_role("term").filter(has_text="taken").locator("..")

    def flowing() -> bool:
        trainer.take()
        seen.append(page.evaluate(MOVING))
        return not rates.inner_text().startswith("taken\n0 ") and (any(seen) or not moves)

    wait_until(flowing, "data flow, and the page shows it")
    assert any(seen) is moves
