"""Plans what a new configuration changes in the streams that are served, and the reasons for their trainers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from streamd.core.spec import ImageSpec, StreamSpec
from streamd.core.text import format_list
from streamd.errors import suggest_name

SpecsByName = Mapping[str, StreamSpec]

_SHOWN_CLASSES = 5  # in a message; more would bury it


@dataclass(frozen=True, slots=True)
class StreamChanges:
    """Stream names by what a reload does to them. `changed` and `removed` hold the reason for the trainers of each."""

    kept: tuple[str, ...]
    changed: Mapping[str, str]
    added: tuple[str, ...]
    removed: Mapping[str, str]


def plan_stream_changes(
    before: SpecsByName, after: SpecsByName, relisted: Collection[str] = (), transformed: Collection[str] = ()
) -> StreamChanges:
    """Returns what a reload does to each stream.

    `relisted` streams have other files, though names and sizes are the same. `transformed` streams have another
    transform, or another version of it. A stream is kept when its trainers would see no difference. Its pixel identity
    is not compared: within one daemon it follows from `image` and the transform.
    """
    others, serves = {*relisted, *transformed}, f"; the daemon serves: {', '.join(after)}" if after else ""
    same = [
        name
        for name, spec in after.items()
        if name in before and name not in others and not before[name].differing_fields(spec)
    ]
    return StreamChanges(
        kept=tuple(same),
        changed={
            name: _format_change_reason(before[name], after[name], ["transform differs"] if name in transformed else [])
            for name in after
            if name in before and name not in same
        },
        added=tuple(name for name in after if name not in before),
        removed={
            name: f"stream {name!r} was removed from the daemon's configuration{serves}{suggest_name(name, after)}"
            for name in before
            if name not in after
        },
    )


def _format_change_reason(running: StreamSpec, written: StreamSpec, other_differences: list[str]) -> str:
    differences = [*_iterate_spec_differences(running, written), *other_differences]
    if running.order_id == written.order_id:
        what = "; ".join(differences) or "its files were listed again"
        return (
            f"stream {written.name!r} changed: {what}; subscribe again: its order is the same, and its tokens remain "
            "valid"
        )
    what = "; ".join([running.order_facts.describe_difference(written.order_facts), *differences])
    return (
        f"stream {written.name!r} has a different order now: {what}; subscribe again to read it in the new order, "
        "from the beginning of an epoch: tokens of the old order are not valid for it"
    )


def _iterate_spec_differences(running: StreamSpec, written: StreamSpec) -> Iterator[str]:
    """Yields the differences that trainers see besides the order, in the words of the configuration."""
    if _list_pixel_settings(running) != _list_pixel_settings(written):
        yield "image differs" if len({*running.images, *written.images}) == 1 else "images differ"
    elif (running.normalize, running.images) != (written.normalize, written.images):
        yield "normalize differs"
    if running.bad_policy != written.bad_policy:
        yield f"bad_samples.policy was {running.bad_policy} and is {written.bad_policy}"
    for name in sorted({*running.labels, *written.labels}):
        was, now = running.labels.get(name), written.labels.get(name)
        if was is None or now is None:
            yield f"label {name!r} is {'new' if was is None else 'gone'}"
        elif was.type != now.type:
            yield f"label {name!r} was of type {was.type} and is of type {now.type}"
        elif was.classes != now.classes:
            came, went = (
                [repr(each) for each in here if each not in there]
                for here, there in ((now.classes, was.classes), (was.classes, now.classes))
            )
            parts = [
                f"{format_list(some, _SHOWN_CLASSES)} {word}" for some, word in ((came, "came"), (went, "went")) if some
            ]
            what = ", ".join(parts) or "their order"
            yield f"the classes of label {name!r}, which all streams share, have changed: {what}"


def _list_pixel_settings(spec: StreamSpec) -> list[tuple[str, ImageSpec]]:
    """Returns the names and settings of the images, in their order, without what models apply."""
    return [(name, replace(image, normalize="none", range=None)) for name, image in spec.images.items()]
