"""The worked examples of samples with several parts: they train, and get what loaders written by hand get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import records_page
from support.record_examples import (
    EXAMPLES_OF_RECORDS,
    FILES,
    FOLDER,
    RecordExample,
    prepare_example,
    run_ours,
    run_theirs,
)

import streamd
from streamd.config.load import load_config
from streamd.config.rules import list_unserved_settings

each_example = pytest.mark.parametrize("example", EXAMPLES_OF_RECORDS, ids=lambda example: example.name)


def test_no_example_is_left_out_and_none_lacks_a_file() -> None:
    found = {folder.name: sorted(path.name for path in folder.glob("*.*")) for folder in FOLDER.iterdir()}
    assert found == {example.name: list(FILES) for example in EXAMPLES_OF_RECORDS}


@each_example
def test_the_programs_of_an_example_compile(example: RecordExample) -> None:
    for name in FILES[1:]:
        compile((example.folder / name).read_text(), name, "exec")


@each_example
def test_the_configuration_of_an_example_is_served(example: RecordExample) -> None:
    config = load_config(example.folder / "config.yaml")
    assert list_unserved_settings(config) == []
    assert list(config.streams)[:2] == ["train", "validation"]


def test_the_page_of_the_examples_is_that_of_its_generator() -> None:
    assert records_page.PAGE.read_text() == records_page.build_page()
    drawn = {path.stem for path in records_page.PICTURES.iterdir()}
    assert drawn == {example.name for example in EXAMPLES_OF_RECORDS} == set(records_page.CHAPTERS)


def test_lines_of_code_are_counted_without_comments_blank_lines_and_docstrings() -> None:
    text = '"""A program.\n\nOf two lines."""\n\nx = """a\nb"""\n# nothing\ny = f(  # why\n    1,\n)\n'
    assert records_page.find_code_lines(text) == {5, 6, 8, 9, 10}


@pytest.mark.train
@pytest.mark.timeout(240)  # two trainings, each of which takes twenty seconds on an idle machine
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, beside NumPy 2
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed:UserWarning")  # Keras, of a dataset that shuffles
@each_example
def test_an_example_learns_and_its_streams_give_what_the_loader_by_hand_gives(
    example: RecordExample, tmp_path: Path
) -> None:
    with prepare_example(example, tmp_path):
        ours = run_ours(example)
        loss = ours["history"].history["loss"]
        assert loss[-1] < 0.7 * loss[0]
        guess, figure = example.guess(tmp_path), example.measure(ours)
        assert example.compute_progress(figure, guess) > example.enough, f"{example.measured} {figure}, guess {guess}"
        compare_batches(example, run_theirs(example)["validation"])


def compare_batches(example: RecordExample, theirs: Any) -> None:
    """Compares the validation stream with that of the loader by hand, batch by batch."""
    import keras  # noqa: PLC0415 - takes seconds

    from streamd.frameworks.keras import fit_data  # noqa: PLC0415 - as above

    with streamd.connect() as client:
        for mine, other in zip(fit_data(client.subscribe("validation")), theirs, strict=True):
            pixels, targets = (keras.tree.flatten(each) for each in mine)
            their_pixels, their_targets = (keras.tree.flatten(each) for each in other)
            for one, two in zip(pixels, their_pixels, strict=True):
                assert np.dtype(one.dtype.name) == np.dtype(two.dtype.name)
                if example.levels is not None:
                    assert np.abs(np.asarray(one, np.float64) - np.asarray(two, np.float64)).max() <= example.levels
            for one, two in zip(targets, their_targets, strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=0, atol=1e-4)
