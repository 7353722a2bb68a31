"""Formats the part of a configuration that serves a pack."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import BaseModel
from ruamel.yaml import YAML

from streamd.cli.pack.label_cells import build_label_reading_settings
from streamd.config.schema import StreamConfig
from streamd.core.spec import ONLY_IMAGE, ImageSpec, StreamSpec

_KEPT_SETTINGS: Final = ("batch_size", "drop_remainder", "shuffle", "normalize", "transform", "bad_samples")
_INDEX_FILLS: Final = {"uint8": 255, "uint16": 65535}  # the configuration's defaults
_ENTRY_MODES: Final = frozenset({"index", "RGBA"})  # of arrays, these are served by `images` only
_WIDTH_CHARS: Final = 4096  # a line is broken only beyond any path's length


def format_yaml(settings: Mapping[str, object]) -> str:
    """Formats `settings` as YAML; a value without nested mappings or lists is in one line."""
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = _WIDTH_CHARS
    text = io.StringIO()
    yaml.dump(dict(settings), text)
    return text.getvalue()


def collect_kept_settings(stream: StreamConfig) -> dict[str, object]:
    """Returns the stream's settings that a pack does not change, and without which a training would differ."""
    return {key: _to_plain_value(getattr(stream, key)) for key in _KEPT_SETTINGS if key in stream.model_fields_set}


def _to_plain_value(value: object) -> object:
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(value, BaseModel) else value


def is_only_image(spec: StreamSpec) -> bool:
    """Whether samples have one image that `image` describes, and not an entry of `images`."""
    return spec.images.keys() == {ONLY_IMAGE}


def build_decoded_pack_settings(
    source: object,
    spec: StreamSpec,
    name_pattern: str = "",
    places: Mapping[str, str | None] | None = None,
    taken: Iterable[str] = (),
) -> dict[str, object]:
    """Returns the keys of a stream that serve a pack of decoded images; see `build_label_reading_settings`.

    `places` has the value of `from` for each of several images, None for one that is the source's own.
    """
    labels = build_label_reading_settings(spec, name_pattern, taken, is_delivered=True)
    return {"source": source, **labels, **build_decoded_image_settings(spec, places or {ONLY_IMAGE: None})}


def build_decoded_image_settings(spec: StreamSpec, places: Mapping[str, str | None]) -> dict[str, object]:
    """Returns `image:` or `images:` for a pack of decoded images, which have the size of the stream."""
    if is_only_image(spec) and spec.image.mode not in _ENTRY_MODES:
        return {"image": {"size": "stored", **_build_number_keys(spec.image, spec)}}
    return {
        "images": {
            name: {
                **({} if (place := places[name]) is None else {"from": place}),
                "size": [image.height, image.width],
                **_build_number_keys(image, spec),
            }
            for name, image in spec.images.items()
        }
    }


def build_encoded_image_settings(
    spec: StreamSpec, suffixes: Mapping[str, str] | None, *, is_delivered: bool = False
) -> dict[str, object]:
    """Returns `image:` for a pack of encoded images, the same as the stream's; with `suffixes` their `images:`.

    `is_delivered`: the images have the size of the stream already.
    """
    keys = {name: _build_encoded_keys(image, spec, is_delivered=is_delivered) for name, image in spec.images.items()}
    if suffixes is None:
        return {"image": keys[ONLY_IMAGE]}
    return {"images": {name: {"from": suffixes[name], **own} for name, own in keys.items()}}


def _build_encoded_keys(image: ImageSpec, spec: StreamSpec, *, is_delivered: bool) -> dict[str, object]:
    numbers = _build_number_keys(image, spec)
    size = [image.height, image.width]
    if is_delivered:
        return {"size": size, **numbers}
    if image.like is not None:
        other = spec.images[image.like]
        own = {} if size == [other.height, other.width] else {"size": size}
        return {"like": image.like, **own, **numbers}
    resize = {} if image.resize == "stretch" else {"resize": image.resize}
    exact = {"exact": True} if image.exact else {}
    drawn = {"scale": list(image.scale), "ratio": list(image.ratio)} if image.resize == "random_crop" else {}
    return {"size": size, **numbers, **resize, **exact, **drawn}


def _build_number_keys(image: ImageSpec, spec: StreamSpec) -> dict[str, object]:
    """Returns what the numbers of an image are: mode, channels, dtype, range, fill, and a normalize of its own."""
    mode = image.mode
    keys: dict[str, object] = {} if mode == "RGB" else {"mode": mode}
    keys |= {"channels": image.channels} if mode == "raw" else {}
    keys |= {"dtype": image.dtype} if image.dtype != "uint8" else {}
    keys |= {} if image.range is None else {"range": list(image.range)}
    keys |= {} if image.fill == (_INDEX_FILLS[image.dtype] if mode == "index" else 0) else {"fill": image.fill}
    if mode != "index" and image.normalize != spec.normalize:
        keys["normalize"] = image.normalize if isinstance(image.normalize, str) else dict(image.normalize)
    return keys
