"""What frameworks look for in a data set, and find refused with what to write instead."""

from __future__ import annotations

from typing import NoReturn

from streamd.errors import NoDatasetError


class NoDataset:
    """The base of what is handed to a framework by mistake in the place of a data set."""

    def __getitem__(self, place: object) -> NoReturn:
        """Refuses what torch's DataLoader asks of a data set."""
        raise NoDatasetError

    @property
    def __array__(self) -> NoReturn:
        """Refuses what Keras looks for in data that it does not know, and NumPy in anything."""
        raise NoDatasetError(
            "a stream is not an array: for Keras write  model.fit(fit_data(stream)), with fit_data of "
            "streamd.frameworks.keras; in a loop of your own read batch.images"
        )
