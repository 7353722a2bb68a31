"""The file saved beside a trained model: the specification of its stream, which says how images are made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from streamd.core.host import read_regular_file
from streamd.core.spec import ONLY_IMAGE, StreamSpec
from streamd.errors import ConfigError
from streamd.limits import MAX_SPEC_FILE_BYTES

_plain: Final = msgspec.json.Decoder()
_spec: Final = msgspec.json.Decoder(StreamSpec)


def spec_file_path(model: Path) -> Path:
    """Returns the path of a model's file: `model.streamd.json` beside `model.keras`."""
    return model.with_suffix(".streamd.json")


def write_spec(path: Path, spec: StreamSpec) -> None:
    """Writes a stream's specification as JSON. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")


def read_spec(path: Path) -> StreamSpec:
    """Reads what `write_spec` of this or an older streamd wrote. Raises ConfigError for anything else, and OSError."""
    try:
        return _spec.decode(_name_only_image(read_regular_file(path, MAX_SPEC_FILE_BYTES)))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} does not say how a stream makes its images ({error}): give the  .streamd.json  that streamd-train "
            "wrote next to the model, or stream.spec"
        ) from error


def _name_only_image(text: bytes) -> bytes:
    """Returns the text of a specification, whose only image has a name; an older streamd wrote it without one."""
    spec = _plain.decode(text)
    if not isinstance(spec, dict) or "images" in spec or not isinstance(spec.get("image"), dict):
        return text
    image = {**spec.pop("image"), "normalize": spec.get("normalize", "none")}
    return msgspec.json.encode({**spec, "images": {ONLY_IMAGE: image}})
