"""The specification of a stream for tests that need any one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from streamd.core.spec import ImageSpec, LabelSpec, OrderId, PixelId, StreamSpec

SPEC: Final = StreamSpec(
    name="train",
    samples=103,
    batch_size=10,
    batches=11,
    images={"image": ImageSpec(5, 7, 3)},
    labels={
        "label": LabelSpec("label", "category", classes=("cat", "dog"), counts=(60, 43)),
        "angle": LabelSpec("angle", "float", mean=0.25, std=1.5),
        "box": LabelSpec("box", "float", width=4),
    },
    normalize={"mean": [1.0, 2.0, 3.0], "std": [4.0, 5.0, 6.0]},
    shuffle="full",
    seed=3,
    remainder="keep",
    bad_policy="substitute",
    order_id=OrderId("0123456789abcdef0123456789abcdef"),
    pixel_id=PixelId("fedcba9876543210fedcba9876543210"),
)


def some_spec(**changes: Any) -> StreamSpec:
    """SPEC with some fields changed."""
    return replace(SPEC, **changes)
