"""Waiting for descriptors with what Linux has, and with what other systems have."""

from __future__ import annotations

import os
import select
import socket

import pytest

from streamd.client.leases import DescriptorPoller, WakeSignal


@pytest.fixture(params=["linux", "others"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "others":
        monkeypatch.delattr(os, "eventfd")
        monkeypatch.delattr(select, "epoll")


@pytest.mark.usefixtures("system")
def test_a_signal_wakes_once_however_often_it_is_given() -> None:
    signal = WakeSignal()
    poller = DescriptorPoller([signal.descriptor])
    assert poller.poll(0) == []
    for _ in range(3):
        signal.wake()
    assert poller.poll(None) == [signal.descriptor]
    signal.clear()
    assert poller.poll(0) == []
    poller.close()


@pytest.mark.usefixtures("system")
def test_a_signal_that_nobody_clears_never_blocks() -> None:
    signal = WakeSignal()
    for _ in range(100_000):
        signal.wake()
    assert DescriptorPoller([signal.descriptor]).poll(0) == [signal.descriptor]


@pytest.mark.usefixtures("system")
def test_only_readable_descriptors_are_reported() -> None:
    ours, theirs = socket.socketpair()
    signal = WakeSignal()
    with ours, theirs:
        poller = DescriptorPoller([ours.fileno(), signal.descriptor])
        theirs.send(b"x")
        assert poller.poll(1) == [ours.fileno()]
        poller.close()
