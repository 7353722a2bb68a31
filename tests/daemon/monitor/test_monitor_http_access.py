"""Who may see samples."""

from __future__ import annotations

import re

import pytest

from streamd.daemon.monitor.http_access import create_token, is_authorized


def test_only_the_token_opens() -> None:
    assert is_authorized("Bearer secret", "secret")


@pytest.mark.parametrize(
    "header",
    [None, "", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret ", "bearer secret", "Bearer sécret"],
)
def test_nothing_else_does(header: str | None) -> None:
    assert not is_authorized(header, "secret")


def test_each_token_is_another_fit_for_an_address() -> None:
    tokens = {create_token() for _ in range(9)}
    assert len(tokens) == 9
    assert all(re.fullmatch(r"[\w-]{32}", token, re.ASCII) for token in tokens)
