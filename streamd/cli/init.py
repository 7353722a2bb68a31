"""`streamd init`: writes a first config.yaml for the data at a path."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from streamd.cli.options import DEFAULT_CONFIG, SIZE_HELP, EncodingOption, LabelOption, RootOption, parse_size_option
from streamd.cli.terminal import capture_source_notes
from streamd.core.text import escape_unprintable, format_count
from streamd.errors import ConfigError, MissingExtraError, OutputExistsError

if TYPE_CHECKING:
    from streamd.core.spec import LabelSpec
    from streamd.daemon.starter.starter_config import FormatPath, StarterConfig
    from streamd.daemon.starter.survey import DataKind

_STANDARD_OUTPUT: Final = Path("-")
_COUNTED_CLASSES: Final = 10  # shown with their counts


def init(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder of images, a table, tars, YOLO's data.yaml, a COCO file.")
    ],
    size: Annotated[str | None, typer.Option("--size", metavar="SIZE", help=SIZE_HELP)] = None,
    root: RootOption = None,
    label: LabelOption = None,
    encoding: EncodingOption = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The configuration to write; - prints it.")
    ] = DEFAULT_CONFIG,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Writes a first config.yaml for the data at PATH: a folder of images, a .csv, .tsv or .parquet table, tar files, a
    YOLO data set, or a COCO file.

    The sub-folders train, validation (or val, valid) and test become streams. If there is no sub-folder for validation,
    about a fifth of the samples is held out for validation. Any other sub-folder is a class, unless the folders are
    those of a known layout: pictures with masks of the same names, YOLO and COCO are taken as such, and what is not
    clear is refused by its name. In a table, init finds the column of file names. It also guesses which other columns
    are labels, and which type each label has. It scans the samples in the same way as `streamd serve` would. Nothing is
    written to PATH.

    \b
    Examples:
      streamd init /data/pets --size 128
      streamd init /data/drive/all.csv --size 66x200 -o drive.yaml
    """
    try:
        from streamd.cli.terminal import create_progress_display  # noqa: PLC0415 - heavy libraries only when they are needed, not for --help
        from streamd.daemon.starter.starter_config import make_starter_config  # noqa: PLC0415 - as above
        from streamd.daemon.starter.survey import StarterChoices  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd init") from error
    wanted, choices = parse_size_option(size), StarterChoices(root and root.absolute(), tuple(label or ()), encoding)
    check_output_place(output, path, force=force)
    with capture_source_notes() as notes, create_progress_display() as shown:
        starter = make_starter_config(path, wanted, shown, choices)
    options = [
        ("--size", size),
        ("--root", root),
        *(("--label", each) for each in label or ()),
        ("--encoding", encoding),
    ]
    given = [str(each) for option in options if option[1] for each in option]
    command = shlex.join(["streamd", "init", str(path), *given])
    text = format_starter_config(starter, command, lambda each: spell_path(each, path, output))
    if output == _STANDARD_OUTPUT:
        typer.echo(text, nl=False)
    else:
        write_config(output, text, force=force)
    for line in iterate_summary_lines(starter, notes, output):
        typer.echo(line, err=True)


def check_output_place(output: Path, data: Path, *, force: bool) -> None:
    """Raises OutputExistsError if the file exists, or would be within the data; ConfigError where none can be."""
    if output == _STANDARD_OUTPUT:
        return
    if output.is_dir():
        raise ConfigError(f"{output}: is a folder; give the path of the file in it, such as {output / 'config.yaml'}")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output}: there is no folder {output.absolute().parent}; create it, or choose another file")
    folder, inside = os.path.realpath(output.absolute().parent), os.path.realpath(data)
    if folder == inside or folder.startswith(f"{inside.rstrip('/')}/"):
        raise OutputExistsError(
            f"{output}: would be inside the data, which init does not change; run init in another folder, or choose a "
            "file elsewhere with -o"
        )
    if output.exists() and not force:
        raise OutputExistsError(_format_exists(output))


def _format_exists(output: Path) -> str:
    return (
        f"{output}: already exists; use --force to replace it, -o FILE to write another file, or -o - to print the "
        "configuration"
    )


def write_config(output: Path, text: str, *, force: bool) -> None:
    """Writes the file. Raises OutputExistsError if one was created meanwhile, OSError."""
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise OutputExistsError(_format_exists(output)) from error


def spell_path(path: Path, given: Path, output: Path) -> str:
    """Returns a data path as written in the file: absolute if it was `given` so, else relative to the file's folder.

    It is absolute too if, because of symbolic links, the relative path would lead elsewhere.
    """
    folder = Path.cwd() if output == _STANDARD_OUTPUT else output.absolute().parent
    relative = os.path.relpath(path, folder)
    is_same = os.path.realpath(folder / relative) == os.path.realpath(path)
    return str(path) if given.expanduser().is_absolute() or not is_same else relative


