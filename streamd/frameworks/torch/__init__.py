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
from streamd.errors import ConfigError
from streamd.frameworks.dlpack import Array, export
from streamd.frameworks.lazy_import import import_library
from streamd.frameworks.model_inputs import FeedStream, LabelNames, build_model_feed, check_is_stream
from streamd.frameworks.normalize import compute_pixel_scaling
from streamd.frameworks.torch.data_loader import Loader, build_device_mover


def loader(
    stream: FeedStream,
    device: Any = None,
    channels_first: bool = True,
    *,
    inputs: LabelNames = None,
    targets: LabelNames = "auto",
    weights: bool = False,
) -> Loader:
    """A stream where a training loop has its DataLoader: `for images, labels in loader(stream)` is one epoch.

    Every stream gives the same shape, `(images, labels)`. The next loop is the next epoch; it continues one that was
    left early. Nothing is fetched ahead of the loop, so `stream.token` is the place behind the step in hand.

    device: where tensors go, the CPU by default. To CUDA they are copied through pinned memory on a stream of its own,
        beside the work of the steps before, and the batch's lease ends at once. On the CPU images lie over the batch's
        memory and hold its lease: keep `images.clone()` of what outlives the step, and never write into them in place
        (see `tensor`).
    channels_first: images are uint8 (B, C, H, W), channels_last in memory, as the fast convolutions want them; else
        (B, H, W, C). `normalization(stream.spec)` makes numbers of them, on the device.
    inputs, targets: as in `keras.fit_data`. `inputs` names labels that go beside the images, which are then a dict of
        "images" and these. `targets` names the labels of a step: a tensor for one name, a dict for several. By default
        they are all labels that are numbers: a tensor where there is one, {} where there is none. Categories are int64
        classes, as cross_entropy wants them. Text is never among them: read batch.labels.
    weights: True gives `(images, labels, weights)`, every row with its weight, float32 (B,). Otherwise rows of weight 0
        (masked images, the padding of a last batch) are left out, which makes their batch shorter.

    A batch of which no row is left is not given at all, so a loop may have fewer steps than `len`, which is the steps
    of a whole epoch. Rows left out are delivered all the same: receipts count them, tokens lie behind them.

    Data-parallel ranks subscribe each to their own part, instead of a DistributedSampler: `client.subscribe("train",
    rank="auto")` under torchrun, or with numbers as rank= and world=. Every rank has as many batches. With
    `uneven="pad"`, or where every image of a batch is bad, a rank can have fewer steps than the others: where each step
    waits for all ranks, as with DistributedDataParallel, take `weights=True` there.

    Raises ConfigError for what the stream or this machine lacks, and without `weights=True` for a stream whose samples
    have weights of their own; MissingExtraError.
    """
    check_is_stream(stream, "loader")
    torch = import_library("torch", "torch", "a stream for torch")
    feed = build_model_feed(stream.spec, inputs=inputs, targets=targets)
    if not weights:
        _check_samples_unweighted(stream.spec)
    return Loader(stream, feed, tensor, build_device_mover(torch, device), channels_first, weights)


def _check_samples_unweighted(spec: StreamSpec) -> None:
    if spec.weighted:
        raise ConfigError(
            f"samples of stream {spec.name!r} have weights of their own, and (images, labels) would ignore them: take  "
            "for images, labels, weights in loader(stream, weights=True)  and multiply each sample's loss by its "
            "weight, or remove `weights` from the stream's configuration"
        )


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
