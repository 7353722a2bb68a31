"""Attackers that read a stream as clients do: it is the data that attack."""

from __future__ import annotations

from typing import Final

from target import Attack, Target

import streamd
from streamd.errors import StreamdError


def read_pictures(target: Target) -> dict[str, int]:
    """Reads an epoch of the stream `pictures`."""
    batches = bad = 0
    try:
        with streamd.connect(target.public) as client, client.subscribe("pictures", epochs=1) as stream:
            for batch in stream:
                batches += 1
                bad += len(batch.bad)
    except StreamdError:
        return {"batches of hostile pictures": batches, "streams stopped": 1}
    return {"batches of hostile pictures": batches, "bad rows": bad}


ATTACKS: Final[tuple[Attack, ...]] = (read_pictures,)
