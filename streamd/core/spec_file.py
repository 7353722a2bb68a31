"""What is kept beside a trained model: the stream it was trained on, which says what an image must become for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError

_spec: Final = msgspec.json.Decoder(StreamSpec)


def spec_file_path(model: Path) -> Path:
    """Where the stream of a model lies: `model.streamd.json` beside `model.keras`."""
    return model.with_suffix(".streamd.json")


def write_spec(path: Path, spec: StreamSpec) -> None:
    """Writes what a stream says of itself, as JSON. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")


def read_spec(path: Path) -> StreamSpec:
    """What `write_spec` wrote, here or by an older streamd. Raises ConfigError for anything else, OSError."""
    try:
        return _spec.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path} does not say how a stream makes its images ({error}): give the  .streamd.json  that streamd-train "
            "wrote beside the model, or stream.spec"
        ) from error
