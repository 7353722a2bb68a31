"""What everybody in a simulation shares: one clock, one dice, one story, one network, one data set."""

from __future__ import annotations

import random
from dataclasses import dataclass

from story import Story
from synthetic import Synthetic
from virtual_network import Network
from virtual_time import Agenda


@dataclass(frozen=True, slots=True)
class Hardware:
    """`slots` of memory; a batch takes a worker about `decode_s`."""

    slots: int
    workers: int
    decode_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Where it all happens."""

    agenda: Agenda
    rng: random.Random
    story: Story
    network: Network
    data: Synthetic
    hardware: Hardware
