"""Splits the rows of a batch among the replicas of a tf.distribute strategy.

Imports TensorFlow, which need not be there where Keras runs on JAX or torch: so the adapter imports this module only
where Keras asks it for a dataset of TensorFlow.

Keras accepts an instance of DistributedDataset as it is, its trainer accepts any Python iterator in place of one of
TensorFlow's, and a strategy builds per-replica values from any tensors. So tf.data is not involved: a batch is pulled
when a step needs it, as without a strategy, and a fit that stops early has read nothing ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from streamd.core.text import format_count
from streamd.errors import ConfigError
from streamd.frameworks.model_inputs import Array
from streamd.frameworks.tensorflow import tensor

# Keras 3 fails under MultiWorkerMirroredStrategy with any data.
_SYNCHRONOUS_STRATEGIES: Final = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """Gives each replica of a strategy a part of the rows, in the order of the replicas: `predict` relies on it.

    The parts of a batch differ by one row at most; the rows of a larger part weigh less, as with tf.data.
    """

    strategy: Any

    def __len__(self) -> int:
        return len(self.strategy.extended.worker_devices)

    def __call__(self, array: Array) -> Any:
        """Returns a per-replica value: for each replica a tensor over its rows, or a copy if `tensor` needs one.

        Raises ConfigError when a replica would get no rows.
        """
        rows, parts = len(array), len(self)
        self.check_row_counts({rows})

        def slice_part(replica: Any) -> Any:
            number = replica.replica_id_in_sync_group
            return tensor(array[rows * number // parts : rows * (number + 1) // parts])

        return self.strategy.experimental_distribute_values_from_function(slice_part)

    def check_row_counts(self, row_counts: Iterable[int]) -> None:
        """Raises ConfigError when a replica would get no rows: BatchNormalization over none makes all weights NaN."""
        for rows in row_counts:
            if rows < len(self):
                raise ConfigError(
                    f"a batch of {format_count(rows, 'row')} cannot be shared by {len(self)} replicas: serve the "
                    "stream with  drop_remainder: true  or with a larger batch_size"
                )


class SharedDataset(tf.distribute.DistributedDataset):  # type: ignore[misc]  # TensorFlow has no types
    """Takes the place of a strategy's own dataset in Keras: each `iter` yields the steps of one more epoch.

    The arrays of a step are per-replica values from `ReplicaParts`.
    """

    def __init__(self, epochs: Iterable[Any]) -> None:
        self._epochs = epochs

    def __iter__(self) -> Iterator[Any]:
        return iter(self._epochs)


def build_replica_parts(strategy: Any) -> ReplicaParts | None:
    """Returns how a strategy splits batches; None for TensorFlow's default strategy and for unsupported ones."""
    return ReplicaParts(strategy) if isinstance(strategy, _SYNCHRONOUS_STRATEGIES) else None
