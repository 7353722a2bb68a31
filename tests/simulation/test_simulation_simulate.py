"""scripts/bench simulate: sums over many runs, the command that replays a failure, the story of one seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import simulate
from figures import Figures, write_page
from simulator import Simulation

from streamd.client.handoff import Handoff


@pytest.mark.long
def test_runs_of_several_processes_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "page.md"

    assert simulate.main(["--epochs", "100", "--processes", "2", "--report", str(report)]) == 0

    assert "every promise was kept" in capsys.readouterr().out
    assert "No promise was broken." in report.read_text()


def test_the_story_of_one_seed_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seed", "12"]) == 0

    told = capsys.readouterr().out
    assert told.splitlines()[0].endswith(("an ordinary network", "network"))
    assert "takes 0:0" in told
    assert "---" in told
    assert "every promise was kept" in told


def test_a_broken_promise_sets_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handoff, "before_fork", lambda _: None)
    seed = next(seed for seed in range(300) if Simulation(seed).run().broken)

    assert simulate.main(["--seed", str(seed)]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_a_failing_seed_is_listed_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.Simulation._look_back", lambda _: 1 / 0)
    figures = Figures()
    figures.add(Simulation(41).run())
    write_page(tmp_path / "page.md", figures, wanted_epochs=1, processes=1)

    assert "scripts/bench simulate --seed 41" in figures.text()
    assert "1 runs broke a promise" in figures.text()
    assert "scripts/bench simulate --seed 41" in (tmp_path / "page.md").read_text()


def test_figures_add_up() -> None:
    one, other = Figures(), Figures()
    one.add(Simulation(1).run())
    other.add(Simulation(2).run())
    batches, runs = one.batches + other.batches, one.runs + other.runs
    one.merge(other)

    assert (one.batches, one.runs) == (batches, runs)
    assert one.counts["connections"] > other.counts["connections"]


def test_a_page_of_an_incomplete_run_says_why_and_what_the_rest_takes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for epochs in (50_000, 1_000_000):
        write_page(page, Figures(runs=1, epochs=epochs, wall_s=120.0), wanted_epochs=1_000_000, processes=2)
        assert ("time was up before its 1,000,000 epochs" in page.read_text()) == (epochs == 50_000)
        assert ("40 minutes in 2 processes, or 80 minutes of one core" in page.read_text()) == (epochs == 50_000)
