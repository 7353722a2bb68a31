"""TensorSocket as its README has it, each batch pickled anew for every trainer; tensor_socket.py is the tuned one."""

from __future__ import annotations

from functools import partial

import contest
import tensor_socket

SENT = 2  # loader batches in one broadcast: fewest is fastest, as each is pickled with all its company; 1 stalls
SETTINGS = contest.Settings(
    library=tensor_socket.LIBRARY,
    chosen=f"producer over the DataLoader of torch_simplejpeg, producer_batch_size {SENT}, "
    f"rubber_band_pct {tensor_socket.BAND}, consumers of 32",
    source=tensor_socket.SOURCE,
    inexact=tensor_socket.INEXACT,
)

if __name__ == "__main__":
    contest.run(
        partial(tensor_socket.subscribe, sent=SENT),
        settings=SETTINGS,
        serve=partial(tensor_socket.produce, sent=SENT),
    )
