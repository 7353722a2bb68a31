"""Decodes one image as a stream shows it to its trainers, for inference with a trained model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.host import read_regular_file
from streamd.core.spec import ONLY_IMAGE, ImageSpec, StreamSpec
from streamd.errors import ConfigError, MissingExtraError, suggest_name
from streamd.limits import MAX_FILE_BYTES, MAX_SPEC_FILE_BYTES

if TYPE_CHECKING:
    from streamd.decode.geometry import Geometry

File = str | os.PathLike[str] | bytes | BinaryIO
Leader = File | tuple[int, int]  # a file, or the upright (height, width) of its picture

_plain: Final = msgspec.json.Decoder()
_spec: Final = msgspec.json.Decoder(StreamSpec)


def load_image(
    file: File,
    spec: StreamSpec | str | os.PathLike[str],
    image: str | None = None,
    *,
    leader: Leader | None = None,
) -> npt.NDArray[Any]:
    """Decodes an image file exactly as a daemon does for `spec`. Returns uint8 (height, width, channels).

    In mode raw the numbers are uint8, uint16 or float32; in mode index class numbers are (height, width).

    file: a path, the bytes of a file, or a file opened with 'rb'.
    spec: `stream.spec`, or the path of the `.streamd.json` that streamd-train writes beside a model.
    image: which of several images of a sample this is; default: the first.
    leader: for an image that is `like` another one, the file of that image, or its (height, width) once it is turned
        upright; for a frame of a clip, the first frame. The part that is shown depends on it where `resize` crops or
        pads. Without it, the leader is taken to be as large as this file, which a warning says.

    `resize: random_crop` shows the middle, as `resize: crop` does. An image with views loses their axis here: the
    middle comes back in their place. The file of a clip is one of its frames: stack several with `np.stack`. A
    transform is not applied. If the stream has one, or its daemon has other versions of the decoders, the pixels differ
    from the stream's, and a warning says so. Models take batches: `image[None]`.

    Raises ConfigError for a file that cannot be read or is no sound image, for a stream that is served from arrays, for
    an invalid `spec`, and where only the leader's file, and not its size, says which part is shown; MissingExtraError
    without the extra `serve`, which brings the decoders.
    """
    known = _load_spec(spec)
    try:
        from streamd.decode import pixel_id  # noqa: PLC0415 - an extra, and heavy
        from streamd.decode.decoders import list_possible_geometries, read_geometry  # noqa: PLC0415 - an extra, and heavy
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a decoder", "serve", "load_image") from error
    wanted = known.image if image is None else known.images.get(image)
    if wanted is None:
        near = suggest_name(str(image), known.images)
        names = ", ".join(known.images)
        raise ConfigError(f"stream {known.name!r} has no image {image!r}; its images are {names}{near}")
    if known.pixel_id == pixel_id.compute_stored_pixel_id(known.image):
        raise ConfigError(
            f"stream {known.name!r} is served from arrays, and nothing says how they were made from image files: "
            f"convert this file to a {known.image.dtype} array of shape {known.image_shape} in the same way"
        )
    if known.pixel_id != pixel_id.compute_sample_pixel_id(known.images):
        warnings.warn(
            f"the pixels of stream {known.name!r} differ from those that load_image makes: the stream has a transform, "
            "which load_image does not apply, or its daemon has other versions of the decoders",
            stacklevel=2,
        )
    follows = wanted.like or (image or next(iter(known.images)) if wanted.frames else None)
    if follows is None and leader is not None:
        raise ConfigError(f"stream {known.name!r}: this image follows no other one; leave leader out")
    data, name = _read_file_bytes(file), _describe_file(file)
    if follows is None or (leader is None and wanted.like is None):
        return _decode_row(data, wanted, None, name)[0]
    if leader is not None and not isinstance(leader, tuple):
        led = _decode_row(_read_file_bytes(leader), known.images[follows], None, _describe_file(leader))[1]
        return _decode_row(data, wanted, led, name)[0]
    with _name_bad_image(name):
        size = leader or read_geometry(data, wanted).source
    sides: tuple[object, ...] = size  # whatever a caller without a type checker gives
    if len(sides) != 2 or not all(np.issubdtype(type(side), np.integer) and side > 0 for side in size):  # noqa: PLR2004 - two sides
        raise ConfigError(f"found leader={size!r}; use a file, or (height, width) in whole pixels")
    shown = int(size[0]), int(size[1])
    landed = [*dict.fromkeys(list_possible_geometries(known.images[follows], shown))]
    if leader is None and known.images[follows].resize != "stretch":
        warnings.warn(
            f"load_image takes {follows} to be as large as this file, {size[0]}x{size[1]}, height x width: if it is "
            f"not, another part is shown than in the stream; give leader=, the file of {follows} or its (height, "
            "width)",
            stacklevel=2,
        )
    row, *others = (_decode_row(data, wanted, each, name)[0] for each in landed)
    if any(not np.array_equal(row, other, equal_nan=other.dtype.kind == "f") for other in others):
        raise ConfigError(
            f"{name}: the part that it shows depends on the file of {follows}, and not on its size alone, since a JPEG "
            f"is decoded at a reduced scale; give leader=FILE, the file of {follows}"
        )
    return row


def _decode_row(data: bytes, image: ImageSpec, led: Geometry | None, name: str) -> tuple[npt.NDArray[Any], Geometry]:
    """Decodes one picture as the stream does, and returns it with how it lands; `led` is its leader's geometry."""
    from streamd.decode.decoders import decode_image  # noqa: PLC0415 - an extra, and heavy

    row = np.empty(image.picture_shape, dtype=image.dtype)
    with _name_bad_image(name):
        return row, decode_image(data, row, image, led)