def iterate_summary_lines(starter: StarterConfig, notes: Iterable[str], output: Path) -> Iterator[str]:
    """Yields the lines about what was found, with the `notes` of the listing, and what to run next."""
    samples = ", ".join(f"{name} {each.samples:,}" for name, each in starter.samples.items())
    total = sum(each.samples for each in starter.samples.values())
    height, width = starter.size
    why = f" ({starter.why_size})" if starter.why_size else ""
    yield f"{format_count(total, 'sample')}: {samples}"
    for name in starter.samples["train"].specs:
        specs = [each.specs[name] for each in starter.samples.values() if name in each.specs]
        described, classes = str(specs[0].type), specs[0].classes
        if classes:
            totals = [sum(counts) for counts in zip(*(spec.counts for spec in specs), strict=True)]
            counted = [f"{each} {count:,}" for each, count in zip(classes, totals, strict=True)]
            more = ", ..." if len(classes) > _COUNTED_CLASSES else ""
            described = (
                f"{format_count(len(classes), 'class', 'classes')}: {', '.join(counted[:_COUNTED_CLASSES])}{more}"
            )
        yield escape_unprintable(f"label {name}: {described}")
    yield f"images of {height}x{width}, height x width{why}"
    for remark in starter.iterate_remarks():
        yield escape_unprintable(remark)
    for note in notes:
        yield escape_unprintable(note)
    if output == _STANDARD_OUTPUT:
        return
    named = "" if output == DEFAULT_CONFIG else f" --config {shlex.quote(str(output))}"
    yield f"{output} is written. Next:"
    yield f"  streamd check{named}    # counts, copies, files that cannot be read"
    yield f"  streamd serve{named}    # in a terminal of its own"


# --- the text of config.yaml, with a comment on each key

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
    "labels": "none",
    "like": "every key as in train, except for those below",
}


def format_starter_config(starter: StarterConfig, command: str, format_path: FormatPath) -> str:
    """Returns the text of the configuration that `command` generated; `format_path` formats its paths."""
    from streamd.daemon.starter.starter_config import build_stream_settings  # noqa: PLC0415 - not for --help

    survey = starter.survey
    lines = [
        f"# Made by  {escape_unprintable(command)}",
        "# Change what you like: `streamd check` says whether it is right, `streamd serve` serves it, `streamd schema`",
        "# explains every key. Relative paths are relative to this file.",
        *(f"# {escape_unprintable(note)}" for note in starter.notes),
        "streams:",
    ]
    # The comments on keys, with what was found in the data.
    why = f", {starter.why_size}" if starter.why_size else ""
    label = starter.samples["train"].specs.get("label") if survey.labels is None else None
    comments = {
        **_KEY_COMMENTS,
        "source": _SOURCE_COMMENTS[survey.kind] + (f"; classes: {_format_classes(label)}" if label else ""),
        "image": f"[height, width]{why}; next to size you can set resize: stretch, crop, pad or random_crop",
        "images": f"size: [height, width]{why}; {{stem}} is the photo's name without its suffix",
    }
    for name, keys in build_stream_settings(survey, starter.size, format_path).items():
        lines.append(f"  {name}:")
        for key, value in keys.items():
            if key == "labels" and value:
                shown = [
                    "labels:  # name: category, int, float, string or tags; remove those that are not to be learnt"
                ]
                for column, setting in (survey.labels or {}).items():
                    spec = starter.samples["train"].specs[column]
                    comment = "" if spec.mean is None or spec.width > 1 else f"mean {spec.mean:.4g}"
                    comment = _format_classes(spec) if spec.classes else comment
                    shown += [f"  {line}" for line in _add_comment(format_entry(column, setting), comment)]
                for column, reason in survey.left_out.items():
                    shown.append(f"  # {escape_unprintable(column)}: left out, {escape_unprintable(reason)}")
            else:
                is_bare = key == "source" and name != "train"
                comment = "all of its samples" if key == "split" and value is None else comments.get(key, "")
                shown = _add_comment(format_entry(key, value), "" if is_bare else comment)
            # How masks and boxes are declared, which `init` does not look for.
            if key == "image" and name == "train" and survey.kind in _MASK_PLACES:
                shown.append("# For masks, or several images a sample, write in place of image:")
                shown.append(f"# {format_mask_example(survey.kind)}")
                if survey.kind != "folder":
                    boxes = _BOX_PLACES[survey.kind]
                    shown.append(f"# For boxes, under labels:  boxes: {{type: boxes, from: {boxes}, max: 100}}")
            if key == "source" and name == "train" and survey.labels is None:
                shown.append("# labels: {}  # uncomment to serve the images without their labels")
            lines += [f"    {line}" for line in shown]
    return "\n".join(lines) + "\n"


def format_mask_example(kind: DataKind) -> str:
    """Formats the key `images` with a mask for each photo, in one line of YAML."""
    place, first = _MASK_PLACES[kind]
    return f"images: {{photo: {{{first}size: [256, 256]}}, mask: {{{place}, like: photo, mode: index}}}}"


def _add_comment(entry: str, comment: str) -> list[str]:
    """Adds a comment after an entry, or above it if the line would be too long."""
    if not comment:
        return [entry]
    line = f"{entry}  # {comment}"
    return [line] if len(line) <= _LINE_CHARS else [f"# {comment}", entry]


def _format_classes(spec: LabelSpec) -> str:
    classes = [str(each) for each in spec.classes]
    more = f", ... {format_count(len(classes), 'class', 'classes')}" if len(classes) > _SHOWN_CLASSES else ""
    return escape_unprintable(", ".join(classes[:_SHOWN_CLASSES]) + more)


def format_entry(key: str, value: object) -> str:
    """Formats a key and its value in one line of YAML."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - not for --help

    yaml = YAML()
    yaml.default_flow_style, yaml.width = True, _WIDTH_CHARS
    text = io.StringIO()
    yaml.dump({key: value}, text)
    return text.getvalue().strip().removeprefix("{").removesuffix("}").strip()
