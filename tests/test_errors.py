"""One tree of errors, whose messages carry the facts and say what to do."""

from __future__ import annotations

from typing import Final

import pytest

from streamd import errors
from streamd.errors import (
    BatchesHeldError,
    ConfigError,
    ConnectError,
    DataAwayError,
    ForkedClientError,
    MissingExtraError,
    NoDatasetError,
    NoDatasetMethodError,
    NoSkippingError,
    RefusedError,
    StreamChangedError,
    StreamdError,
    StreamStoppedError,
    TokenError,
    suggest_name,
)

ALL: Final = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
MISTAKES: Final = {
    ConfigError,
    DataAwayError,
    MissingExtraError,
    NoDatasetError,
    NoDatasetMethodError,
    NoSkippingError,
    RefusedError,
    TokenError,
}


def test_every_error_is_a_streamd_error_and_stands_in_the_tree_of_the_docstring() -> None:
    assert errors.__doc__ is not None
    assert [error for error in ALL if not issubclass(error, StreamdError)] == []
    drawn = {error.__name__ for error in ALL if error.__name__ in errors.__doc__}
    assert drawn == {error.__name__ for error in ALL} - {"MissingExtraError"}


@pytest.mark.parametrize("error", ALL)
def test_a_mistake_in_what_was_asked_ends_a_command_with_2_and_a_failure_with_1(error: type[StreamdError]) -> None:
    assert error.exit_status == (2 if error in MISTAKES else 1)


def test_narrower_errors_are_caught_as_their_wider_ones() -> None:
    assert issubclass(TokenError, RefusedError)
    assert issubclass(StreamChangedError, StreamStoppedError)
    assert issubclass(MissingExtraError, ConfigError)


def test_a_missing_library_names_the_command_that_installs_it() -> None:
    error = MissingExtraError("h5py", "hdf5", "reading HDF5")
    assert str(error) == "reading HDF5 needs h5py, which is not installed: run  pip install 'streamd-loader[hdf5]'"
    assert (error.library, error.extra) == ("h5py", "hdf5")


def test_a_failed_connection_names_the_endpoint_and_the_reason() -> None:
    error = ConnectError("ipc:///run/streamd.sock", "nobody listens")
    assert error.endpoint == "ipc:///run/streamd.sock"
    assert "ipc:///run/streamd.sock: nobody listens" in str(error)


def test_held_batches_are_counted_whole_and_named_as_far_as_a_line_goes() -> None:
    error = BatchesHeldError((1, index) for index in range(20))
    assert error.held == tuple((1, index) for index in range(20))
    assert str(error).startswith("20 batches")
    assert "1:7)" in str(error)
    assert "1:8" not in str(error)


def test_a_forked_client_says_where_to_connect() -> None:
    assert "in the child" in str(ForkedClientError())


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [("trian", "; did you mean 'train'?"), ("valid", "; did you mean 'validation'?"), ("xyz", ""), ("", "")],
)
def test_a_near_name_is_offered_and_a_far_one_is_not(wanted: str, hint: str) -> None:
    assert suggest_name(wanted, ["train", "validation"]) == hint


def test_there_is_no_near_name_among_none() -> None:
    assert suggest_name("train", []) == ""
