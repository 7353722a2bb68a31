"""A trainer that does what trainers do, for a test that watches it: `watched_trainer.py ENDPOINT STREAM…`.

It prints one JSON object: by stream the samples of an epoch and whether its receipt is ok, and the monitor's address.
"""

from __future__ import annotations

import json
import sys

import streamd


def main(endpoint: str, *names: str) -> None:
    read: dict[str, tuple[int, bool]] = {}
    with streamd.connect(endpoint) as client:
        for name in names:
            samples = 0
            with client.subscribe(name, epochs=1) as stream:
                for batch in stream:
                    samples += int((batch.weights > 0).sum())
                    ids = batch.sample_ids
            read[name] = (samples, stream.receipts[0].ok)
            assert len(client.names(name, ids)) == len(ids)
            client.batch(name, 0, 0)
        assert set(names) <= client.streams().keys()
        client.status()
        url = client.dashboard()
    sys.stdout.write(json.dumps({"read": read, "url": url}))


if __name__ == "__main__":
    main(*sys.argv[1:])
