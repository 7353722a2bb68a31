"""Changes of bytes and of values within formats: a seed repeats them, they reach the format, and checksums hold."""

from __future__ import annotations

import zlib
from random import Random

import msgspec
import pytest
from fuzz.image_targets import edit_tiff, list_image_seeds
from fuzz.mutations import MAX_CASE_BYTES, mutate
from fuzz.settings_targets import TARGETS as SETTINGS
from fuzz.source_targets import TARGETS as SOURCES
from fuzz.structures import build_msgpack_edit, edit_json, repair_manifest, repair_png, repair_tar

DATA = bytes(range(200)) + b" 12345 "
ROUNDS = 2000


def generator(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - a seed is wanted, no secret


def test_a_seed_repeats_a_mutation_and_most_mutations_change_something() -> None:
    changed = [mutate(generator(seed), DATA, DATA[::-1]) for seed in range(ROUNDS)]
    assert changed == [mutate(generator(seed), DATA, DATA[::-1]) for seed in range(ROUNDS)]
    assert sum(each != DATA for each in changed) > 0.9 * ROUNDS


@pytest.mark.parametrize("data", [b"", b"x", bytes(MAX_CASE_BYTES)])
def test_any_input_may_be_changed_and_none_grows_without_end(data: bytes) -> None:
    assert all(len(mutate(generator(seed), data, data)) <= MAX_CASE_BYTES for seed in range(200))


def test_an_edit_of_a_message_leaves_a_message_behind_the_header() -> None:
    edit, message = build_msgpack_edit(3), b"abc" + msgspec.msgpack.encode([1, "two", {"three": [4, 5]}, None])
    edited = [edit(generator(seed), message) for seed in range(ROUNDS)]
    assert {each[:3] for each in edited} == {b"abc"}
    assert len({repr(msgspec.msgpack.decode(each[3:])) for each in edited}) > ROUNDS // 10


def test_an_edit_of_json_is_json() -> None:
    edited = {edit_json(generator(seed), b'{"a": [1, {"b": "c"}], "d": 0.5}') for seed in range(ROUNDS)}
    assert all(msgspec.json.decode(each) is not msgspec.UNSET for each in edited)
    assert len(edited) > ROUNDS // 10


def test_what_is_no_value_of_the_format_stays_as_it_is() -> None:
    assert edit_json(generator(1), b"{not json") == b"{not json"
    assert build_msgpack_edit(0)(generator(1), b"\xc1") == b"\xc1"
    assert edit_tiff(generator(1), b"no tiff") == b"no tiff"


def test_repairs_leave_sound_files_alone_and_make_checksums_right_again() -> None:
    png = list_image_seeds("PNG")[0]
    wrong = png[:20] + b"\xff" + png[21:]
    assert repair_png(png) == png
    assert int.from_bytes(repair_png(wrong)[29:33]) == zlib.crc32(wrong[12:29])
    (tar, *_), (manifest, *_) = SOURCES["tar"].make_seeds(), SETTINGS["manifest"].make_seeds()
    assert repair_manifest(manifest) == manifest
    assert repair_manifest(b"short") == b"short"
    assert int(repair_tar(b"z" + tar[1:])[148:154], 8) == int(tar[148:154], 8) - tar[0] + ord("z")


def test_an_entry_of_a_tiff_is_changed_in_either_byte_order() -> None:
    little = next(each for each in list_image_seeds("TIFF") if each.startswith(b"II*\0"))
    big = next(each for each in list_image_seeds("TIFF") if each.startswith(b"MM\0*"))
    assert all(edit_tiff(generator(seed), each) != each for each in (little, big) for seed in (1, 2, 3))
