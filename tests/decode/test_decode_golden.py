"""The golden digests: every kind of file, with all settings, with and without vector code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import simplejpeg
from golden import FILES, NUMPY_VECTOR_CODE, SETTINGS, current, differences, golden, opencv_vector_code

ROOT = Path(__file__).resolve().parents[2]
PINNED = {"simplejpeg": "1.9.0", "opencv-python-headless": "5.0.0.93", "pillow": "13.0.0"}
SIMD_SWITCHES = ("JSIMD_FORCENONE", "JSIMD_FORCESSE2", "JSIMD_FORCEAVX2")


def shown(*words: str, **environment: str) -> dict[str, Any]:
    """What the golden command says in a process with these variables."""
    command = [sys.executable, str(ROOT / "tests/decode/golden.py"), "--show", *words]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_golden_file_gives_the_recorded_pixels() -> None:
    found = {name: version(name) for name in PINNED}
    assert differences(current(), golden()) == [], f"written down with {PINNED}, made with {found}"


@pytest.mark.parametrize(
    "switch", [SIMD_SWITCHES[0], *(pytest.param(each, marks=pytest.mark.long) for each in SIMD_SWITCHES[1:])]
)
def test_jpegs_are_the_same_with_any_vector_code(switch: str) -> None:
    library = Path(simplejpeg._jpeg.__file__).read_bytes()
    assert switch.encode() in library, "this libjpeg-turbo knows no such switch, so nothing would be shown"
    assert differences(shown(**{switch: "1"})["digests"], golden()) == []


@pytest.mark.long
def test_resampling_is_the_same_without_vector_code() -> None:
    assert opencv_vector_code() != [], "there is none here, so nothing would be shown"
    found = shown(OPENCV_CPU_DISABLE=",".join(opencv_vector_code()))
    assert found["opencv"] == []
    assert differences(found["digests"], golden()) == []


@pytest.mark.long
def test_webps_are_the_same_without_vector_code() -> None:
    found = shown("--plain-webp")
    assert found["webp_asked"] > 0
    assert differences(found["digests"], golden()) == []


@pytest.mark.long
def test_deep_levels_are_the_same_without_numpys_vector_code() -> None:
    found = shown(NPY_DISABLE_CPU_FEATURES=" ".join(NUMPY_VECTOR_CODE))
    assert found["numpy"] == []
    assert differences(found["digests"], golden()) == []


def test_a_decoder_that_is_a_few_levels_off_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = simplejpeg.decode_jpeg

    def hasty(*arguments: Any, **options: Any) -> Any:
        return exact(*arguments, **options, fastdct=True, fastupsample=True)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", hasty)
    changed = differences(current(), golden())
    assert any(line.startswith("baseline.jpg: other pixels under as stored RGB, ") for line in changed)
    assert all(".jpg" in line for line in changed)


def test_a_difference_names_the_file_and_the_settings() -> None:
    wanted = golden()
    first, second, third = sorted(wanted)[:3]
    found = {name: dict(digests) for name, digests in wanted.items()}
    found[first]["crop L exact"] = "0" * 16
    found["new.png"] = found.pop(second)
    assert differences(found, wanted) == sorted(
        [
            f"{first}: other pixels under crop L exact",
            f"{second}: the file is gone",
            "new.png: no digest is written down for it",
        ]
    )
    assert third in found


def test_the_golden_files_are_small() -> None:
    sizes = {file.name: file.stat().st_size for file in FILES.iterdir()}
    assert {name for name, size in sizes.items() if size >= 4096} == set()
    assert sum(sizes.values()) < 150 * 1024
    assert len(SETTINGS) == 14
