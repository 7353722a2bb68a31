"""A transform is loaded from beside the configuration, unchanged, or refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageFile
from support.transform_programs import Write

from streamd.dataset.transform_source import find_transform_source
from streamd.errors import ConfigError
from streamd.worker.transforms import Function, format_user_error, load_transform


def loaded(folder: Path, text: str = "augment:f") -> Function:
    return load_transform(find_transform_source(text, folder))


def written_and_loaded(program: Write, source: str) -> Function:
    """The function `f` of a module `augment` with this source."""
    return loaded(program("augment", source).parent)


def test_the_function_beside_the_configuration_is_loaded(program: Write) -> None:
    assert written_and_loaded(program, "def f(image, labels, rng): return image, labels")(1, {}, None) == (1, {})


def test_modules_beside_the_transform_are_importable(program: Write) -> None:
    program("helper_of_it", "WORD = 'beside'")
    assert written_and_loaded(program, "import helper_of_it\ndef f(*_): return helper_of_it.WORD")(0, {}, 0) == "beside"


@pytest.mark.parametrize("name", ["colorsys", "itertools"])
def test_a_module_beside_the_configuration_that_is_named_like_a_library_is_refused(program: Write, name: str) -> None:
    program(name, "raise SystemExit('a library of Python is hidden')")
    with pytest.raises(ConfigError, match=rf"{name}\.py is hidden by .*, which is a library: rename your file"):
        written_and_loaded(program, f"import {name}\ndef f(*_): pass")


def test_a_package_beside_that_a_library_hides_is_refused(program: Write) -> None:
    program("json/__init__", "")
    folder = program("json/decoder", "def f(*_): pass").parent.parent
    with pytest.raises(ConfigError, match=r"is hidden by .*json/"):
        loaded(folder, "json.decoder:f")


def test_a_file_named_like_a_library_may_be_the_transform(program: Write) -> None:
    folder = program("json", "def f(*_): return 'not the library'").parent
    assert loaded(folder, "json:f")(0, {}, 0) == "not the library"
    assert sys.modules["json"].__file__ != str(folder / "json.py")


def test_a_module_of_a_package_and_one_that_is_installed_are_importable(program: Write) -> None:
    program("package_of_it/__init__", "")
    folder = program("package_of_it/inner", "def f(*_): return __name__").parent.parent
    assert loaded(folder, "package_of_it.inner:f")(0, {}, 0) == "package_of_it.inner"
    assert loaded(folder, "json.decoder:py_scanstring").__module__ == "json.decoder"


def test_two_functions_of_a_module_share_its_globals(program: Write) -> None:
    folder = program("augment", "seen = []\ndef f(*_): seen.append(1)\ndef g(*_): return len(seen)").parent
    loaded(folder)(0, {}, 0)
    assert loaded(folder, "augment:g")(0, {}, 0) == 1


def test_no_compiled_file_is_left_beside_it(program: Write) -> None:
    program("helper_of_it", "")
    folder = program("augment", "import helper_of_it\ndef f(*_): pass").parent
    loaded(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["augment.py", "helper_of_it.py"]


def test_a_source_that_was_changed_since_it_was_read_is_not_run(program: Write) -> None:
    folder = program("augment", "def f(*_): pass").parent
    place = find_transform_source("augment:f", folder)
    program("augment", "raise SystemExit('it ran')")
    with pytest.raises(ConfigError, match=r"'augment' was changed .*SIGHUP"):
        load_transform(place)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def g(*_): pass", "module 'augment' has no function 'f'; it has 'g'"),
        ("f = 3", "module 'augment' has no function 'f', nor any other"),
        ("\ndef f(", r"SyntaxError at augment\.py:2: '\(' was never closed"),
        ("import nothing_of_the_kind", r"ModuleNotFoundError at augment\.py:1: No module named 'nothing_of_the_kind'"),
        ("\n\n1 / 0", r"ZeroDivisionError at augment\.py:3: division by zero"),
        ("raise SystemExit", r"SystemExit at augment\.py:1$"),
    ],
)
def test_an_import_error_is_reported_with_its_line(program: Write, source: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        written_and_loaded(program, source)


def test_a_module_that_failed_is_imported_again_when_it_is_fixed(program: Write) -> None:
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        written_and_loaded(program, "1 / 0")
    assert written_and_loaded(program, "def f(*_): return 1")(0, {}, 0) == 1


def test_a_missing_function_is_refused_with_the_similar_one(program: Write) -> None:
    folder = program("augment", "def flip(*_): pass").parent
    with pytest.raises(ConfigError, match="did you mean 'flip'"):
        load_transform(replace(find_transform_source("augment:flip", folder), function="flp"))


def test_an_error_in_a_library_is_reported_by_the_line_that_called_it(program: Write) -> None:
    folder = program("augment", "import json\n\ndef f(*_):\n    json.loads('{')").parent
    function = loaded(folder)
    with pytest.raises(ValueError, match="Expecting") as caught:
        function(0, {}, 0)
    assert format_user_error(caught.value, folder).startswith("JSONDecodeError at augment.py:4: Expecting")


def test_site_packages_in_the_folder_count_as_libraries(program: Write) -> None:
    program("site-packages/library_of_it", "def fail(): raise ValueError(1)")
    folder = program(
        "augment",
        """
        import importlib.util
        from pathlib import Path
        spec = importlib.util.spec_from_file_location("l", Path(__file__).parent / "site-packages/library_of_it.py")
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
        def f(*_):
            library.fail()
        """,
    ).parent
    with pytest.raises(ValueError, match="1") as caught:
        loaded(folder)(0, {}, 0)
    assert format_user_error(caught.value, folder) == "ValueError at augment.py:8: 1"


def test_an_error_without_a_message_or_line_is_reported_by_its_type(tmp_path: Path) -> None:
    assert format_user_error(ValueError(), tmp_path) == "ValueError"
    assert format_user_error(ValueError("two\nlines"), tmp_path) == "ValueError: two lines"


@pytest.mark.fault("28", "a transform that loosens Pillow")
@pytest.mark.parametrize("switch", ["ImageFile.LOAD_TRUNCATED_IMAGES = True", "Image.MAX_IMAGE_PIXELS = None"])
def test_a_module_that_loosens_the_decoder_is_refused_and_the_decoder_is_as_it_was(program: Write, switch: str) -> None:
    before = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS
    text = f"from PIL import Image, ImageFile\n{switch}\ndef f(*_): pass"
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"'augment' sets PIL.{switch.partition(' ')[0]} when it is imported"):
            written_and_loaded(program, text)
        assert before == (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS)
