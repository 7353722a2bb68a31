"""Batches as JAX arrays, with a stand-in for JAX that aliases the memory it is given."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.leased_arrays import Lender, address
from support.normalize_forms import FORMS
from support.stream_fake import make_spec

from streamd.errors import MissingExtraError
from streamd.frameworks.jax import array, normalization


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(device_put=np.asarray))


def test_lent_memory_is_handed_over_without_a_copy() -> None:
    images = Lender().lend()
    assert address(array(images)) == address(images)


def test_writable_memory_is_copied() -> None:
    labels = np.arange(4)
    made = array(labels)
    labels[:] = 9
    assert made.tolist() == [0, 1, 2, 3]


def test_several_images_become_arrays_by_the_same_names() -> None:
    images, depth = Lender().lend(), np.zeros((2, 3), np.uint16)
    made = array({"photo": images, "depth": depth})
    assert list(made) == ["photo", "depth"]
    assert address(made["photo"]) == address(images)
    assert made["depth"].dtype == np.uint16


def test_devices_get_the_rows_as_a_sharding_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(make_array_from_process_local_data=lambda sharding, rows: (sharding, rows))
    monkeypatch.setitem(sys.modules, "jax", made)
    images = Lender().lend()
    sharding, rows = array(images, "by rows")
    assert sharding == "by rows"
    assert address(rows) == address(images)


@pytest.mark.parametrize(("normalize", "black", "white"), FORMS, ids=str)
def test_the_function_normalizes_as_the_stream_says(normalize: Any, black: list[float], white: list[float]) -> None:
    pixels = np.zeros((2, 4, 5, 3), np.uint8)
    pixels[1] = 255
    normalized = normalization(make_spec(normalize=normalize))(pixels)
    assert (normalized.shape, normalized.dtype.name) == ((2, 4, 5, 3), "float32")
    np.testing.assert_allclose(normalized[0, 0, 0], black, atol=1e-5)
    np.testing.assert_allclose(normalized[1, 3, 4], white, atol=1e-5)


def test_a_missing_jax_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match=r"needs jax.*pip install 'streamd-loader\[jax\]'"):
        array(np.zeros(1))
