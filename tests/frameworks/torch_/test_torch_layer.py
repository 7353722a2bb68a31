"""Normalization as a torch module, with a stand-in for torch that has NumPy's arithmetic and names its buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.normalize_forms import FORMS
from support.stream_fake import make_spec

from streamd.core.spec import ImageSpec
from streamd.frameworks.torch import normalization

LAYER = "streamd.frameworks.torch.layer"


class Tensor(np.ndarray[Any, Any]):
    """As far as the module uses tensors."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


class Module:
    """As far as torch.nn.Module is used."""

    def __init__(self) -> None:
        self.buffers: list[str] = []

    def register_buffer(self, name: str, value: Any, persistent: bool = True) -> None:
        self.buffers += [name] if persistent else []
        setattr(self, name, value.view(Tensor))


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch = SimpleNamespace(nn=SimpleNamespace(Module=Module), tensor=np.array, float32=np.float32)
    monkeypatch.setitem(sys.modules, "torch", torch)
    yield
    sys.modules.pop(LAYER, None)  # it was made with the stand-in


@pytest.mark.parametrize(("normalize", "black", "white"), FORMS, ids=str)
def test_the_module_normalizes_as_the_stream_says(normalize: Any, black: list[float], white: list[float]) -> None:
    module = normalization(make_spec(normalize=normalize))
    pixels = np.zeros((2, 3, 4, 5), np.uint8).view(Tensor)
    pixels[1] = 255
    normalized = module.forward(pixels)
    assert (normalized.shape, normalized.dtype.name) == ((2, 3, 4, 5), "float32")
    for place, expected in enumerate((black, white)):
        np.testing.assert_allclose(normalized[place, :, 3, 4], expected, rtol=1e-5, atol=1e-6)


def test_the_mean_and_std_are_saved_with_the_model() -> None:
    module = normalization(make_spec(normalize="imagenet"))
    assert module.buffers == ["mean", "std"]
    assert (module.mean.shape, module.mean.dtype.name) == ((3, 1, 1), "float32")


@pytest.mark.parametrize(("channels", "shape"), [(3, (2, 8, 8, 3)), (1, (2, 3, 8, 8)), (3, (8, 8)), (3, (3,))])
def test_images_without_channels_first_are_refused_with_the_permutation(channels: int, shape: tuple[int, ...]) -> None:
    module = normalization(make_spec(normalize="unit", images={"image": ImageSpec(8, 8, channels)}))
    with pytest.raises(ValueError, match=rf"\(batch, {channels}, height, width\) is needed: images.permute"):
        module.forward(np.zeros(shape, np.uint8))
