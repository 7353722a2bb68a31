"""The sample ids and true labels of the rows of a prediction, in the order of the rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError
from streamd.frameworks.model_inputs import Array, FeedBatch, get_array


class BatchRows(NamedTuple):
    """The parts of a predicted batch that are kept. They are copies, so they do not hold its lease."""

    sample_ids: bytes
    labels: Mapping[str, Array]


def copy_target_labels(batch: FeedBatch, targets: Sequence[str]) -> dict[str, Array]:
    """Copies the labels and images of a batch that are targets, as they were served."""
    return {name: get_array(batch, name).copy() for name in targets}


def join_target_labels(rows: Sequence[BatchRows] | None, targets: Sequence[str]) -> Any:
    """Returns the targets of all rows: an array, or a dict by name for several targets.

    Raises ConfigError if there are no targets, or nothing was predicted.
    """
    if not targets:
        raise ConfigError("this fit_data has no targets, so its rows have no labels: choose with  targets=")
    batches = _require_rows(rows)
    joined = {name: np.concatenate([each.labels[name] for each in batches]) for name in targets}
    return joined if len(joined) > 1 else next(iter(joined.values()))


def join_sample_ids(rows: Sequence[BatchRows] | None) -> npt.NDArray[np.int64]:
    """Returns the sample ids of all rows, int64 (N,), -1 for a row without a sample.

    Raises ConfigError if nothing was predicted.
    """
    return np.frombuffer(b"".join(each.sample_ids for each in _require_rows(rows)), np.int64)


def _require_rows(rows: Sequence[BatchRows] | None) -> Sequence[BatchRows]:
    if not rows:
        raise ConfigError(
            "nothing has been predicted yet: call  model.predict(data)  first; labels and names belong to the rows "
            "that it predicts"
        )
    return rows


def find_class_names(spec: StreamSpec, targets: Sequence[str]) -> list[str]:
    """Returns the classes of the only target that has classes, in the order of their numbers.

    Raises ConfigError unless exactly one target has classes.
    """
    classed = [name for name in targets if name in spec.labels and spec.labels[name].classes]
    if len(classed) != 1:
        kinds = ", ".join(f"{name}: {_describe_kind(spec, name)}" for name in targets) or "none"
        raise ConfigError(
            f"class_names needs exactly one target with classes, but the targets of stream {spec.name!r} are {kinds}: "
            "read  stream.spec.labels[NAME].classes"
        )
    return [str(each) for each in spec.labels[classed[0]].classes]


def _describe_kind(spec: StreamSpec, target: str) -> str:
    return spec.labels[target].type if target in spec.labels else f"image of mode {spec.images[target].mode}"
