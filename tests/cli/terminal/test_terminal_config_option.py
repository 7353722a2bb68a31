"""`--size`, as people write it."""

from __future__ import annotations

import pytest

from streamd.cli.terminal.config_option import parse_size_option
from streamd.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"), [(None, None), ("128", (128, 128)), ("66x200", (66, 200)), (" 66X200", (66, 200))]
)
def test_a_size_is_a_number_or_height_and_width(text: str | None, size: tuple[int, int] | None) -> None:
    assert parse_size_option(text) == size


@pytest.mark.parametrize("text", ["", "0", "12x", "12x0", "-3", "12,13", "1.5", "٣"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 128 or 66x200"):
        parse_size_option(text)
