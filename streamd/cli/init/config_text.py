"""Formats a generated configuration as the text of config.yaml, with a comment on each key."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Final

from ruamel.yaml import YAML

from streamd.core.spec import LabelSpec
from streamd.core.text import escape_unprintable, format_count
from streamd.daemon.starter.data_survey import DataKind
from streamd.daemon.starter.starter_config import FormatPath, StarterConfig, build_stream_settings
from streamd.dataset.layouts import TRAIN

_SHOWN_CLASSES: Final = 5  # in a comment
_LINE_CHARS: Final = 112  # with the indent, what fits most editors
_WIDTH_CHARS: Final = 1 << 20  # a value stays in one line
_SOURCE_COMMENTS: Final[dict[DataKind, str]] = {
    "folder": "the images of a folder",
    "table": "one row per sample: the table, and its column of file names",
    "tar": "WebDataset shards: files of one name up to the dot are one sample",
    "yolo": "the pictures and boxes of one part of a YOLO data set",
    "coco": "the pictures and boxes of a COCO file, and the folder of the pictures",
}
# Where a mask lies, and what the photo beside it needs then; sources with boxes of their own have no masks as a rule.
_MASK_PLACES: Final[dict[DataKind, tuple[str, str]]] = {
    "folder": ('from: "{dir}/{stem}.png", root: MASKS', ""),
    "table": ("from: COLUMN", ""),
    "tar": ("from: mask.png", "from: photo.jpg, "),
}
_BOX_PLACES: Final[dict[DataKind, str]] = {"folder": "", "table": "COLUMN", "tar": "json:boxes"}
_KEY_COMMENTS: Final = {
    "split": "a fifth is held back for validation, the same samples every time",
    "normalize": "the model's normalization layer makes 0 to 1 of 0-255; or imagenet, minus_one_one, or numbers",
    "batch_size": "images in a batch; trainers may ask for others",
    "shuffle": "in stored order",
}


def format_starter_config(starter: StarterConfig, command: str, format_path: FormatPath) -> str:
    """Returns the text of the configuration that `command` generated; `format_path` formats its paths."""
    streams = build_stream_settings(starter.survey, starter.size, format_path)
    lines = [
        f"# Made by  {escape_unprintable(command)}",
        "# Change what you like: `streamd check` says whether it is right, `streamd serve` serves it, `streamd schema`",
        "# explains every key. Relative paths are relative to this file.",
        *(f"# {escape_unprintable(note)}" for note in starter.notes),
        "streams:",
    ]
    for name, keys in streams.items():
        lines.append(f"  {name}:")
        lines += [f"    {line}" for line in _iterate_stream_lines(starter, name, keys)]
    return "\n".join(lines) + "\n"


def _iterate_stream_lines(starter: StarterConfig, stream: str, keys: Mapping[str, object]) -> Iterator[str]:
    for key, value in keys.items():
        if key == "labels" and value:
            yield from _iterate_label_lines(starter)
        else:
            yield from _add_comment(format_entry(key, value), _find_comment(starter, stream, key, value))
        if key == "image" and stream == TRAIN and starter.survey.kind in _MASK_PLACES:
            yield from _iterate_mask_comments(starter.survey.kind)
        if key == "source" and stream == TRAIN and starter.survey.labels is None:
            yield "# labels: {}  # uncomment to serve the images without their labels"


def _iterate_mask_comments(kind: DataKind) -> Iterator[str]:
    """Yields how masks and boxes are declared, which `init` does not look for."""
    place, first = _MASK_PLACES[kind]
    yield "# For masks, or several images a sample, write in place of image:"
    yield f"# images: {{photo: {{{first}size: [256, 256]}}, mask: {{{place}, like: photo, mode: index}}}}"
    if kind != "folder":
        yield "# For boxes, under labels:  boxes: {type: boxes, from: " + _BOX_PLACES[kind] + ", max: 100}"


def _add_comment(entry: str, comment: str) -> list[str]:
    """Adds a comment after an entry, or above it if the line would be too long."""
    if not comment:
        return [entry]
    line = f"{entry}  # {comment}"
    return [line] if len(line) <= _LINE_CHARS else [f"# {comment}", entry]


def _find_comment(starter: StarterConfig, stream: str, key: str, value: object) -> str:
    match key:
        case "source" if stream == TRAIN:
            label = starter.samples[stream].specs.get("label") if starter.survey.labels is None else None
            return _SOURCE_COMMENTS[starter.survey.kind] + (f"; classes: {_format_classes(label)}" if label else "")
        case "image":
            why = f", {starter.why_size}" if starter.why_size else ""
            return f"[height, width]{why}; next to size you can set resize: stretch, crop, pad or random_crop"
        case "images":
            why = f", {starter.why_size}" if starter.why_size else ""
            return f"size: [height, width]{why}; {{stem}} is the photo's name without its suffix"
        case "labels":
            return "none"
        case "like":
            return "every key as in train, except for those below"
        case "split" if value is None:
            return "all of its samples"
    return _KEY_COMMENTS.get(key, "")


def _iterate_label_lines(starter: StarterConfig) -> Iterator[str]:
    specs = starter.samples[TRAIN].specs
    yield "labels:  # name: category, int, float, string or tags; remove those that are not to be learnt"
    for name, value in (starter.survey.labels or {}).items():
        comment = _describe_label(specs[name])
        yield from (f"  {line}" for line in _add_comment(format_entry(name, value), comment))
    for name, why in starter.survey.left_out.items():
        yield f"  # {escape_unprintable(name)}: left out, {escape_unprintable(why)}"


def _describe_label(spec: LabelSpec) -> str:
    if spec.classes:
        return _format_classes(spec)
    return "" if spec.mean is None or spec.width > 1 else f"mean {spec.mean:.4g}"


def _format_classes(spec: LabelSpec) -> str:
    classes = [str(each) for each in spec.classes]
    more = f", ... {format_count(len(classes), 'class', 'classes')}" if len(classes) > _SHOWN_CLASSES else ""
    return escape_unprintable(", ".join(classes[:_SHOWN_CLASSES]) + more)


def format_entry(key: str, value: object) -> str:
    """Formats a key and its value in one line of YAML."""
    yaml = YAML()
    yaml.default_flow_style, yaml.width = True, _WIDTH_CHARS
    text = io.StringIO()
    yaml.dump({key: value}, text)
    return text.getvalue().strip().removeprefix("{").removesuffix("}").strip()
