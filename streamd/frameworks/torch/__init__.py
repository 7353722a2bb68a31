"""Streams for torch.

    with streamd.connect() as client, client.subscribe("train", epochs=10) as stream:
        data = loader(stream, device="cuda")
        for epoch in range(10):
            for images, labels in data:
                ...

torch is imported by the first call, not with this module.
"""

from __future__ import annotations

from typing import Any

from streamd.core.spec import StreamSpec
from streamd.frameworks.dlpack import Array, export
from streamd.frameworks.lazy_import import import_library
from streamd.frameworks.model_inputs import FeedStream, LabelNames, build_model_feed
from streamd.frameworks.normalize import compute_pixel_scaling
from streamd.frameworks.torch.data_loader import Loader, build_device_mover


def loader(
    stream: FeedStream,
    device: Any = None,
    channels_first: bool = True,
    *,
    inputs: LabelNames = None,
    targets: LabelNames = "auto",
) -> Loader:
    """A stream where a training loop has its DataLoader: `for images, labels in loader(stream)` is one epoch.

    The next loop is the next epoch, and goes on with one that was left early; `len` is the steps of a whole epoch.
    Nothing is fetched ahead of the loop, so `stream.token` is the place behind the step in hand.

    device: where tensors go, the CPU by default. To CUDA they are copied through pinned memory on a stream of its own,
        beside the work of the steps before, and the batch's lease ends at once. On the CPU images lie over the batch's
        memory and hold its lease: keep `images.clone()` of what outlives the step, and never write into them in place
        (see `tensor`).
    channels_first: images are uint8 (B, C, H, W), channels_last in memory, as the fast convolutions want them; else
        (B, H, W, C). `normalization(stream.spec)` makes numbers of them, on the device.
    inputs, targets: as in `keras.fit_data`: labels that go beside the images, which are then a dict of "images" and
        these; and what else a step has: the only label, a dict of several, or those that are named. Categories are
        int64 classes, as cross_entropy wants them.

    A step is `(images, labels)`; `(images, labels, weights)` where samples have weights, bad samples are masked or the
    last batch is padded; `images` alone where there are no labels. Text takes part in none: read batch.labels.

    Data-parallel ranks subscribe each to their own part, instead of a DistributedSampler: `client.subscribe("train",
    rank="auto")` under torchrun, or with numbers as rank= and world=. Every rank has as many steps.

    Raises ConfigError for what the stream or this machine lacks, MissingExtraError.
    """
    torch = import_library("torch", "torch", "a stream for torch")
    feed = build_model_feed(stream.spec, inputs=inputs, targets=targets)
    return Loader(stream, feed, tensor, build_device_mover(torch, device), channels_first)


def normalization(spec: StreamSpec) -> Any:
    """A module that does what `normalize` of the stream says: uint8 (B, C, H, W) in, float32 out.

    Its numbers are buffers: being part of the model, they are saved in its state_dict and cannot be forgotten later.
    Raises ConfigError for what this version does not know, MissingExtraError.
    """
    import_library("torch", "torch", "normalization for torch")
    from streamd.frameworks.torch.layer import Normalization  # noqa: PLC0415 - imports torch

    return Normalization(compute_pixel_scaling(spec))


def tensor(array: Array) -> Any:
    """A tensor of `array` on the CPU: over the memory of `batch.images`, or a copy where `export` says so.

    Over that memory, it holds the batch's lease as long as it, or any view of it, lives. torch knows no read-only
    tensors, and this one's memory is: writing into it (`mul_`, `out=`, `x[0] = 0`) ends the process with SIGSEGV. Take
    `torch.from_numpy(batch.copy().images)` to write, or `.clone()` it. Raises MissingExtraError.
    """
    torch = import_library("torch", "torch", "a batch as a torch tensor")
    shared = export(array)
    return torch.from_numpy(array.copy()) if shared is None else torch.from_dlpack(shared)
