"""Several images a sample from arrays: which array or file each is, and what does not go together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from streamd.config.schema_sections import ImageConfig, parse_npy_path
from streamd.dataset.sources import ArrayForm, ClassNumbers, DataSource, FrameRule, ImageSource, RawNumbers

Problems = Iterator[tuple[tuple[str, ...], str]]

_NPY: Final = "npy"
_ALPHA_CHANNELS: Final = 4


def names_array_of_source(image: ImageConfig, source: DataSource) -> bool:
    """Whether an entry without `from` is the array that the source itself names."""
    return image.source is None and (source.kind == _NPY or getattr(source, "images", None) is not None)


def find_array_image_problems(images: Mapping[str, ImageConfig], source: DataSource) -> Problems:
    """Yields what is wrong with images that are arrays, each with the keys below the stream."""
    for name, image in images.items():
        if image.is_pattern:
            what = "a .npy file" if source.kind == _NPY else "an array of the file, or a .npy file"
            yield ("images", name, "from"), f"rows of arrays have no files beside them; name {what}, and no pattern"
        elif image.root is not None and not _is_npy(image, source):
            yield ("images", name, "root"), "is for .npy files; remove it"
    if any(names_array_of_source(image, source) for image in images.values()):
        pass
    elif source.kind == _NPY:
        yield ("images",), "each has a from, so none takes the arrays of source.path; remove it from the one that does"
    elif getattr(source, "images", None) is not None:
        yield ("source", "images"), "is taken by no image, since each has a from; remove it here, or there"
    elif all(_is_npy(image, source) for image in images.values()):
        yield ("images",), f"all lie in .npy files, and none in the {source.kind} file; use kind: npy"
    if getattr(source, "range", None) is not None and all(build_array_form(image) for image in images.values()):
        why = "makes pixels of 8 bits, but no image is of mode RGB or L; remove it"
        yield ("source", "range"), f"{why}, or move it to the image of mode raw that it is for"


def _is_npy(image: ImageConfig, source: DataSource) -> bool:
    text = image.source
    return text is not None and (source.kind == _NPY or parse_npy_path(text) is not None)


def build_array_form(image: ImageConfig) -> ArrayForm | None:
    """Returns what the array of an image must hold; None for pixels of 8 bits."""
    if image.mode == "index":
        return ClassNumbers()
    if image.mode == "RGBA":
        return RawNumbers(_ALPHA_CHANNELS, "uint8")
    return RawNumbers(image.channel_count, image.dtype) if image.mode == "raw" else None


def build_array_sources(images: Mapping[str, ImageConfig], source: DataSource) -> dict[str, ImageSource]:
    """Returns where each image lies, in the form that the formats of arrays read."""
    return {
        name: ImageSource(
            _find_place(name, image, source), form=build_array_form(image), frames=find_frame_rule(image, images)
        )
        for name, image in images.items()
    }


def find_frame_rule(image: ImageConfig, images: Mapping[str, ImageConfig]) -> FrameRule | None:
    """Returns the rule of an image that is a clip, its own or that of the image that it follows."""
    shown = image if image.like is None else images.get(image.like, image)
    return None if shown.frames is None else shown.frames.rule


def list_image_paths(images: Mapping[str, ImageConfig], source: DataSource) -> tuple[Path, ...]:
    """Returns the .npy files and the roots that images name besides their source; patterns are not expanded."""
    files = (
        Path(image.resolve_file()) for image in images.values() if not source.is_encoded and _is_npy(image, source)
    )
    roots = (image.root for image in images.values() if source.is_encoded and image.root is not None)
    return (*files, *roots)


def _find_place(name: str, image: ImageConfig, source: DataSource) -> str | None:
    """Returns the name of an array, the path of .npy files, or None for the array that the source names."""
    if names_array_of_source(image, source):
        return None
    return image.resolve_file() if _is_npy(image, source) else image.source or name
