"""Batches as torch tensors, with a stand-in for torch that uses NumPy's DLPack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from support.leased_arrays import Lender, address
from support.stream_fake import KIND, FakeStream, make_spec

from streamd.errors import MissingExtraError
from streamd.frameworks.torch import loader, normalization, tensor


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(from_dlpack=np.from_dlpack, from_numpy=np.asarray))


def test_a_tensor_lies_over_the_lent_memory_and_holds_its_lease() -> None:
    lender = Lender()
    images = lender.lend()
    aliased = tensor(images)
    assert address(aliased) == address(images)
    del images
    assert lender.held == 1
    del aliased
    assert lender.held == 0


def test_a_strided_array_is_copied_and_its_lease_ends() -> None:
    lender = Lender()
    images = lender.lend()
    copied = tensor(images[:, ::2])
    np.testing.assert_array_equal(copied, images[:, ::2])
    assert not np.shares_memory(copied, images)
    del images
    assert lender.held == 0


def test_labels_are_copied() -> None:
    labels = np.arange(4)
    assert not np.shares_memory(tensor(labels), labels)


@pytest.mark.parametrize(
    ("use", "purpose"),
    [
        (lambda: tensor(np.zeros(1)), "a batch as a torch tensor"),
        (lambda: loader(FakeStream(make_spec(KIND))), "using a stream with torch"),
        (lambda: normalization(make_spec()), "normalization with torch"),
    ],
)
def test_a_missing_torch_names_the_extra(
    use: Callable[[], object], purpose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=rf"{purpose} needs torch.*pip install 'streamd-loader\[torch\]'"):
        use()
