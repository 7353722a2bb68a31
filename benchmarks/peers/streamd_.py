"""streamd itself, as one peer among the others: a stream of a daemon that the runner has started at `--address`."""

from __future__ import annotations

from collections.abc import Iterator

import contest

import streamd

SETTINGS = contest.Settings(
    library=f"streamd {streamd.__version__}",
    chosen="defaults; memory 256 MiB, a worker a core, shuffle full",
    source="README.md",
)


def begin(options: contest.Options) -> contest.Epoch:
    stream = streamd.connect(options.address).subscribe("train")
    epochs = stream.epochs()

    def epoch(number: int) -> Iterator[tuple[contest.Images, contest.Ids]]:  # noqa: ARG001 - the stream counts itself
        for batch in next(epochs):
            yield batch.images, batch.sample_ids

    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
