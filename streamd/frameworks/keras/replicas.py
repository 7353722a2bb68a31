"""Batches for the replicas of a tf.distribute strategy, a part of the rows for each. Imports TensorFlow.

Keras takes an instance of DistributedDataset as it is, and its trainer any Python iterator in the place of one of
TensorFlow's; a strategy makes what its replicas take of any tensors. So tf.data has no part in it: every batch is
pulled when a step wants it, as without a strategy, and a fit that stops early has read nothing ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from streamd.core.text import format_count
from streamd.errors import ConfigError
from streamd.frameworks.dlpack import Array
from streamd.frameworks.tensorflow import tensor

# Under MultiWorkerMirroredStrategy Keras 3 fails, whoever feeds it.
_SYNCHRONOUS_STRATEGIES: Final = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """Gives each of a strategy's replicas a part of the rows, in their order: `predict` relies on it.

    Parts of a batch are as equal as can be; where one has a row more, its rows weigh less, as with tf.data.
    """

    strategy: Any

    def __len__(self) -> int:
        return len(self.strategy.extended.worker_devices)

    def __call__(self, array: Array) -> Any:
        """A value for each replica: a tensor over its rows, or a copy of them as `tensor` says. Raises ConfigError."""
        self.check_row_counts({len(array)})
        return self.strategy.experimental_distribute_values_from_function(
            lambda replica: self._slice_replica_part(array, replica)
        )

    def check_row_counts(self, row_counts: Iterable[int]) -> None:
        """Raises ConfigError when a replica would get no rows: BatchNormalization of none makes all weights NaN."""
        for rows in row_counts:
            if rows < len(self):
                raise ConfigError(
                    f"a batch of {format_count(rows, 'row')} cannot be shared by {len(self)} replicas: serve "
                    "the stream with  "
                    "drop_remainder: true  or with a larger batch_size"
                )

    def _slice_replica_part(self, array: Array, replica: Any) -> Any:
        parts, number = len(self), replica.replica_id_in_sync_group
        return tensor(array[len(array) * number // parts : len(array) * (number + 1) // parts])


class SharedDataset(tf.distribute.DistributedDataset):  # type: ignore[misc]  # TensorFlow has no types
    """Stands where Keras expects a strategy's own dataset: each `iter` gives the steps of one more epoch.

    Their arrays are what `ReplicaParts` makes of them.
    """

    def __init__(self, epochs: Iterable[Any]) -> None:
        self._epochs = epochs

    def __iter__(self) -> Iterator[Any]:
        return iter(self._epochs)


def build_replica_parts(strategy: Any) -> ReplicaParts | None:
    """How a strategy shares each batch; None where it is TensorFlow's default, or one that shares none in this way."""
    return ReplicaParts(strategy) if isinstance(strategy, _SYNCHRONOUS_STRATEGIES) else None
