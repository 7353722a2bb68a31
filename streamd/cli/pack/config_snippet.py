"""Formats the part of a configuration that serves a pack."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel
from ruamel.yaml import YAML

from streamd.cli.pack.label_cells import build_label_reading_settings
from streamd.config.schema import StreamConfig
from streamd.core.spec import ImageSpec, StreamSpec

_KEPT_SETTINGS: Final = ("batch_size", "drop_remainder", "shuffle", "normalize", "transform", "bad_samples")
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


def build_decoded_image_settings(image: ImageSpec) -> dict[str, object]:
    """Returns `image:` for a pack of decoded images."""
    return {"size": "stored"} if image.channels > 1 else {"size": "stored", "mode": "L"}


def build_decoded_pack_settings(source: object, spec: StreamSpec, name_pattern: str = "") -> dict[str, object]:
    """Returns the keys of a stream that serve a pack of decoded images; see `build_label_reading_settings`."""
    labels = build_label_reading_settings(spec, name_pattern)
    return {"source": source, **labels, "image": build_decoded_image_settings(spec.image)}


def build_encoded_image_settings(image: ImageSpec) -> dict[str, object]:
    """Returns `image:` for a pack of encoded images, the same as the stream's."""
    mode = {} if image.channels > 1 else {"mode": "L"}
    resize = {} if image.resize == "stretch" else {"resize": image.resize}
    exact = {"exact": True} if image.exact else {}
    drawn = {"scale": list(image.scale), "ratio": list(image.ratio)} if image.resize == "random_crop" else {}
    return {"size": [image.height, image.width], **mode, **resize, **exact, **drawn}
