"""What a reload changes for each stream, and what its trainers are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.sample_specs import SPEC, some_spec

from streamd.core.spec import ImageSpec, LabelSpec, OrderId, PixelId, StreamSpec
from streamd.daemon.reload_plan import StreamChanges, plan_stream_changes

OTHER_ORDER = OrderId("f" * 32)
LABEL = SPEC.labels["label"]


def named(*specs: StreamSpec) -> dict[str, StreamSpec]:
    return {spec.name: spec for spec in specs}


def told(**changes: Any) -> str:
    """What the trainers of `train` hear when it changes so."""
    return plan_stream_changes(named(SPEC), named(some_spec(**changes))).changed["train"]


def with_label(label: LabelSpec) -> dict[str, LabelSpec]:
    return {**SPEC.labels, label.name: label}


def test_each_stream_is_compared_by_itself() -> None:
    kept, changed, removed, added = (some_spec(name=name) for name in ("kept", "changed", "removed", "added"))
    after = named(added, replace(changed, batch_size=5), kept)
    changes = plan_stream_changes(named(kept, changed, removed), after)
    assert (changes.kept, tuple(changes.changed), changes.added) == (("kept",), ("changed",), ("added",))
    assert tuple(changes.removed) == ("removed",)


def test_nothing_changes_when_nothing_did() -> None:
    assert plan_stream_changes(named(SPEC), named(some_spec())) == StreamChanges(("train",), {}, (), {})


def test_a_label_without_a_mean_is_the_same_again() -> None:
    nothing = LabelSpec("nothing", "float", mean=float("nan"), std=float("nan"))
    again = LabelSpec("nothing", "float", mean=float("nan"), std=float("nan"))
    specs = [named(some_spec(labels=with_label(label))) for label in (nothing, again)]
    assert plan_stream_changes(*specs).kept == ("train",)


def test_the_identity_of_the_pixels_is_not_known_yet_and_is_not_compared() -> None:
    assert plan_stream_changes(named(SPEC), named(some_spec(pixel_id=PixelId("")))).kept == ("train",)


@pytest.mark.parametrize(
    "change",
    [
        {"order_id": OTHER_ORDER, "seed": 4},
        {"images": {"image": ImageSpec(5, 8, 3)}},
        {"normalize": "unit"},
        {"bad_policy": "mask"},
        {"labels": with_label(replace(LABEL, counts=(61, 42)))},
    ],
    ids=str,
)
def test_a_change_that_a_trainer_would_see_ends_its_sessions(change: dict[str, Any]) -> None:
    changes = plan_stream_changes(named(SPEC), named(some_spec(**change)))
    assert (changes.kept, tuple(changes.changed)) == ((), ("train",))


@pytest.mark.parametrize(
    ("known", "says"),
    [({"relisted": {"train"}}, "its files were listed again"), ({"transformed": {"train"}}, "transform differs")],
    ids=["files listed again", "another transform"],
)
def test_new_files_and_another_transform_change_a_stream_whose_spec_is_the_same(
    known: dict[str, set[str]], says: str
) -> None:
    changes = plan_stream_changes(named(SPEC), named(some_spec()), **known)
    assert changes.changed == {
        "train": f"stream 'train' changed: {says}; subscribe again: its order is the same, and its tokens remain valid"
    }


def test_another_order_is_named_and_tokens_do_not_fit() -> None:
    assert told(order_id=OTHER_ORDER, batch_size=20) == (
        "stream 'train' has a different order now: batch_size was 10 and is 20; subscribe again to read it in the "
        "new order, from the beginning of an epoch: tokens of the old order are not valid for it"
    )


def test_tokens_fit_when_the_order_is_the_same() -> None:
    assert told(images={"image": ImageSpec(6, 8, 3)}, bad_policy="mask") == (
        "stream 'train' changed: image differs; bad_samples.policy was substitute and is mask; subscribe again: its "
        "order is the same, and its tokens remain valid"
    )


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (("cat", "dog", "emu"), "'emu' came"),
        (("cat",), "'dog' went"),
        (("cat", "emu"), "'emu' came, 'dog' went"),
        (("dog", "cat"), "their order"),
        (("cat", "dog", 1, 2, 3, 4, 5, 6, 7, 8), "1, 2, 3, 4, 5 and 3 more came"),
    ],
)
def test_classes_that_another_stream_brought_are_named(classes: tuple[int | str, ...], says: str) -> None:
    text = told(order_id=OTHER_ORDER, labels=with_label(replace(LABEL, classes=classes)))
    assert f"the classes of label 'label', which all streams share, have changed: {says}; subscribe" in text


def test_added_removed_and_retyped_labels_are_named() -> None:
    labels = {"label": replace(LABEL, type="string", classes=()), "new": LabelSpec("new", "int")}
    text = told(order_id=OTHER_ORDER, labels=labels)
    assert "label 'angle' is gone; label 'box' is gone" in text
    assert "label 'label' was of type category and is of type string; label 'new' is new" in text


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (["trains"], "; the daemon serves: trains; did you mean 'trains'?"),
        (["b", "a"], "; the daemon serves: b, a"),
    ],
)
def test_trainers_of_a_removed_stream_get_the_names_of_the_others(left: list[str], says: str) -> None:
    changes = plan_stream_changes(named(SPEC), named(*(some_spec(name=name) for name in left)))
    assert changes.removed == {"train": f"stream 'train' was removed from the daemon's configuration{says}"}
