"""The fuzzer itself: each way to fail becomes a finding, once for each cause, and a refusal is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.campaign import Campaign, CampaignFigures, find_fault, find_faults
from fuzz.case_process import CaseProcess
from fuzz.command import fuzz_target, main
from fuzz.findings import Finding, list_saved_inputs, save_finding
from fuzz.target import TARGET_MODULES, load_target

pytestmark = pytest.mark.long

FRAGILE = load_target("support.fuzz_stand_ins:fragile")
CONTAINED = load_target("support.fuzz_stand_ins:contained")
FAULTY = load_target("support.fuzz_stand_ins:faulty")


def run(target_name: str, max_cases: int) -> tuple[CampaignFigures, list[Finding]]:
    found: list[Finding] = []
    campaign = Campaign(load_target(target_name), 1, found.append, lambda _: None)
    return campaign.run(float("inf"), max_cases), found


def test_each_way_to_fail_is_a_finding_and_a_refusal_is_none() -> None:
    found = find_faults(FRAGILE, [b"R", b"a", b"E", b"B", b"K", b"a", b"X", b"L", b"R"])
    last_words = [finding.text.strip().splitlines()[-1].partition(":")[0] for finding in found]
    assert [finding.data for finding in found] == [b"E", b"B", b"K", b"X", b"L"]
    assert last_words == [
        "ZeroDivisionError",
        "streamd.errors.BrokenRuleError",
        "killed by SIGSEGV",
        "exit status 3",
        "MemoryError",
    ]


def test_a_case_that_takes_too_long_is_a_finding_with_the_place_where_it_hangs() -> None:
    found = find_fault(FRAGILE, b"H")
    assert found is not None
    assert found.kind == "hung"
    assert "fail_as_told" in found.text


def test_a_crash_that_the_daemon_survives_is_counted_and_the_cases_go_on() -> None:
    assert find_faults(CONTAINED, [b"K", b"E"])[0].data == b"E"
    assert find_fault(CONTAINED, b"K") is None


def test_a_cause_is_reported_once_with_an_input_that_repeats_it() -> None:
    figures, found = run("support.fuzz_stand_ins:faulty", 200)
    errors = [finding for finding in found if "ZeroDivisionError" in finding.headline]
    assert figures.cases >= 200
    assert [(finding.data, finding.repeats) for finding in errors] == [(b"E1", True)]


def test_memory_that_grows_from_case_to_case_is_noticed() -> None:
    found: list[Finding] = []
    campaign = Campaign(FRAGILE, 1, found.append, lambda _: None)
    campaign.figures.cases = 10_000  # it has settled
    with CaseProcess(FRAGILE) as process:
        answers, end = process.run_cases([b"a", b"M1", b"M2", b"M3"])
    assert end is None
    campaign._settled_bytes = answers[0].resident_bytes
    campaign._judge_answers([b"a", b"M1", b"M2", b"M3"], answers)
    assert [finding.kind for finding in found] == ["memory"]


def test_a_seed_makes_the_same_cases() -> None:
    def first_cases(seed: int) -> list[bytes]:
        campaign = Campaign(FRAGILE, seed, lambda _: None, lambda _: None)
        campaign._seeds = campaign._corpus = [b"some seed", b"another one"]
        batches = campaign._make_batches()
        return [case for _ in range(4) for case in next(batches)]

    assert first_cases(1) == first_cases(1) != first_cases(2)


def test_a_finding_is_a_file_with_the_command_that_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found, *_) = fuzz_target(FAULTY, 1, float("inf"), 3, tmp_path)
    (path,) = tmp_path.glob("*/*[!.txt]")
    assert path.read_bytes() == found.data == b"E1"
    assert f"scripts/fuzz --reproduce {path}\n" in path.with_suffix(".txt").read_text()
    assert "ZeroDivisionError" in path.with_suffix(".txt").read_text()
    assert f"scripts/fuzz --reproduce {path}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as still:
        main(["--reproduce", str(path)])
    assert still.value.code == 1
    path.write_bytes(b"a")
    with pytest.raises(SystemExit) as repaired:
        main(["--reproduce", str(path)])
    assert repaired.value.code == 0


def test_saved_inputs_are_listed_without_their_texts(tmp_path: Path) -> None:
    path = save_finding(tmp_path, Finding("frames", "hang", "", b"x", 1))
    assert list_saved_inputs(tmp_path) == [path]


def test_every_target_is_in_the_module_that_the_table_names() -> None:
    assert [load_target(name).name for name in TARGET_MODULES] == list(TARGET_MODULES)
