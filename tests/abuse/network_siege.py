"""The scene of an attack from the network: a daemon that serves an address for other hosts, too.

Beside the trainers of the daemon's host, an honest one reads with a key of its own. It may lose its gate, and then goes
on where it was; the others must not notice.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attacker import ENVIRONMENT, Attacker
from logged import LoggedTrainer, running
from siege import STEPS, Record, Siege, besiege
from support.remote_daemon import RemoteKeys, find_address, find_network_gate
from users import ATTACKER, NEIGHBOUR, OWNER, User

RESUMED_STEPS: Final = STEPS  # that the remote trainer takes after each attack
KEYS: Final = {NEIGHBOUR: "honest", ATTACKER: "hostile"}


class NetworkSiege(Siege):
    """The scene. `keys` must be set before an attack, as `besiege_address` does."""

    keys: RemoteKeys
    curves: Mapping[User, Mapping[str, str]]
    remote: LoggedTrainer
    gates: set[int]

    def lay(self, keys: RemoteKeys, curves: Mapping[User, Mapping[str, str]]) -> None:
        """Notes the keys, and builds the trainer of another host."""
        self.keys, self.curves, self.gates = keys, curves, set()
        folder = self.place / "remote"
        folder.mkdir()
        NEIGHBOUR.own(folder)
        self.remote = LoggedTrainer(
            self.address, folder / "log", environment=ENVIRONMENT | self._name_keys(NEIGHBOUR),
            prefix=NEIGHBOUR.build_prefix(), epochs=None, until_told=True,
        )  # fmt: skip

    @property
    def address(self) -> str:
        """The address for other hosts."""
        return find_address(self.daemon)

    def _name_keys(self, user: User) -> dict[str, str]:
        curve = self.curves[user]
        return {"STREAMD_CURVE_SECRET": curve["secret"], "STREAMD_CURVE_SERVER": curve["server"]}

    def start_attacker(self, name: str, user: User = ATTACKER, *options: str) -> Attacker:
        """Starts an attacker at the address, or a busy loop; the caller ends it."""
        log = self.place / f"attacker-{next(self._numbers)}.log"
        return Attacker(name, self.address, log, user, options, self._name_keys(ATTACKER))

    def watch(self) -> None:
        super().watch()
        gate = find_network_gate(self.daemon)
        if gate is not None:
            self.gates.add(gate)

    def withstand(self, name: str, **orders: Any) -> None:
        """Attacks as Siege.withstand does; then the remote trainer goes on."""
        super().withstand(name, **orders)
        steps = self.remote.look()
        self.wait(lambda: self.remote.look() >= steps + RESUMED_STEPS, "the trainer of another host has gone on")

    def end(self, record: Record) -> None:
        """Judges the remote trainer, and then all that Siege.end does."""
        self.counts["gates seen"] = len(self.gates)
        self.remote.send(signal.SIGTERM)
        self.remote.finish()
        problems = self.remote.judge(self.truth).problems
        super().end(record)
        assert not problems, "; ".join(problems)


@contextlib.contextmanager
def besiege_address(**scene: Any) -> Iterator[NetworkSiege]:
    """Runs the scene; see `besiege`. The secret keys belong to their users."""
    place = Path(tempfile.mkdtemp(prefix="abuse-keys-"))
    place.chmod(0o711)
    try:
        keys = RemoteKeys(place / "keys")
        curves = {user: keys.add_client(name) for user, name in KEYS.items()}
        for path in [place / "keys", *(place / "keys").rglob("*")]:
            OWNER.own(path)
            path.chmod(0o755 if path.is_dir() else 0o600 if path.suffix == ".key_secret" else 0o644)
        for user, curve in curves.items():
            user.own(Path(curve["secret"]))
        with besiege(kind=NetworkSiege, settings={"curve": keys.config}, **scene) as siege:
            assert isinstance(siege, NetworkSiege)
            siege.lay(keys, curves)
            with running(siege.remote):
                siege.remote.wait_for(STEPS)
                yield siege
    finally:
        shutil.rmtree(place)
