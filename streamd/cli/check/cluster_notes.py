"""What `streamd check` says of a cluster that decodes: whether it pays, and whether it is open. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from streamd.config.schema import Config
from streamd.core.cluster_settings import LOCAL_ADDRESS
from streamd.limits import MIB

# Measured (docs/decisions.md): the path through Ray costs this much processor time for each MiB of a batch.
OVERHEAD_MS_A_MIB: Final = 3.8
_PAYS_FROM: Final = 0.6  # of a node's time must be decoding, or the host's own workers are nearly as fast
_AUTH_MODE: Final = "RAY_AUTH_MODE"


def list_cluster_notes(
    config: Config, decode_ms_by_stream: Mapping[str, tuple[float, int]], environment: Mapping[str, str]
) -> Iterator[str]:
    """Yields remarks, a sentence each; none where this host decodes.

    `decode_ms_by_stream` has the milliseconds of decoding one batch, and the bytes of its slot.
    """
    if config.engine.kind != "ray":
        return
    # A cluster that streamd starts for itself asks for a token, unless the mode is set to something else.
    mode = environment.get(_AUTH_MODE, "token" if config.engine.cluster_settings.address == LOCAL_ADDRESS else None)
    if mode != "token":
        what = f"is {mode} here" if mode else "is not set here, and many clusters want no token"
        yield (
            f"engine: {_AUTH_MODE} {what}, so whoever reaches a port of the cluster may run programs there: set "
            f"{_AUTH_MODE}=token for the cluster and for streamd, and keep its ports in a network that you trust"
        )
    for name, (decode_ms, slot_bytes) in decode_ms_by_stream.items():
        share = compute_decoding_share(decode_ms, slot_bytes)
        advice = "a cluster pays" if share >= _PAYS_FROM else "use engine: local, unless this host has too few cores"
        yield (
            f"engine: decoding a batch of {name!r} takes {decode_ms:.1f} ms and sending its {slot_bytes / MIB:.1f} MiB "
            f"through Ray {slot_bytes / MIB * OVERHEAD_MS_A_MIB:.1f} ms, so a node decodes {share:.0%} of its time: "
            f"{advice}"
        )


def compute_decoding_share(decode_ms: float, slot_bytes: int) -> float:
    """Returns the part of a node's time in which it decodes, 0 to 1."""
    overhead_ms = slot_bytes / MIB * OVERHEAD_MS_A_MIB
    return decode_ms / (decode_ms + overhead_ms) if decode_ms > 0 else 0.0
