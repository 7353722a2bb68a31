"""Every target is fuzzed with the inputs of one seed, so that a run judges the change and not its luck.

scripts/fuzz looks for new faults, with a new seed each time and for as long as it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from fuzz.campaign import Campaign
from fuzz.findings import Finding, save_finding
from fuzz.target import TARGET_MODULES, load_target, run_case

FINDINGS = Path(__file__).resolve().parents[2] / "fuzz-findings"
SEED = 20261123
CASES: Final[Mapping[str, int]] = {  # by the name of a target or its module; some seconds each
    "receipts": 10_000,
    "fuzz.message_targets": 130_000,  # over half a million frames, records and tokens in all
    "fuzz.dispatcher_target": 1_500,
    "fuzz.gate_target": 5_000,
    "fuzz.settings_targets": 1_500,
    "fuzz.source_targets": 1_000,
    "fuzz.image_targets": 4_600,  # over 50,000 damaged pictures in all
    "fuzz.receipt_targets": 1_000,
}
LIMIT_S = 300.0

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", TARGET_MODULES)
def test_damaged_input_is_refused_in_words_or_read(name: str) -> None:
    cases, found = CASES.get(name) or CASES[TARGET_MODULES[name]], list[Finding]()
    figures = Campaign(load_target(name), SEED, found.append, lambda _: None).run(LIMIT_S, cases)
    paths = {finding.headline: str(save_finding(FINDINGS, finding)) for finding in found}
    assert paths == {}, "scripts/fuzz --reproduce PATH does it again"
    assert figures.cases >= cases


@pytest.mark.parametrize("name", TARGET_MODULES)
def test_most_seeds_are_read_to_their_end(name: str) -> None:
    target = load_target(name)
    seeds = target.make_seeds()
    with target.open_runner() as run:
        refused = [seed for seed in seeds if run_case(target, run, seed).is_refused]
    assert len(refused) <= len(seeds) // 2
