"""All errors that streamd raises, in one tree:

    StreamdError
    ├── ConfigError           the configuration, or the data it names, cannot be used
    │   ├── NoDatasetError        a stream is used as a dataset
    │   ├── NoDatasetMethodError  a method of tf.data.Dataset is called on fit_data
    │   ├── NoSkippingError       a loader was to skip steps before it was told where the training is
    │   └── DataAwayError         the data of a stream are missing, perhaps for a while
    ├── ConnectError          no daemon answers
    │   └── ClosedError           the stream or the client is closed
    ├── RefusedError          the daemon refuses a request: unknown stream, too little memory, ...
    │   └── TokenError            the token belongs to other data or another order, or is damaged
    ├── StreamStoppedError    the daemon stopped a stream while it was read
    │   └── StreamChangedError    its configuration changed
    ├── BatchesHeldError      the caller holds every batch it may hold
    ├── NoCopyError           a client, a stream or its adapter was to be pickled or copied
    ├── ReceiptError          an epoch was not delivered exactly once
    ├── LossError             the loss became NaN or infinite during training
    ├── HostError             a command of the host, such as systemctl, failed
    ├── OutputExistsError     the file to write exists already, or would be inside the data
    ├── PackError             a pack was not finished; the next run continues it
    ├── ForkedClientError     a client is used in a child process after fork
    ├── OtherPixelsError      workers decode the same file to different pixels; the daemon exits
    ├── BrokenRuleError       the daemon's own state contradicts itself; the daemon exits
    └── ProtocolError         the other side sent a message that cannot be decoded
        └── OtherVersionError     the other side speaks another protocol version

Messages say what to do. `exit_status` is the exit status of a command: 2 for a mistake in its arguments or settings, 1
for a failure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final, Self

DISTRIBUTION: Final = "streamd-loader"  # the name on PyPI, where `streamd` is another project


class StreamdError(Exception):
    """The base class of all errors that streamd raises."""

    exit_status = 1

    def copy_without_traceback(self) -> Self:
        """Returns the same error without a traceback, to raise an error that stays stored.

        A stored error that is raised itself keeps the frames that it passed through, and with them the batch that a
        loop held.
        """
        # Not by copy.copy, which would call __init__ with the finished message.
        copy = self.__class__.__new__(self.__class__, *self.args)
        copy.__dict__.update(self.__dict__)
        if self.__cause__ is not None:
            copy.__cause__ = self.__cause__
        return copy


class ConfigError(StreamdError):
    """The configuration, or the data that it refers to, cannot be used."""

    exit_status = 2


class MissingExtraError(ConfigError):
    """A library is missing that an extra of streamd installs."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        self.library, self.extra = library, extra
        super().__init__(f"{purpose} needs {library}, which is not installed: run  {format_install_command(extra)}")


class DataAwayError(ConfigError):
    """The data of a stream are not in their listed place, for example because a file system is not mounted."""


class NoDatasetError(ConfigError):
    """A stream is used as a dataset: it was indexed by sample.

    DataLoader recreates this error in its own process from the text of the error that its worker raised, so `message`
    alone must be enough to create it.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(
            message
            or "a stream is not a dataset for DataLoader: it comes shuffled, in whole batches, from workers of its "
            "own. Put streamd.frameworks.torch.loader(stream) in place of the DataLoader, not inside it"
        )


class NoDatasetMethodError(ConfigError, AttributeError):
    """A method of tf.data.Dataset is called on what `fit_data` returned. `hasattr` answers no."""


class NoSkippingError(ConfigError, AttributeError):
    """Steps of a loader were to be skipped, as when a training resumes, before it was told where that training was.

    An AttributeError, since it is raised by an attribute that no loader has otherwise.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"the loader of stream {stream!r} skips no steps: it goes on at a position. In a loop of your own write  "
            "loader.load_state_dict(state)  with what  loader.state_dict()  returned, as  "
            "accelerator.register_for_checkpointing(loader)  does; give a Trainer of transformers  "
            "callbacks=[StreamCallback()]  of streamd.frameworks.transformers, from its first step on"
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
    """A token belongs to another stream, to another order of the samples, or is damaged."""


class StreamStoppedError(StreamdError):
    """The daemon stopped a stream, and reading further would not help."""


class StreamChangedError(StreamStoppedError):
    """The stream's configuration changed while a trainer was reading the stream."""


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
            bound, remedy = f"of {ended} subscriptions that have ended, which is the limit for one trainer", ""
        super().__init__(
            f"{'1 batch is' if len(self.held) == 1 else f'{len(self.held)} batches are'} still held (epoch:index "
            f"{names}{before}), {bound}: drop the arrays and tensors taken from them, and keep batch.copy() or "
            f"images.clone() instead{remedy}"
        )


class NoCopyError(StreamdError):
    """Something that belongs to this process was to be pickled or copied."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} belongs to this process, and can be neither pickled nor copied: {remedy}")


class ReceiptError(StreamdError):
    """An epoch ended, and its receipt shows that not every batch arrived exactly once."""


class LossError(StreamdError):
    """The loss became NaN or infinite during training, and so did the weights."""


class PackError(StreamdError):
    """A pack could not be finished. No file was written to its destination."""


class OutputExistsError(StreamdError):
    """A command must not write its file to this place: a file exists there, or the place is inside the data."""


class HostError(StreamdError):
    """A command of the host, such as systemctl, failed while the service was installed or removed."""


class ForkedClientError(StreamdError):
    """A client that was created before fork() is used in the child process."""

    def __init__(self) -> None:
        super().__init__(
            "this client was created in the parent process: call streamd.connect() after fork, in the child"
        )


class OtherPixelsError(StreamdError):
    """Workers decode the same file to different pixels: a library or the processor changed between their starts.

    After a restart, all workers of the daemon are of one kind again.
    """


class BrokenRuleError(StreamdError):
    """The daemon's state breaks one of its own rules, so the daemon can no longer trust that state."""

    def __init__(self, rule: str, facts: str) -> None:
        self.rule = rule
        super().__init__(
            f"rule {rule} does not hold: {facts}. This is a fault in streamd; please report it and include this line. "
            "The daemon stops here; restart it, and every trainer will continue where it was"
        )


class ProtocolError(StreamdError):
    """A message could not be decoded; its sender is faulty or hostile."""


class OtherVersionError(ProtocolError):
    """The sender speaks another version of the protocol."""

    def __init__(self, theirs: int, ours: int) -> None:
        self.theirs, self.ours = theirs, ours
        super().__init__(
            f"the other side speaks protocol version {theirs}, but this side speaks {ours}: install the same streamd "
            "for daemon and trainer, and restart both"
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
