"""Every form of `normalize`, with the values that it gives black and white."""

from __future__ import annotations

from typing import Any

FORMS: list[tuple[Any, list[float], list[float]]] = [
    ("none", [0, 0, 0], [255, 255, 255]),
    ("unit", [0, 0, 0], [1, 1, 1]),
    ("minus_one_one", [-1, -1, -1], [1, 1, 1]),
    ("imagenet", [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225]),
    ({"mean": [51.0, 102.0, 0.0], "std": [51.0, 51.0, 255.0]}, [-1, -2, 0], [4, 3, 1]),
]
