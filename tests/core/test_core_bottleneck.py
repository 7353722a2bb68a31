"""The advice on each bottleneck, and whether it is bad."""

from __future__ import annotations

from typing import get_args

import pytest

from streamd.core.epoch_timing import BOTTLENECK_ADVICE, Bottleneck, BottleneckAdvice, EpochBottleneck


def test_every_bottleneck_has_advice() -> None:
    assert set(BOTTLENECK_ADVICE) == set(get_args(Bottleneck))
    assert set(get_args(EpochBottleneck)) < set(get_args(Bottleneck))


@pytest.mark.parametrize("advice", BOTTLENECK_ADVICE.values(), ids=BOTTLENECK_ADVICE)
def test_advice_on_a_bad_bottleneck_names_a_remedy(advice: BottleneckAdvice) -> None:
    assert (": bad, " in advice.sentence) == (advice.is_bad is True)
    assert (": good, " in advice.sentence) == (advice.is_bad is False)
    assert not advice.is_bad or "would help" in advice.remedy


def test_a_cache_or_pack_is_advised_only_if_files_are_decoded_again() -> None:
    """A cache may be full already, and the time may go into a transform, which neither of them saves."""
    always, _, sometimes = BOTTLENECK_ADVICE["decode"].remedy.partition("; where files are decoded again in each epoch")
    assert "cache" not in always
    assert "pack" not in always
    assert "a `cache` with room for them" in sometimes
