"""Turns a survey into a configuration: lists its streams as `serve` does, and chooses the size of the images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from streamd.config.fields import MAX_SIDE
from streamd.config.load import add_error_locations, load_config
from streamd.config.units import format_bytes
from streamd.core import log
from streamd.core.text import escape_unprintable, format_count
from streamd.daemon.starter.survey import PATH_KEY, SMALL_SAMPLES, DataSurvey, StarterChoices, survey_data
from streamd.daemon.streams.catalog import scan_stream_sources
from streamd.daemon.streams.listing_process import ListingLog
from streamd.dataset.layouts import TRAIN, VALIDATION, Settings
from streamd.dataset.manifest.columns import RaggedColumn
from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.paths.confined import translate_read_errors
from streamd.dataset.scan import find_validation_samples, select_part_samples, share_classes
from streamd.dataset.sources import SplitRule
from streamd.errors import ConfigError
from streamd.limits import GIB, MAX_BOXES

DEFAULT_SIDE: Final = 224  # pixels: what most trained networks take
BATCH_SIZE: Final = 32
NORMALIZE: Final = "unit"  # the first image is always one of colours; without it a model would train on 0 to 255
VALIDATION_FRACTION: Final = 0.2
_BOX_KINDS: Final = frozenset({"yolo", "coco"})
_LEAST_BOXES: Final = 100  # of a sample: room for new data, as such sources have without labels
_CHANNELS: Final = 3
_LARGE_BATCH_BYTES: Final = GIB // 8  # with batches of this size few trainers fit into the default memory
_TRIED_SEEDS: Final = 1000  # of a hundred seeds, at least one separates two samples

ImageSize = tuple[int, int]  # height, width
FormatPath = Callable[[Path], str]


class StarterProgress(Protocol):
    """Shows the progress of making a configuration."""

    def update_listing(self, stream: str, files: int) -> None:
        """Shows that `files` files of a stream have been listed so far."""

    def start_phase(self, total: int) -> None:
        """Shows that the heads of at most `total` pictures will be read."""

    def advance(self, items: int) -> None:
        """Shows that the heads of `items` more pictures have been read."""


class LoggedProgress(ListingLog):
    """Logs the progress of a listing, and of the reading of heads after it."""

    _read = 0

    def start_phase(self, total: int) -> None:
        """Logs nothing before the first heads are read."""

    def advance(self, items: int) -> None:
        """Adds to the number of heads that have been read, and logs it."""
        self._read += items
        if self._claim_due_log():
            log.notice("manifest.listing", "reading the sizes of the pictures", files=self._read)


@dataclass(frozen=True, slots=True)
class StarterConfig:
    """A configuration: the `survey` it is made from, the `samples` of each stream, and the image size with its reason.

    `is_grey` means that all pictures were read, and that none has colours.
    """

    survey: DataSurvey
    samples: Mapping[str, ScannedSamples]
    size: ImageSize
    why_size: str
    is_grey: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Further remarks for the user."""
        notes = [each for each in (self.survey.layout, *self.survey.notes) if each]
        if self.is_grey:
            notes.append("all pictures are grey: add mode: L next to size to serve one channel instead of three")
        batch_bytes = self.size[0] * self.size[1] * _CHANNELS * BATCH_SIZE
        if batch_bytes > _LARGE_BATCH_BYTES:
            sizes = f"takes {format_bytes(batch_bytes)}, but memory is {format_bytes(GIB)}"
            notes.append(
                f"a batch of {BATCH_SIZE} such images {sizes}: give a smaller size, or set memory: 8GiB in config.yaml"
            )
        return tuple(notes)

    def iterate_remarks(self) -> Iterator[str]:
        """The columns that are left out, then the notes, for people."""
        for name, reason in self.survey.left_out.items():
            yield f"column {name} is left out: {reason}"
        yield from self.notes

    def build_settings(self) -> Settings:
        """Returns the contents of the configuration's file."""
        return {"streams": build_stream_settings(self.survey, self.size, str)}


def build_unwritten_config(
    path: Path, size: ImageSize | None, progress: StarterProgress, choices: StarterChoices | None = None
) -> Settings:
    """Returns the configuration that `streamd init` would write for the data at `path`. Raises ConfigError.

    Without `size` the samples are listed, and heads of pictures are read until two differ in size. What init would
    print about the data is logged.
    """
    survey = survey_data(path, choices)
    # With a size the samples are listed here only to choose the split of a small data set, and to count boxes.
    if size is None or survey.kind in _BOX_KINDS or (survey.is_split and survey.is_small):
        starter = _list_survey(survey, size, progress)
    else:
        starter = StarterConfig(survey, {}, size, "")
    for remark in starter.iterate_remarks():
        log.notice("starter.remark", escape_unprintable(remark))
    return starter.build_settings()


def make_starter_config(
    path: Path, size: ImageSize | None, progress: StarterProgress, choices: StarterChoices | None = None
) -> StarterConfig:
    """Makes the configuration of the data at `path`, and lists its samples. Raises ConfigError as serve would."""
    return _list_survey(survey_data(path, choices), size, progress)


