"""The check of advisories: a finding fails it, silence of the index does not, and is said to be silence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from audit_packages import (
    ADVISORIES,
    Finding,
    Report,
    drop_accepted,
    find_advisories,
    find_unlocked,
    main,
    read_report,
)
from bill_of_materials import ROOT, read_locks
from packaging.version import Version
from pip_audit._format.json import JsonFormat
from pip_audit._service.interface import Dependency, ResolvedDependency, SkippedDependency, VulnerabilityResult

TODAY = dt.date(2026, 6, 1)
FOUND = Finding("pillow 9.0", ("PYSEC-2022-10", "CVE-2022-22817"), ("9.0.1",))
AUDITED = ResolvedDependency("numpy", Version("2.0"))
SKIPPED = SkippedDependency("keras", "Dependency not found on PyPI and could not be audited: keras (3.0)")
VULNERABLE = ResolvedDependency("pillow", Version("9.0"))
ADVISORY = VulnerabilityResult.create(["PYSEC-2022-10", "CVE-2022-22817"], "evaluates", [Version("9.0.1")], None)


def said(*packages: Dependency) -> str:
    """What pip-audit writes of these packages."""
    written: str = JsonFormat(False, True).format(
        {each: [ADVISORY] if each is VULNERABLE else [] for each in packages}, []
    )
    return written


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has the index answer each request in turn, and returns the requests that were made."""

    def set_answers(*reports: Report) -> list[str]:
        left, asked = list(reports), list[str]()

        def answer(lock: str) -> Report:
            asked.append(lock)
            return left.pop(0)

        monkeypatch.setattr("audit_packages.ask_index", answer)
        return asked

    return set_answers


def test_a_finding_has_all_its_names_and_where_it_is_fixed() -> None:
    report = read_report(said(AUDITED, VULNERABLE), "")

    assert report == Report(2, 0, "", (FOUND,))
    assert str(FOUND).startswith("pillow 9.0: PYSEC-2022-10 CVE-2022-22817 (fixed in 9.0.1: scripts/lock --upgrade)")


def test_packages_that_the_index_does_not_know_count_as_not_audited() -> None:
    report = read_report(said(AUDITED, SKIPPED), "No known vulnerabilities found\n")

    assert (report.asked, report.unanswered, report.findings) == (2, 1, ())
    assert "keras" in report.excuse


@pytest.mark.parametrize("output", ["", "null", "{}", "a proxy's page"])
def test_an_answer_that_is_no_report_is_no_answer(output: str) -> None:
    assert read_report(output, "Traceback ...\nConnectionError: refused\n") == Report(
        0, 1, "ConnectionError: refused", ()
    )


def test_an_accepted_advisory_is_dropped_until_its_day_and_under_each_of_its_names() -> None:
    for name in FOUND.names:
        entry = {"reason": "streamd does not call it", "until": TODAY}
        assert drop_accepted([FOUND], {name: entry}, TODAY) == []
        assert drop_accepted([FOUND], {name: entry}, TODAY + dt.timedelta(1)) == [FOUND]
    assert drop_accepted([FOUND], {"CVE-2022-22817": {"reason": "", "until": TODAY}}, TODAY) == [FOUND]
    assert drop_accepted([FOUND], {"CVE-1": {"reason": "another", "until": TODAY}}, TODAY) == [FOUND]


def test_an_index_without_advisories_is_asked_about_one_package_only(
    answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answers(Report(1, 1, "not found", ()))

    assert find_advisories(ROOT) == []
    assert [lock.split("==")[0] for lock in asked] == ["packaging"]
    assert "NOT AUDITED: the index did not tell the advisories (not found)" in capsys.readouterr().out


def test_a_finding_is_reported_though_other_packages_were_not_audited(
    answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answers(Report(1, 0, "", ()), Report(134, 2, "timed out", (FOUND,)))

    assert find_advisories(ROOT) == [str(FOUND)]
    assert asked[1] == (ROOT / "requirements" / "test.txt").read_text()
    assert "NOT AUDITED: 2 of 134 packages" in capsys.readouterr().out


def test_the_check_fails_for_a_finding_and_passes_without_an_answer(
    answers: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("audit_packages.find_unlocked", lambda _: [])
    for reports, status in (([Report(0, 1, "no route", ())], 0), ([Report(1, 0, "", (FOUND,))] * 2, 1)):
        answers(*reports)
        with pytest.raises(SystemExit) as ended:
            main()
        assert int(ended.value.code or 0) == status
    assert "1 faults" in capsys.readouterr().out


def test_an_installed_package_that_is_not_locked_is_named() -> None:
    locked = read_locks(ROOT)
    assert "numpy" in find_unlocked(locked.keys() - {"numpy"})
    assert "numpy" not in find_unlocked(locked)


def test_the_file_of_accepted_advisories_is_where_messages_say_it_is() -> None:
    assert (ROOT / ADVISORIES).is_file()
