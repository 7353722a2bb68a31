"""What a new configuration means for the streams that are served: who stays, who goes, and what trainers hear. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from streamd.core.spec import LabelSpec, StreamSpec
from streamd.errors import suggest_name

Specs = Mapping[str, StreamSpec]

_SHOWN_CLASSES = 5  # in a message; more would bury it


@dataclass(frozen=True, slots=True)
class Changes:
    """Streams by what becomes of them. `changed` and `removed` say what the trainers of each are told."""

    kept: tuple[str, ...]
    changed: Mapping[str, str]
    added: tuple[str, ...]
    removed: Mapping[str, str]


def compare(before: Specs, after: Specs, relisted: Collection[str] = (), transformed: Collection[str] = ()) -> Changes:
    """What becomes of each stream. `relisted`: those whose files are other ones, though names and sizes are the same.
    `transformed`: those with another transform, or another version of it.

    A stream is kept when its trainers would see no difference. The identity of its pixels is not asked: it follows from
    `image` and the transform, as long as one daemon lives.
    """
    others = {*relisted, *transformed}
    same = [name for name, spec in after.items() if name not in others and _is_same(before.get(name), spec)]
    return Changes(
        kept=tuple(same),
        changed={
            name: _new_version(before[name], after[name], ["transform differs"] if name in transformed else [])
            for name in after
            if name in before and name not in same
        },
        added=tuple(name for name in after if name not in before),
        removed={name: _taken_away(name, after) for name in before if name not in after},
    )


def needing_restart(running: Mapping[str, object], wanted: Mapping[str, object]) -> tuple[str, ...]:
    """The settings that are other ones now, by name; a daemon reads them when it starts."""
    return tuple(name for name, value in running.items() if wanted[name] != value)


def _is_same(was: StreamSpec | None, now: StreamSpec) -> bool:
    return was is not None and not was.differing_fields(now)


def _taken_away(name: str, served: Collection[str]) -> str:
    there = f"{suggest_name(name, served)}; served: {', '.join(served)}" if served else ""
    return f"stream {name!r} was taken out of the daemon's configuration{there}"


def _new_version(was: StreamSpec, now: StreamSpec, more: list[str]) -> str:
    differences = [*_differences(was, now), *more]
    if was.order_id == now.order_id:
        what = "; ".join(differences) or "its files were listed anew"
        return f"stream {now.name!r} changed: {what}; subscribe again: its order is the same, and tokens of it fit"
    what = "; ".join([was.order_facts.describe_difference(now.order_facts), *differences])
    return (
        f"stream {now.name!r} has another order now: {what}; subscribe again to read it as it is, from an epoch's "
        "beginning: tokens of the old order do not fit"
    )


def _differences(was: StreamSpec, now: StreamSpec) -> Iterator[str]:
    """What trainers see beside the order, in the words of the configuration."""
    if was.image != now.image:
        yield "image differs"
    if was.normalize != now.normalize:
        yield "normalize differs"
    if was.bad_policy != now.bad_policy:
        yield f"bad_samples.policy was {was.bad_policy} and is {now.bad_policy}"
    for name in sorted({*was.labels, *now.labels}):
        yield from _of_label(name, was.labels.get(name), now.labels.get(name))


def _of_label(name: str, was: LabelSpec | None, now: LabelSpec | None) -> Iterator[str]:
    if was is None or now is None:
        yield f"label {name!r} is {'new' if was is None else 'gone'}"
    elif was.type != now.type:
        yield f"label {name!r} was of type {was.type} and is of type {now.type}"
    elif was.classes != now.classes:
        came, went = (
            [repr(each) for each in here if each not in there]
            for here, there in ((now.classes, was.classes), (was.classes, now.classes))
        )
        parts = [f"{_some(some)} {word}" for some, word in ((came, "came"), (went, "went")) if some]
        yield f"the classes of label {name!r}, which all streams share, are others: {', '.join(parts) or 'their order'}"


def _some(classes: list[str]) -> str:
    more = len(classes) - _SHOWN_CLASSES
    return ", ".join(classes[:_SHOWN_CLASSES]) + (f" and {more} more" if more > 0 else "")
