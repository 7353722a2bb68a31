"""The file saved beside a trained model: the specification of its stream, which says how images are made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError

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
        return _spec.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} does not say how a stream makes its images ({error}): give the  .streamd.json  that streamd-train "
            "wrote next to the model, or stream.spec"
        ) from error
