"""All errors that streamd raises, in one tree:

    StreamdError
    ├── ConfigError           the configuration, or the data it names, cannot be used
    │   ├── NoDatasetError        a stream is used as a data set
    │   └── DataAwayError         the data of a stream are missing, and may come back
    ├── ConnectError          no daemon answers
    │   └── ClosedError           the stream or the client is closed
    ├── RefusedError          the daemon refuses a request: unknown stream, too little memory, ...
    │   └── TokenError            the token belongs to other data or another order, or is damaged
    ├── StreamStoppedError    the daemon stopped a stream while it was read
    │   └── StreamChangedError    its configuration changed
    ├── BatchesHeldError      the caller holds every batch it may hold
    ├── ReceiptError          an epoch's account does not add up
    ├── LossError             the loss of a training is no longer finite
    ├── HostError             a command of the host, such as systemctl, failed
    ├── OutputExistsError     a file that a command would write exists, or would be among the data
    ├── PackError             a pack was not finished; the next run continues it
    ├── ForkedClientError     a client is used after fork
    ├── OtherPixelsError      workers make different pixels of the same file: the daemon ends
    ├── BrokenRuleError       the daemon's own books do not agree: it ends
    └── ProtocolError         the other side sent a frame that makes no sense
        └── OtherVersionError     it runs another version of streamd

Messages say what to do. `exit_status` is the exit status of a command: 2 for a mistake in its arguments or settings, 1
for a failure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

DISTRIBUTION: Final = "streamd-loader"  # the name on PyPI, where `streamd` is another project


class StreamdError(Exception):
    """Anything streamd reports on purpose."""

    exit_status = 1


class ConfigError(StreamdError):
    """The configuration, or the data it points at, cannot be used as it stands."""

    exit_status = 2


class MissingExtraError(ConfigError):
    """A library that only an extra installs is not here."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        self.library, self.extra = library, extra
        super().__init__(f"{purpose} needs {library}, which is not installed: run  {format_install_command(extra)}")


class DataAwayError(ConfigError):
    """The data of a stream are not where they were listed, as on a file system that is not mounted."""


class NoDatasetError(ConfigError):
    """A stream is used as a data set: asked for a sample by number, or sent to another process.

    DataLoader creates it again in its own process from the text of the one that its worker raised; so `message` alone
    must be enough to create it.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(
            message
            or "a stream is not a dataset for DataLoader: it comes shuffled, in whole batches, from workers of its "
            "own. Put streamd.frameworks.torch.loader(stream) in the place of the DataLoader, not into it"
        )


class ConnectError(StreamdError):
    """No daemon answered at the endpoint in time."""

    def __init__(self, endpoint: str, why: str) -> None:
        self.endpoint = endpoint
        super().__init__(f"no streamd daemon at {endpoint}: {why}")


class ClosedError(ConnectError):
    """A stream or a client is used after it was closed."""

    def __init__(self, endpoint: str, why: str) -> None:
        self.endpoint = endpoint
        StreamdError.__init__(self, why)


class RefusedError(StreamdError):
    """The daemon refused a request and says why."""

    exit_status = 2


class TokenError(RefusedError):
    """A token does not fit the stream it is used with."""


class StreamStoppedError(StreamdError):
    """The daemon stopped a stream for a reason that reading on cannot cure."""


class StreamChangedError(StreamStoppedError):
    """The stream's configuration was changed while it was read."""


class BatchesHeldError(StreamdError):
    """`next()` cannot get a batch because the caller still holds every batch its credit allows."""

    def __init__(self, held: Iterable[tuple[int, int]], earlier: int = 0, *, ended: int = 0) -> None:
        """`held` are the (epoch, index) of the batches held.

        `earlier` of them are from before a seek, or from a connection or subscription that has ended. `ended` is the
        number of such subscriptions, given if there are too many of them, else 0.
        """
        self.held = tuple(held)
        names = ", ".join(f"{epoch}:{index}" for epoch, index in self.held[:8])
        before = f"; {earlier} of them from before a seek, a close or a lost connection" if earlier else ""
        bound, remedy = (
            "which is all that prefetch and the daemon's memory allow",
            ", or subscribe with a larger prefetch",
        )
        if ended:
            bound, remedy = f"of {ended} subscriptions that have ended, which is the most for one trainer", ""
        super().__init__(
            f"{'1 batch is' if len(self.held) == 1 else f'{len(self.held)} batches are'} still held (epoch:index "
            f"{names}{before}), {bound}: drop the arrays and tensors taken from them, keep batch.copy() or "
            f"images.clone() instead{remedy}"
        )


class ReceiptError(StreamdError):
    """An epoch ended and its account does not add up."""


class LossError(StreamdError):
    """The loss of a training is NaN or infinite, and so are the weights."""


class PackError(StreamdError):
    """A pack could not be finished. Nothing is at its place."""


class OutputExistsError(StreamdError):
    """A file that a command would write must not be written there."""


class HostError(StreamdError):
    """The host did not do what installing or removing the service needs."""


class ForkedClientError(StreamdError):
    """A client made before fork() is used in the child."""

    def __init__(self) -> None:
        super().__init__("this client was made in the parent process: call streamd.connect() after fork, in the child")


class OtherPixelsError(StreamdError):
    """Workers make different pixels: what they run on changed. Started anew, a daemon has workers of one kind."""


class BrokenRuleError(StreamdError):
    """A rule of the daemon's own does not hold: what it knows is not to be trusted any more."""

    def __init__(self, rule: str, facts: str) -> None:
        self.rule = rule
        super().__init__(
            f"rule {rule} does not hold: {facts}. This is a fault in streamd: report it with this line. The daemon "
            "ends rather than go on; start it again, and every trainer goes on where it is"
        )


class ProtocolError(StreamdError):
    """A frame could not be understood; the sender is broken or hostile."""


class OtherVersionError(ProtocolError):
    """The sender speaks another version of the protocol."""

    def __init__(self, theirs: int, ours: int) -> None:
        self.theirs, self.ours = theirs, ours
        super().__init__(
            f"protocol version {theirs} but this side speaks {ours}: install the same streamd for daemon and trainer, "
            "and restart both"
        )


def format_install_command(extra: str) -> str:
    """Returns the command that installs streamd with an extra; in an installation from a clone, it adds the extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def suggest_name(wanted: str, known: Iterable[str]) -> str:
    """Returns a hint such as `; did you mean 'train'?`, or "" if no name is similar; case is ignored."""
    spelled = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(wanted.casefold(), spelled, n=1, cutoff=0.5)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""


def format_open_failure(stream: str, reason: str) -> str:
    """Returns why a stream cannot be opened, preceded by its key path unless `reason` begins with one."""
    key = f"streams.{stream}"
    return reason if reason.startswith((f"{key}:", f"{key}.")) else f"{key}: cannot be opened: {reason}"