def _list_survey(survey: DataSurvey, size: ImageSize | None, progress: StarterProgress) -> StarterConfig:
    """Lists the samples of a survey once, with room for as many boxes as a picture has, and decides what they decide.

    That is the seed of the split, the number of boxes, and the size of the images where none is given.
    """
    has_boxes = survey.kind in _BOX_KINDS
    if has_boxes:
        survey = replace(survey, labels={"boxes": {"type": "boxes", "max": MAX_BOXES}})
    wanted = size or (DEFAULT_SIDE, DEFAULT_SIDE)
    streams = build_stream_settings(survey, wanted, str)
    # The two sides of a split are taken from one listing of all samples, whose names decide the split.
    whole = {**streams[TRAIN], "source": {**build_source_settings(survey, TRAIN, str), "part": "all"}}
    listed = {TRAIN: whole, **{name: streams[name] for name in streams if name not in {TRAIN, VALIDATION}}}
    try:
        config = load_config({"streams": listed if survey.is_split else streams})
        with add_error_locations(config):
            scans = scan_stream_sources(config.streams.values(), progress.update_listing)
            if survey.is_split:
                all_samples = scans[TRAIN]
                # Of very few samples, one side would be empty by most seeds.
                if all_samples.samples < SMALL_SAMPLES:
                    survey = replace(survey, split_seed=choose_split_seed([*all_samples.sample_names()]))
                config = load_config({"streams": build_stream_settings(survey, wanted, str)})
                for name in (TRAIN, VALIDATION):
                    scans[name] = select_part_samples(config.streams[name].listing_request, all_samples)
            samples = share_classes({name: scans[name] for name in streams})
    except ConfigError as error:
        raise ConfigError(f"{error}; {survey.layout}" if survey.layout else str(error)) from error
    if has_boxes:
        columns = [each for scanned in samples.values() for each in scanned.labels.values()]
        most = max((int(each.counts.max(initial=0)) for each in columns if isinstance(each, RaggedColumn)), default=0)
        survey = replace(survey, labels={"boxes": {"type": "boxes", "max": max(most, _LEAST_BOXES)}})
    if size is not None:
        return StarterConfig(survey, samples, size, "")
    # The pictures' own size, where it is the same for all of them.
    from streamd.daemon.starter.picture_sizes import find_common_size  # noqa: PLC0415 - Pillow only when it is needed

    progress.start_phase(sum(each.samples for each in samples.values()))
    with translate_read_errors(survey.path, PATH_KEY):
        found = find_common_size(samples.values(), progress.advance)
    readable = found.seen - found.unreadable
    if found.size is None:
        why = "the pictures are of different sizes" if readable else "no picture could be read"
    elif max(found.size) > MAX_SIDE:
        why = f"the pictures' own size, {found.size[1]}x{found.size[0]}, is above {MAX_SIDE}"
    else:
        why = f"the size of all {format_count(readable, 'picture')}"
        return StarterConfig(survey, samples, found.size, why, found.is_grey)
    return StarterConfig(survey, samples, (DEFAULT_SIDE, DEFAULT_SIDE), why)


def choose_split_seed(names: Collection[bytes]) -> int:
    """Returns the first seed that gives both train and validation a sample; 0 if none of _TRIED_SEEDS does."""
    for seed in range(_TRIED_SEEDS):
        held_back = int(find_validation_samples(names, SplitRule(VALIDATION_FRACTION, seed)).sum())
        if 0 < held_back < len(names):
            return seed
    return 0


def build_stream_settings(survey: DataSurvey, size: ImageSize, format_path: FormatPath) -> dict[str, Settings]:
    """Returns the keys of each stream, train first; other streams copy train except for their source and shuffle."""
    sources = {name: build_source_settings(survey, name, format_path) for name in survey.sources}
    seed = {"seed": survey.split_seed} if survey.split_seed else {}  # 0 is the default
    streams: dict[str, Settings] = {}
    for name, source in sources.items():
        own = {"labels": dict(survey.own_labels[name])} if name in survey.own_labels else {}
        if name == TRAIN:
            labels = {} if survey.labels is None else {"labels": dict(survey.labels)}
            split = {"split": {"validation": VALIDATION_FRACTION, **seed}} if survey.is_split else {}
            images = _build_image_settings(survey, name, size, format_path)
            rest = {"normalize": NORMALIZE, "batch_size": BATCH_SIZE}
            streams[name] = {"source": source, **split, **labels, **images, **rest}
        else:
            unsplit = {"split": None} if survey.is_split and "part" not in source else {}
            is_other = survey.masks.get(name) != survey.masks.get(TRAIN)
            images = _build_image_settings(survey, name, size, format_path) if is_other else {}
            streams[name] = {"like": TRAIN, "source": source, **unsplit, **own, **images, "shuffle": "none"}
    return streams


def _build_image_settings(survey: DataSurvey, stream: str, size: ImageSize, format_path: FormatPath) -> Settings:
    if stream not in survey.masks:
        return {"image": {"size": [*size]}}
    mask = {"from": survey.masks[stream], "root": format_path(survey.path), "like": "photo", "mode": "index"}
    return {"images": {"photo": {"size": [*size]}, "mask": mask}}


def build_source_settings(survey: DataSurvey, stream: str, format_path: FormatPath) -> Settings:
    """Returns the keys of a stream's source; `format_path` spells its paths."""
    written = survey.sources[stream]
    paths: Settings = {key: format_path(Path(str(written[key]))) for key in ("path", "root") if key in written}
    return {"kind": survey.kind, **written, **paths}
