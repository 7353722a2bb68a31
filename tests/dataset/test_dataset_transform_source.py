"""Finding the module of a transform, and the digest of its source and imports."""

from __future__ import annotations

import sys

import pytest
from support.transform_programs import Write

from streamd.dataset.transform_source import compute_source_digest, find_module_file, find_transform_source
from streamd.errors import ConfigError


def test_a_module_beside_the_configuration_is_found_without_being_run(program: Write) -> None:
    folder = program("augment", "raise SystemExit('it ran')").parent
    place = find_transform_source("augment:flip", folder)
    assert (place.module, place.function, place.folder) == ("augment", "flip", str(folder))
    assert place.digest == compute_source_digest("augment", folder)


@pytest.mark.parametrize(
    "line",
    [
        "import helper",
        "import helper as other",
        "from helper import thing",
        "def later(): import helper",
        "from package.inner import thing",
        "from package import inner",
        "import package.inner",
        "import middle",
    ],
)
def test_the_digest_covers_imports_from_the_folder_to_any_depth(program: Write, line: str) -> None:
    folder = program("augment", line).parent
    program("middle", "import helper")
    program("package/__init__", "")
    program("package/inner", "from . import nearest\nfrom .. import beyond")
    program("package/nearest", "import helper")
    program("helper", "thing = 1")
    before = compute_source_digest("augment", folder)
    program("stranger", "thing = 2")
    assert compute_source_digest("augment", folder) == before
    program("helper", "thing = 2")
    assert compute_source_digest("augment", folder) != before


def test_modules_that_import_each_other_have_digests(program: Write) -> None:
    program("one", "import two")
    folder = program("two", "import one").parent
    assert compute_source_digest("one", folder) != compute_source_digest("two", folder)


def test_the_digest_of_a_module_covers_its_package(program: Write) -> None:
    init = program("package/__init__", "")
    folder = program("package/inner", "def f(): pass").parent.parent
    before = compute_source_digest("package.inner", folder)
    init.write_text("import sys")
    assert compute_source_digest("package.inner", folder) != before
    assert find_module_file("package", folder) == init


def test_an_installed_module_is_found_in_its_package_without_importing_that(
    program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = program("augment", "").parent
    monkeypatch.delitem(sys.modules, "xml.sax.xmlreader", raising=False)
    assert compute_source_digest("xml.sax.xmlreader", folder) != compute_source_digest("xml.sax", folder)
    assert "xml.sax.xmlreader" not in sys.modules


@pytest.mark.parametrize("name", ["augmet", "xml.nothing", "augment.inner", "__main__.f"])
def test_a_missing_module_is_refused_by_name(program: Write, name: str) -> None:
    folder = program("augment", "").parent
    with pytest.raises(ConfigError, match=f"there is no module '{name}' in .*beside"):
        find_transform_source(f"{name}:f", folder)


def test_a_misspelt_module_is_answered_with_the_similar_one(program: Write) -> None:
    folder = program("augment", "").parent
    with pytest.raises(ConfigError, match="did you mean 'augment'"):
        find_transform_source("augmnet:f", folder)


def test_a_file_with_a_syntax_error_has_a_digest(program: Write) -> None:
    folder = program("augment", "def broken(").parent
    assert find_transform_source("augment:broken", folder).digest


def test_the_function_is_a_part_of_the_version_and_the_folder_is_not(program: Write) -> None:
    folder = program("augment", "").parent
    one, two = find_transform_source("augment:one", folder), find_transform_source("augment:two", folder)
    assert one.source_version != two.source_version
    copy = folder.parent / "copy"
    copy.mkdir()
    (copy / "augment.py").write_text("")
    assert find_transform_source("augment:one", copy).source_version == one.source_version