@contextmanager
def _name_bad_image(name: str) -> Iterator[None]:
    from streamd.decode.decoders import BadImageError  # noqa: PLC0415 - an extra, and heavy

    try:
        yield
    except BadImageError as error:
        raise ConfigError(f"{name}: {error}") from error


def _load_spec(spec: StreamSpec | str | os.PathLike[str]) -> StreamSpec:
    if isinstance(spec, StreamSpec):
        return spec
    wanted = "give the  .streamd.json  that streamd-train wrote next to the model, or stream.spec"
    if not isinstance(spec, str | os.PathLike):
        raise ConfigError(f"load_image cannot use a {type(spec).__name__} as spec: {wanted}")
    try:
        return read_spec(Path(spec))
    except OSError as error:
        raise ConfigError(f"{_explain_read_error(spec, error)}; {wanted}") from error


def _read_file_bytes(file: File) -> bytes:
    if isinstance(file, bytes):
        return file
    if isinstance(file, str | os.PathLike):
        try:
            return read_regular_file(file, MAX_FILE_BYTES)
        except OSError as error:
            raise ConfigError(f"{_explain_read_error(file, error)}; load_image takes one image file") from error
    given: object = file
    if isinstance(given, TextIOBase) or not hasattr(given, "read"):
        kind = "a file opened as text" if isinstance(given, TextIOBase) else f"a {type(given).__name__}"
        raise ConfigError(f"load_image takes a path, the bytes of a file, or a file opened with 'rb', not {kind}")
    if not (data := file.read()):
        raise ConfigError(f"{_describe_file(file)}: nothing is left to read; call seek(0) on the file first")
    return data


def _explain_read_error(path: str | os.PathLike[str], error: OSError) -> str:
    """Returns why a path cannot be read, as the first half of a sentence."""
    if not os.fspath(path):
        return "the path is empty"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder"
    if isinstance(error, FileNotFoundError):
        return f"{path}: there is no such file" + ("" if Path(path).is_absolute() else f" in {Path.cwd()}")
    return f"{path}: {error.strerror}"


def _describe_file(file: File) -> str:
    if isinstance(file, bytes):
        return f"an image of {len(file)} bytes"
    return str(file if isinstance(file, str | os.PathLike) else getattr(file, "name", "the open file"))


# --- The file saved beside a trained model: the specification of its stream, which says how images are made for it.


def spec_file_path(model: Path) -> Path:
    """Returns the path of a model's file: `model.streamd.json` beside `model.keras`."""
    return model.with_suffix(".streamd.json")


def write_spec(path: Path, spec: StreamSpec) -> None:
    """Writes a stream's specification as JSON. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")


def read_spec(path: Path) -> StreamSpec:
    """Reads what `write_spec` of this or an older streamd wrote. Raises ConfigError for anything else, and OSError."""
    try:
        text = read_regular_file(path, MAX_SPEC_FILE_BYTES)
        found = _plain.decode(text)
        # An older streamd wrote a specification whose only image has no name.
        if isinstance(found, dict) and "images" not in found and isinstance(found.get("image"), dict):
            image = {**found.pop("image"), "normalize": found.get("normalize", "none")}
            text = msgspec.json.encode({**found, "images": {ONLY_IMAGE: image}})
        return _spec.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} does not say how a stream makes its images ({error}): give the  .streamd.json  that streamd-train "
            "wrote next to the model, or stream.spec"
        ) from error
