"""A comparison's figures, from made-up rounds."""

from __future__ import annotations

from pathlib import Path

import compare_results as results
import msgspec
import pytest
from compare_results import Taken
from compared import FOUND, ROUND, comparison


def test_a_ratio_is_taken_within_its_round() -> None:
    slow = {key: Taken(tuple(rate / 10 for rate in taken.touch)) for key, taken in ROUND.items()}
    odd = {**slow, "s/streamd/1": Taken((2.0,))}

    assert FOUND.ratio("s/streamd/1", "s/limit/1") == pytest.approx(0.9)
    assert comparison(ROUND, slow, odd).ratio("s/streamd/1", "s/limit/1") == pytest.approx(0.9)
    assert comparison(odd).ratio("s/streamd/1", "s/limit/1") == pytest.approx(0.2)


def test_the_best_other_loader_is_each_rounds_own() -> None:
    other = {**ROUND, "s/naive/1": Taken((80.0,)), "s/tf_data/1": Taken((10.0,))}

    assert comparison(ROUND).of_best("s/streamd/1", "s", 1) == pytest.approx(2.0)
    assert comparison(other).of_best("s/streamd/1", "s", 1) == pytest.approx(90 / 80)


def test_neither_the_limit_nor_streamd_nor_another_number_of_workers_is_another_loader() -> None:
    keys = ["s/limit/1", "s/streamd/1", "s/tf_data/1", "s/tf_data/1/workers=1", "s/tf_data/4", "l/tf_data/1"]

    assert results.rivals(keys, "s", 1) == ["s/tf_data/1"]


def test_several_trainers_count_by_their_median_or_by_their_sum() -> None:
    assert FOUND.each("s/streamd/4") == 85.0
    assert FOUND.together("s/streamd/4") == 345.0
    assert FOUND.first_batch_s("s/streamd/1") == 0.3
    assert FOUND.copied("s/streamd/1") == 70.0


def test_a_figure_of_what_was_not_measured_is_not_there() -> None:
    known = results.figures(FOUND)

    assert known["s.four_of_one"] == pytest.approx(85 / 90)
    assert known["s.streamd.4.together"] == 345.0
    assert known["decoded.four_of_memmap"] == pytest.approx(2.0)
    assert "l.one_of_limit" not in known
    assert results.figures(comparison()) == {}


def test_every_target_has_a_figure_once_all_is_measured() -> None:
    keys = [f"{of}/{name}/{count}" for of in ("s", "l") for name in ("streamd", "naive", "limit") for count in (1, 4)]
    keys += ["s/tf_service/4", "s/tensor_socket/4", "decoded/streamd/1", "decoded/streamd/4", "decoded/memmap/1"]
    all_measured = comparison({key: Taken((10.0,), (5.0,), (0.1,)) for key in keys})

    assert {target.name for target in results.TARGETS} <= set(results.figures(all_measured))


def test_what_is_saved_is_loaded_and_has_its_figures_beside_it(tmp_path: Path) -> None:
    results.save(FOUND, tmp_path / "results" / "compare.json")

    assert results.load(tmp_path / "results" / "compare.json") == FOUND
    saved = msgspec.json.decode((tmp_path / "results" / "compare.json").read_bytes())
    assert saved["figures"]["s.one_of_limit"] == pytest.approx(0.9)
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["compare.json"]
