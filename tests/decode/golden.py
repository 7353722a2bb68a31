"""The golden digests: what the decoder makes of every golden file, under every setting.

    PYTHONPATH=tests python tests/decode/golden.py --show

    --show       prints the digests of this installation, and which vector code it had
    --digests    writes them to golden.json: only after a change of pixels that is wanted
    --files      writes the files again, and then the digests

`--show --plain-webp` does without libwebp's vector code.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from pathlib import Path

import cv2
from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]  # untyped, and nothing else tells
    __cpu_dispatch__,
    __cpu_features__,
)
from support.smooth_pictures import decoded

from streamd.core.spec import ImageSpec, Resize

HERE = Path(__file__).resolve().parent
FILES = HERE / "golden"
DIGESTS = HERE / "golden.json"

Digests = dict[str, dict[str, str]]
RESIZES: tuple[Resize, ...] = ("stretch", "crop", "pad")
MODES = (("RGB", 3), ("L", 1))
NUMPY_VECTOR_CODE: list[str] = list(__cpu_dispatch__)

# One target as large as most of the files, one that every resize must work for: smaller, of other proportions, odd.
SETTINGS = {"as stored RGB": ImageSpec(24, 32, 3), "as stored L": ImageSpec(24, 32, 1)} | {
    f"{resize} {mode}{' exact' if exact else ''}": ImageSpec(19, 13, channels, resize, exact)
    for resize in RESIZES
    for mode, channels in MODES
    for exact in (False, True)
}


def digest(data: bytes, image: ImageSpec) -> str:
    return hashlib.blake2b(decoded(data, image).tobytes(), digest_size=8).hexdigest()


def current() -> Digests:
    """The digests that this installation makes of the files that are kept."""
    return {
        file.name: {setting: digest(file.read_bytes(), image) for setting, image in SETTINGS.items()}
        for file in sorted(FILES.iterdir())
    }


def write_digests(found: Digests) -> None:
    """Writes them down, a file a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(digests)}" for name, digests in found.items())
    DIGESTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def golden() -> Digests:
    """The digests that were written down."""
    digests: Digests = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return digests


def differences(found: Digests, wanted: Digests) -> list[str]:
    """A line for every file whose pixels are not the golden ones, saying under which settings."""
    lines = [f"{name}: the file is gone" for name in wanted.keys() - found.keys()]
    lines += [f"{name}: no digest is written down for it" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        changed = [setting for setting in SETTINGS if found[name].get(setting) != wanted[name].get(setting)]
        if changed:
            lines.append(f"{name}: other pixels under {', '.join(changed)}")
    return sorted(lines)


def opencv_vector_code() -> list[str]:
    """What OpenCV chooses from here; it marks what it may choose, and what it may but cannot."""
    words = cv2.getCPUFeaturesLine().split()
    return [word[1:] for word in words if word.startswith("*") and not word.endswith("?")]


class WebpAsked:
    """Answers libwebp's question what the processor can with "nothing", and counts how often it asks.

    It asks through a pointer to a function, before its first picture; there is no environment variable for it.
    """

    def __init__(self) -> None:
        self.times = 0
        self._answer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(self._nothing)  # kept for as long as it is called

    def answer(self) -> None:
        from PIL import _webp  # noqa: F401, PLC0415 - it maps the library that is looked for here

        maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
        library = next(word for word in maps if Path(word).name.startswith(("libwebp-", "libwebp.so")))
        pointer = ctypes.c_void_p.in_dll(ctypes.CDLL(library), "VP8GetCPUInfo")
        pointer.value = ctypes.cast(self._answer, ctypes.c_void_p).value

    def _nothing(self, _feature: int) -> int:
        self.times += 1
        return 0


def shown(*, plain_webp: bool) -> str:
    """As JSON: the digests, the vector code of NumPy and OpenCV that was on, how often libwebp asked for its own."""
    asked = WebpAsked()
    if plain_webp:
        asked.answer()
    numpy_on = [feature for feature in NUMPY_VECTOR_CODE if __cpu_features__[feature]]
    digests = current()
    return json.dumps(
        {"digests": digests, "numpy": numpy_on, "opencv": opencv_vector_code(), "webp_asked": asked.times}
    )


def main(words: list[str]) -> None:
    if "--files" in words:
        from golden_files import all_files  # noqa: PLC0415 - it needs every encoder, which the digests do not

        FILES.mkdir(exist_ok=True)
        for name, data in all_files().items():
            (FILES / name).write_bytes(data)
    if "--files" in words or "--digests" in words:
        write_digests(current())
    elif "--show" in words:
        sys.stdout.write(shown(plain_webp="--plain-webp" in words))
    else:
        sys.stdout.write(__doc__ or "")


if __name__ == "__main__":
    main(sys.argv[1:])
