"""The comparison's charts, from made-up figures."""

from __future__ import annotations

from pathlib import Path

import compare_chart as chart
import growth
import pytest
from compared import FOUND, comparison
from PIL import Image


def test_bars_are_parts_of_the_limit_the_longest_first() -> None:
    bars = chart.limit_bars(FOUND)

    assert list(bars) == ["streamd", "tf.data, AUTOTUNE, fast DCT", "the naive generator: Pillow in the training loop"]
    assert bars["streamd"] == [pytest.approx(0.9), None]


def test_lines_are_of_loaders_that_several_trainers_took() -> None:
    lines = {line.name: line for line in chart.trainer_lines(FOUND)}

    assert set(lines) == {"streamd", "tf.data, AUTOTUNE, fast DCT"}
    assert lines["streamd"].points == ((1.0, 90.0), (4.0, 345.0))
    assert [line.name for line in chart.worker_lines(FOUND)] == ["the limit", "streamd"]


def test_the_size_of_the_set_is_drawn_from_what_growth_has_measured(tmp_path: Path) -> None:
    memory, rate = growth.Memory(1, 1), growth.Take((100.0, 110.0, 300.0), 1.0, 1.0, 1.0)
    turn = growth.Turn(growth.Start(0.5, 0.9), rate, memory, memory, memory)
    size = growth.Size(10_000, growth.Listing(1.0, 1.0, 1, 1, 1), (turn,))
    company = growth.Company(1, (rate,))
    growth.build_report(FOUND.machine, 1, [size], [company]).save(tmp_path / "growth.json")

    assert chart.size_lines(tmp_path / "growth.json") == [chart.Line("streamd", ((10_000.0, 110.0),), ours=True)]
    assert chart.size_lines(tmp_path / "none.json") == []


def test_what_there_are_figures_for_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart, "GROWTH", tmp_path / "growth.json")
    drawn = [name for name, _ in chart.draw_all(FOUND, tmp_path)]

    assert drawn == ["benchmarks-limit.png", "benchmarks-trainers.png", "benchmarks-workers.png"]
    for name in drawn:
        with Image.open(tmp_path / name) as picture:
            colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or []}
            assert picture.width == chart.WIDTH
            assert len(colours) > 20
    assert chart.draw_all(comparison(), tmp_path) == []
