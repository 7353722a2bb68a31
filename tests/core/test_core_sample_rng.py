"""Random numbers of a sample: unchanged, its own in every epoch, and uniform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from streamd.core.sampler import build_generators, compute_uniforms

IDS = np.arange(5000, dtype=np.int64)
GOLDEN = [[0.430139773934, 0.685739638205], [0.203656674766, 0.471862409691]]
GOLDEN_INTEGERS = [846, 11, 384, 767]


def drawn(seed: int, epoch: int, ids: npt.NDArray[np.int64], purpose: str) -> npt.NDArray[np.float64]:
    """Eight numbers of each sample's generator."""
    return np.array([each.random(8) for each in build_generators(seed, epoch, ids, purpose)])


def test_random_numbers_of_a_sample_do_not_depend_on_other_samples() -> None:
    alone = compute_uniforms(7, 3, IDS[41:42], 4, "crop")
    assert np.array_equal(compute_uniforms(7, 3, IDS, 4, "crop")[41:42], alone)
    assert np.array_equal(compute_uniforms(7, 3, IDS, 2, "crop")[41], alone[0, :2])


def test_random_numbers_are_unchanged_from_earlier_versions() -> None:
    assert compute_uniforms(0, 0, IDS[:2], 2, "crop").round(12).tolist() == GOLDEN
    (second,) = build_generators(0, 0, IDS[1:2], "transform")
    assert second.integers(0, 1000, 4).tolist() == GOLDEN_INTEGERS


@pytest.mark.parametrize("other", [(8, 3, "crop"), (7, 4, "crop"), (7, 3, "flip")], ids=["seed", "epoch", "purpose"])
def test_another_seed_epoch_or_purpose_gives_other_numbers(other: tuple[int, int, str]) -> None:
    seed, epoch, purpose = other
    assert not np.isin(compute_uniforms(seed, epoch, IDS, 2, purpose), compute_uniforms(7, 3, IDS, 2, "crop")).any()
    assert not np.isin(drawn(seed, epoch, IDS[:50], purpose), drawn(7, 3, IDS[:50], "crop")).any()


def test_random_numbers_are_uniform_and_independent() -> None:
    drawn = compute_uniforms(1, 0, IDS, 3, "crop")
    assert ((drawn >= 0) & (drawn < 1)).all()
    counts = np.array([np.histogram(column, bins=20, range=(0, 1))[0] for column in drawn.T])
    assert np.abs(counts - 250).max() < 100  # six deviations
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.08


def test_generators_of_neighbouring_samples_share_no_number() -> None:
    found = drawn(0, 0, IDS[:200], "transform")
    assert np.unique(found).size == found.size


def test_a_samples_generator_does_not_depend_on_other_generators() -> None:
    alone = drawn(7, 3, IDS[41:42], "transform")
    assert np.array_equal(drawn(7, 3, IDS[:60], "transform")[41:42], alone)
    first, second = build_generators(7, 3, IDS[41:43], "transform")
    second.integers(0, 9, 1000)
    assert np.array_equal(first.random(8), alone[0])


def test_a_generator_refuses_to_spawn() -> None:
    (only,) = build_generators(0, 0, IDS[:1], "transform")
    with pytest.raises(TypeError, match="spawning"):
        only.spawn(1)
