"""The comparison's page and its charts, from made-up figures."""

from __future__ import annotations

import re
from pathlib import Path

import compare_page as page
import growth
import msgspec
import pytest
from compare_results import Taken
from compared import FOUND, ROUND, SEEN, SETTINGS, comparison
from PIL import Image


def row_of(text: str, begin: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {begin}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_what_was_reached_is_worked_out() -> None:
    text = page.render(FOUND, [])

    assert row_of(text, "128x128, one trainer, of the limit")[1:] == ["≥ 0.90", "0.90", "yes"]
    assert row_of(text, "128x128, first batch")[1:] == ["≤ 1.00", "0.30", "yes"]
    assert row_of(text, "500x375, one trainer, of the limit")[1:] == ["≥ 0.85", "-", "not measured"]


@pytest.mark.parametrize(
    ("worse", "begin", "said"),
    [
        ({"s/streamd/1": Taken((45.0,))}, "128x128, one trainer, of the limit", "no, by 50%"),
        ({"s/streamd/1": Taken((90.0,), (), (1.5,))}, "128x128, first batch", "no, by 50%"),
        ({"decoded/streamd/4": Taken((200.0,) * 4)}, "decoded, four trainers together", "no, by 50%"),
    ],
)
def test_a_figure_that_misses_says_by_how_much(worse: dict[str, Taken], begin: str, said: str) -> None:
    assert row_of(page.render(comparison({**ROUND, **worse}), []), begin)[-1] == said


def test_loaders_stand_in_the_order_of_their_rates_below_the_limit() -> None:
    text = page.render(FOUND, [])
    table = text[text.index("## From JPEGs") :].split("\n\n")[1]

    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        "the limit: processes that read and decode, and nothing else",
        "**streamd**",
        "tf.data, AUTOTUNE, fast DCT",
        "the naive generator: Pillow in the training loop",
    ]
    assert row_of(table, "tf.data")[1:4] == ["45.0", "0.45", "44.0"]


def test_several_trainers_are_shown_each_and_together() -> None:
    text = page.render(FOUND, [])
    table = text[text.index("## Several trainers at once, 128x128") :].split("\n\n")[2]

    assert row_of(table, "tf.data") == ["tf.data, AUTOTUNE, fast DCT", "45.0", "11.5 / 46.0"]


def test_a_loader_without_a_figure_is_named_with_its_reason() -> None:
    assert "- `s/spdl_threads`: libavcodec.so.61: cannot open shared object file (exit 1)" in page.render(FOUND, [])


def test_settings_and_proof_stand_beside_the_figures() -> None:
    inexact = msgspec.structs.replace(SETTINGS, inexact="begins anywhere")
    strange = comparison(
        ROUND,
        settings={"s/tf_data": SETTINGS, "s/tf_service": inexact, "s/naive": SETTINGS},
        verified={
            "s/tf_data": SEEN,
            "s/tf_service": msgspec.structs.replace(SEEN, missed=3),
            "s/naive": msgspec.structs.replace(SEEN, repeated=1, ids=False),
        },
    )
    text = page.render(strange, [])

    assert "tensorflow 2.21 | AUTOTUNE | tensorflow.org: performance guide | s: 20,000 once each, by ids" in text
    assert "s: begins anywhere, by ids" in text
    assert "s: NOT THE SAME, by colours alone" in text


def test_charts_are_shown_and_an_empty_comparison_is_a_page() -> None:
    assert "![against the limit](benchmarks-limit.png)" in page.render(
        FOUND, [("benchmarks-limit.png", "against the limit")]
    )
    assert re.search(r"^## From", page.render(comparison(), []), re.MULTILINE) is None


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (45.2, "45.2"), (9_441.0, "9,440"), (143_877.0, "144,000"), (321.4, "321")]
)
def test_a_rate_has_three_figures(value: float | None, shown: str) -> None:
    assert page.rate(value) == shown


def test_bars_are_parts_of_the_limit_the_longest_first() -> None:
    bars = page.limit_bars(FOUND)

    assert list(bars) == ["streamd", "tf.data, AUTOTUNE, fast DCT", "the naive generator: Pillow in the training loop"]
    assert bars["streamd"] == [pytest.approx(0.9), None]


def test_lines_are_of_loaders_that_several_trainers_took() -> None:
    lines = {line.name: line for line in page.trainer_lines(FOUND)}

    assert set(lines) == {"streamd", "tf.data, AUTOTUNE, fast DCT"}
    assert lines["streamd"].points == ((1.0, 90.0), (4.0, 345.0))
    assert [line.name for line in page.worker_lines(FOUND)] == ["the limit", "streamd"]


def test_the_size_of_the_set_is_drawn_from_what_growth_has_measured(tmp_path: Path) -> None:
    rate = growth.Take((100.0, 110.0, 300.0), 1.0, 1.0, 1.0)
    turn = growth.Turn(0.5, 0.9, rate, daemon=1, worker=1, trainer=1, mapped=1)
    size = growth.Size(10_000, growth.Listing(1.0, 1.0, 1, 1, 1), (turn,))
    growth.build_report(FOUND.machine, 1, [size], {1: [rate]}).save(tmp_path / "growth.json")

    assert page.size_lines(tmp_path / "growth.json") == [page.Line("streamd", ((10_000.0, 110.0),), ours=True)]
    assert page.size_lines(tmp_path / "none.json") == []


def test_what_there_are_figures_for_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "GROWTH", tmp_path / "growth.json")
    drawn = [name for name, _ in page.draw_all(FOUND, tmp_path)]

    assert drawn == ["benchmarks-limit.png", "benchmarks-trainers.png", "benchmarks-workers.png"]
    for name in drawn:
        with Image.open(tmp_path / name) as picture:
            colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or []}
            assert picture.width == page.WIDTH
            assert len(colours) > 20
    assert page.draw_all(comparison(), tmp_path) == []
