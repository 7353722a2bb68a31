"""What a stream's transform has against a sample, as check finds it."""

from __future__ import annotations

import numpy as np

from streamd.chance import generators
from streamd.check.records import Fault
from streamd.decode.resize import Row
from streamd.opened import Source
from streamd.tasks import short_reason
from streamd.transforms.call import PURPOSE, FailedTransformError, UnfitTransformError


def objection(source: Source, sample_id: int, row: Row) -> Fault | None:
    """Transforms a sample as a worker does in the first epoch, in place; why none of it can be used, if so."""
    if source.transform is None:
        return None
    ids = np.array([sample_id], np.int64)
    specs = source.spec.labels.items()
    labels = {name: source.manifest.label_rows(name, ids).astype(spec.dtype) for name, spec in specs}
    (rng,) = generators(source.spec.seed, 0, ids, PURPOSE)
    try:
        source.transform.call.apply(row, labels, 0, rng)
    except FailedTransformError as error:
        return Fault(sample_id, short_reason(error), "transform")
    except UnfitTransformError as error:
        return Fault(sample_id, short_reason(error), "stop")
    return None
