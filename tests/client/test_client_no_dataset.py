"""What is no data set says what to write, to whatever asks it as one."""

from __future__ import annotations

import numpy as np
import pytest

from streamd.client.no_dataset import NoDataset
from streamd.errors import NoDatasetError


def test_torch_and_numpy_are_told_what_to_write_instead() -> None:
    with pytest.raises(NoDatasetError, match="loader"):
        NoDataset()[0]
    with pytest.raises(NoDatasetError, match=r"model\.fit\(fit_data\(stream\)\)"):
        np.asarray(NoDataset())
