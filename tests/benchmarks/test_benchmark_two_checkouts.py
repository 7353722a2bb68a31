"""Two checkouts in alternation: how each is started, in which order, and when the new one counts as slower."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import run
import two_checkouts
from processes import BatchCost
from support.daemon_process import write_images
from two_checkouts import (
    Checkout,
    Ratio,
    Round,
    compare_medians,
    measure_cost,
    measure_round,
    open_checkout,
    render_verdict,
    serve_checkout,
)

ROOT = Path(two_checkouts.__file__).parents[1]
NOISE = (0.97, 1.04, 1.0, 0.98, 1.03, 1.01, 0.99, 1.02, 1.0)


def rounds_of(slower: float) -> list[Round]:
    """Rounds in which a batch of the new checkout costs so many times what one of the old does, on average."""
    return [
        Round(BatchCost(2.0 * noise, 0.5), BatchCost(2.0 * slower * other, 0.5 * slower))
        for noise, other in zip(NOISE, NOISE[::-1], strict=True)
    ]


@pytest.mark.parametrize(("slower", "is_kept"), [(0.8, True), (1.0, True), (1.02, True), (1.2, False)])
def test_a_checkout_is_slower_when_its_ratio_and_all_of_the_interval_say_so(slower: float, is_kept: bool) -> None:
    ratio = compare_medians(rounds_of(slower), lambda cost: cost.total_ms)
    assert ratio.low <= ratio.ratio <= ratio.high
    assert ratio.ratio == pytest.approx(slower, rel=0.02)
    assert ratio.is_kept is is_kept
    verdict, kept = render_verdict(rounds_of(slower))
    assert kept is is_kept
    assert verdict.splitlines()[-1] == ("NEW is not slower" if is_kept else "NEW is slower")
    assert [line.partition(":")[0] for line in verdict.splitlines()[:-1]] == [
        "daemon and workers",
        "trainer",
        "together",
    ]


def test_a_ratio_says_what_speaks_for_it_and_against_it() -> None:
    assert str(Ratio(1.02, 1.01, 1.03)) == (
        "ratio 1.020 is at most 1.03; 95 % interval 1.010 to 1.030 does not contain 1"
    )
    assert Ratio(1.05, 0.99, 1.1).is_kept
    assert str(Ratio(1.05, 0.99, 1.1)) == "ratio 1.050 is over 1.03; 95 % interval 0.990 to 1.100 contains 1"


def test_the_same_rounds_have_the_same_interval() -> None:
    assert render_verdict(rounds_of(1.1)) == render_verdict(rounds_of(1.1))


def test_a_checkout_is_started_by_its_own_entry_point(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\nstreamd = "streamd.commands:start"\n')
    checkout = open_checkout(tmp_path)
    assert checkout.command("serve")[0] == sys.executable
    assert checkout.command("serve")[-2:] == ["from streamd.commands import start; start()", "serve"]
    assert checkout.environment["PYTHONPATH"] == str(tmp_path)
    with pytest.raises(SystemExit, match=r"two_checkouts: .*elsewhere is no checkout of streamd: FileNotFoundError"):
        open_checkout(tmp_path / "elsewhere")


def test_the_checkouts_take_turns_so_that_a_drift_falls_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Checkout(Path("/old"), "a:b"), Checkout(Path("/new"), "a:b")
    measured: list[Checkout] = []

    def measure(checkout: Checkout, *_: object) -> BatchCost:
        measured.append(checkout)
        return BatchCost(len(measured), 10 * len(measured))

    monkeypatch.setattr(two_checkouts, "serve_checkout", lambda *_: nullcontext())
    monkeypatch.setattr(two_checkouts, "measure_cost", measure)
    assert measure_round(1, old, new, {}, 1) == Round(BatchCost(2.5, 25.0), BatchCost(2.5, 25.0))
    assert measured == [old, new, new, old]
    assert measure_round(2, old, new, {}, 1) == Round(BatchCost(6.5, 65.0), BatchCost(6.5, 65.0))
    assert measured[4:] == [new, old, old, new]


def test_fewer_rounds_than_tell_anything_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["two_checkouts.py", ".", ".", "--rounds", "4"])
    with pytest.raises(SystemExit):
        two_checkouts.main()
    assert "--rounds: at least 5" in capsys.readouterr().err


@pytest.mark.bench
def test_this_checkout_is_measured_by_a_daemon_and_a_trainer_of_its_own(tmp_path: Path) -> None:
    checkout = open_checkout(ROOT)
    with serve_checkout(checkout, run.folder_stream(write_images(tmp_path / "data", {"cat": 40}))) as daemon:
        cost = measure_cost(checkout, daemon, epochs=2)
    assert cost.daemon_ms > 0
    assert cost.trainer_ms > 0
