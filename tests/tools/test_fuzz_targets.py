"""Every target is fuzzed for some seconds, from a new seed in every run; scripts/fuzz does it for longer."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from fuzz.campaign import Campaign
from fuzz.findings import Finding, save_finding
from fuzz.target import TARGET_MODULES, load_target, run_case

FINDINGS = Path(__file__).resolve().parents[2] / "fuzz-findings"
SECONDS = 8.0

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", TARGET_MODULES)
def test_damaged_input_is_refused_in_words_or_read(name: str) -> None:
    seed, target = secrets.randbits(32), load_target(name)
    found: list[Finding] = []
    figures = Campaign(target, seed, found.append, lambda _: None).run(SECONDS)
    paths = {finding.headline: str(save_finding(FINDINGS, finding)) for finding in found}
    assert paths == {}, f"seed {seed}: scripts/fuzz --reproduce PATH does it again"
    assert figures.cases > 1


@pytest.mark.parametrize("name", TARGET_MODULES)
def test_most_seeds_are_read_to_their_end(name: str) -> None:
    target = load_target(name)
    seeds = target.make_seeds()
    with target.open_runner() as run:
        refused = [seed for seed in seeds if run_case(target, run, seed).is_refused]
    assert len(refused) <= len(seeds) // 2
