"""Weights of samples: read as one more label, which no stream can name, then taken out of the labels. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streamd.dataset.manifest.types import WEIGHTS_LABEL, ScannedSamples
from streamd.dataset.sources import LabelSource, ListingRequest
from streamd.errors import ConfigError


def collect_labels_and_weights(stream: ListingRequest) -> Mapping[str, LabelSource]:
    """Returns the configured labels, and the weights among them."""
    labels = stream.labels or {}
    return labels if stream.weights is None else {**labels, WEIGHTS_LABEL: stream.weights}


def split_own_and_file_labels(
    stream: ListingRequest,
) -> tuple[Mapping[str, LabelSource] | None, dict[str, LabelSource]]:
    """Splits the labels of a source without columns into those it has by itself and those that files hold.

    The former are None where `ListingRequest` has None. Raises ConfigError for weights that the source cannot have.
    """
    wanted = collect_labels_and_weights(stream)
    files = {name: each for name, each in wanted.items() if each.file}
    if stream.weights is not None and WEIGHTS_LABEL not in files:
        _check_weights_source(stream, stream.weights)
    own = None if stream.labels is None else {name: each for name, each in wanted.items() if name not in files}
    return own, files


def _check_weights_source(stream: ListingRequest, weights: LabelSource) -> None:
    key, kind = f"streams.{stream.name}.weights", stream.source.kind
    if not stream.source.has_fields:
        raise ConfigError(
            f"{key}: a {kind} has no column {weights.source!r}; use np.save to save one number per sample, in the "
            "order of the images, and write weights: FILE.npy"
        )
    if stream.labels is None:
        raise ConfigError(
            f"{key}: the weights of kind {kind} are read with its labels, but the stream has no key labels; add "
            "labels, or write labels: {}"
        )


def extract_weights(scanned: ScannedSamples) -> ScannedSamples:
    """Returns the scanned samples with their weights moved from `labels` to `weights`."""
    if WEIGHTS_LABEL not in scanned.labels:
        return scanned
    return replace(
        scanned,
        labels={name: values for name, values in scanned.labels.items() if name != WEIGHTS_LABEL},
        specs={name: spec for name, spec in scanned.specs.items() if name != WEIGHTS_LABEL},
        weights=np.asarray(scanned.labels[WEIGHTS_LABEL], np.float32),
    )


def require_nonzero_weight(stream: ListingRequest, scanned: ScannedSamples) -> ScannedSamples:
    """Returns the scanned samples. Raises ConfigError if all of them weigh 0, since nothing would be learnt."""
    if scanned.weights is not None and scanned.weights.size and not scanned.weights.any():
        raise ConfigError(
            f"streams.{stream.name}.weights: all {scanned.samples:,} samples weigh 0, so nothing would be learnt; "
            "correct the weights, or remove the key weights"
        )
    return scanned
