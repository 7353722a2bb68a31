"""Streams for torch.

    with streamd.connect() as client, client.subscribe("train", epochs=10) as stream:
        data = loader(stream, device="cuda")
        for epoch in range(10):
            for images, labels in data:
                ...

torch is imported by the first call, not with this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError
from streamd.frameworks import import_library
from streamd.frameworks.dlpack import Array, export
from streamd.frameworks.model_inputs import (
    ArrayNames,
    FeedStream,
    begins_anew,
    build_model_feed,
    check_is_stream,
    compute_pixel_scaling,
)
from streamd.frameworks.torch.data_loader import Loader, build_device_mover, keep_on_cpu


def loader(
    stream: FeedStream,
    device: Any = None,
    channels_first: bool = True,
    *,
    inputs: ArrayNames = None,
    targets: ArrayNames = "auto",
    weights: bool = False,
    evaluate: bool | None = None,
    keys: Sequence[str] | None = None,
) -> Loader:
    """Wraps a stream for use in place of a DataLoader: `for images, labels in loader(stream)` is one epoch.

    Every stream yields the same structure, `(images, labels)`. Each loop is a pass: the next epoch, or the rest of one
    that was left early. A loop that takes exactly `len` batches has ended its epoch. Nothing is fetched ahead of the
    loop, so `stream.token` is the position after the present step.

    device: where tensors go, the CPU by default. To CUDA they are copied through pinned memory, on a separate CUDA
        stream and in parallel with earlier steps; the batch's lease ends at once. On the CPU images use the batch's
        memory and hold its lease: keep `images.clone()` of images that outlive the step. They may be written to in
        place, which no other trainer sees (see `tensor`).
    channels_first: images are (B, C, H, W), channels_last in memory, as fast convolutions need them; else (B, H, W, C).
        Axes before the height stay where they are. Images of mode index have no channels and are (B, H, W). The dtype
        is the stream's, uint8 by default; `normalization(stream.spec)` converts to floats, on the device.
    inputs, targets: as in `keras.fit_data`: a tensor for one name, a dict for several, {} for no target. By default the
        images are all but those of mode index, and the labels are all numeric labels and the images of mode index.
        Categories, and images of mode index among the targets, are int64 classes, as cross_entropy needs them. Text is
        never among them: read batch.labels.
    weights: True yields `(images, labels, weights)`, every row with its weight, float32 (B,). Otherwise rows of weight
        0 (masked images, the padding of a last batch) are left out, which makes their batch shorter.
    evaluate: True begins every pass anew at index 0 of the same epoch, so that a validation sees the same samples each
        time, whatever was read before; only the first pass after `resume=` or `seek` goes on there. A pass that breaks
        off gets a receipt `complete: false, ok: true`, and `epochs` of the subscription counts whole passes. Default:
        True for a stream whose shuffle is none, else False.
    keys: yields dicts with these two or, with weights, three keys, as models of transformers take their arguments:
        `keys=("pixel_values", "labels")`.

    A batch without any remaining row is skipped, so a loop may have fewer steps than `len`, which is the steps of a
    whole epoch. Rows that are left out count as delivered: receipts include them, and tokens are positions after them.

    Data-parallel ranks each subscribe to their own part, instead of using a DistributedSampler: under torchrun with
    `client.subscribe("train", rank="auto")`, else with numbers as rank= and world=. All ranks have the same number of
    batches. With `uneven="pad"`, or if every image of a batch is bad, a rank can have fewer steps than the others. If
    each step waits for all ranks, as with DistributedDataParallel, use `weights=True` in these cases.

    Raises ConfigError for labels or a device that do not exist, and without `weights=True` for a stream whose samples
    have their own weights; MissingExtraError.
    """
    check_is_stream(stream, "loader")
    torch = import_library("torch", "torch", "using a stream with torch")
    feed = build_model_feed(stream.spec, inputs=inputs, targets=targets)
    if stream.spec.weighted and not weights:
        raise ConfigError(
            f"samples of stream {stream.spec.name!r} have weights of their own, and (images, labels) would ignore "
            "them: take  for images, labels, weights in loader(stream, weights=True)  and multiply each sample's loss "
            "by its weight, or remove `weights` from the stream's configuration"
        )
    anew = begins_anew(stream.spec, evaluate)
    if keys is not None:
        keys = tuple(keys)
        if len(set(keys)) != 2 + weights or not all(isinstance(key, str) for key in keys):
            raise ConfigError(
                f'keys={keys} must name each item of a step once: write  keys=("pixel_values", "labels")'
                + (', and "weights" as the third' if weights else "")
            )
    move = build_device_mover(torch, device)
    # What is moved to another device is copied, so nobody writes to the batch's memory.
    build_tensor = partial(_build_tensor, writable=move is keep_on_cpu)
    return Loader(stream, feed, build_tensor, move, channels_first, weights, anew, keys)


def normalization(spec: StreamSpec, image: str | None = None) -> Any:
    """Returns a module that applies the stream's `normalize`: (B, C, H, W) of uint8, uint16 or float32 in, float32 out.

    image: which of several images of a sample; default: the first.

    Mean and std are buffers of the model and are saved in its state_dict, so inference uses the same numbers. Raises
    ConfigError for a `normalize` that this version does not know and for an image that the stream does not have,
    MissingExtraError.
    """
    import_library("torch", "torch", "normalization with torch")
    from streamd.frameworks.torch.layer import Normalization  # noqa: PLC0415 - imports torch

    return Normalization(compute_pixel_scaling(spec, image))


def tensor(array: Array) -> Any:
    """Returns a tensor of `array` on the CPU: over the memory of `batch.images`, or a copy if `export` requires one.

    A tensor over that memory holds the batch's lease while it, or any view of it, lives. It may be written to (`mul_`,
    `out=`, `x[0] = 0`): no other trainer and no later batch sees that, while `array` does. The batches that have
    arrived before a process's first tensor are copied. Raises MissingExtraError.
    """
    return _build_tensor(array, writable=True)


def _build_tensor(array: Array, *, writable: bool) -> Any:
    torch = import_library("torch", "torch", "a batch as a torch tensor")
    shared = export(array, writable=writable)
    return torch.from_numpy(array.copy()) if shared is None else torch.from_dlpack(shared)
