"""Every error, refusal, trouble, event, fault and verdict, and what to do about each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final, get_args

from msgspec.structs import replace
from operations_table import code, table

from streamd import errors
from streamd.core.epoch_timing import EpochBottleneck
from streamd.core.log.events import EVENTS
from streamd.core.status import STATE_WORDS, DaemonStatus, SessionState, StreamStatus
from streamd.daemon.streams.quarantine import FAULT_KINDS
from streamd.errors import StreamdError
from streamd.ipc.messages import Refusal

# error: who meets it, what to do
ERRORS: Final[dict[str, tuple[str, str]]] = {
    "StreamdError": ("anybody", "As it says."),
    "ConfigError": (
        "commands, trainers",
        "Fix the line or argument that it names; docs/mistakes.md has most of these mistakes.",
    ),
    "MissingExtraError": (
        "commands, trainers",
        "Run the pip command that the message contains, in the same environment.",
    ),
    "DataAwayError": (
        "commands",
        "Mount or restore the data, or configure their new path; a running daemon waits for them.",
    ),
    "NoDatasetError": ("trainers on torch", "Put `torch.loader(stream)` in the DataLoader's place."),
    "NoDatasetMethodError": ("trainers on Keras", "Write what the message says in place of the method."),
    "NoSkippingError": (
        "trainers on Accelerate and transformers",
        "Let the loader go on at a saved position: `load_state_dict`, or `StreamCallback` in a Trainer.",
    ),
    "ConnectError": (
        "commands, trainers",
        "Start the daemon, or give its endpoint. Check that the user is in the group streamd.",
    ),
    "ClosedError": ("trainers", "Another part of the program closed it: connect again, or close it later."),
    "RefusedError": ("trainers", "See the refusals below."),
    "TokenError": (
        "trainers that resume",
        "Serve the stream as it was, use the token with the right stream, or start over without a token.",
    ),
    "StreamStoppedError": (
        "trainers",
        "`streamd status` says why; fix the cause, then start the trainers again from a checkpoint.",
    ),
    "StreamChangedError": ("trainers", "Follow the message: subscribe again, with the token if the order is the same."),
    "BatchesHeldError": ("trainers", "Drop views of batches, keep `batch.copy()` instead, or use a larger `prefetch`."),
    "NoCopyError": (
        "trainers",
        "Open the client or the stream anew in the process that needs it; save the position as a token.",
    ),
    "ReceiptError": ("trainers", "This must never happen: keep the logs of the daemon and the trainer, and report it."),
    "LossError": (
        "trainers",
        (
            "The cause is in the model or the data: the page of pictures shows the batch, and `blame` names the "
            "samples in it."
        ),
    ),
    "OutputExistsError": ("`streamd init`", "`--force` replaces the file, `-o` names another place."),
    "HostError": (
        "`streamd service`",
        "The message contains the output of the failed command: fix the cause, and run the streamd command again.",
    ),
    "PackError": ("`streamd pack`", "Free some disk space, then run the same command again."),
    "ForkedClientError": ("trainers that fork", "Call `streamd.connect()` in the child."),
    "OtherPixelsError": (
        "the daemon",
        "systemd restarts the daemon. A transform must depend only on image, labels and rng.",
    ),
    "BrokenRuleError": (
        "the daemon",
        "The daemon ends and is restarted, and trainers continue. Report the error with its line in the log.",
    ),
    "ProtocolError": (
        "trainers, commands",
        "Another program, or another version of streamd, uses the socket: see Upgrade.",
    ),
    "OtherVersionError": ("trainers, commands", "Install the same version of streamd on both sides, and restart both."),
}

# refusal: when the daemon says it, and what comes of it
REFUSALS: Final[dict[str, tuple[str, str]]] = {
    "unknown": (
        "no stream has that name",
        (
            "The trainer ends with an error that suggests the most similar name; a trainer that was reading ends with "
            "StreamChangedError."
        ),
    ),
    "memory": (
        "there is no memory for two batches of another trainer",
        (
            "A new trainer ends with an error that shows the calculation; a trainer that was reading asks again. Use "
            "more `memory`, or smaller batches."
        ),
    ),
    "token": ("the token belongs to another order, or is damaged", "The trainer ends; see TokenError."),
    "busy": (
        "the daemon is draining, has reached its limit of sessions, or one user has its share of them",
        "The trainer asks again by itself; a new trainer gives up after ten seconds.",
    ),
    "usage": ("an impossible rank, world, number of names, or another version", "The trainer ends: fix the program."),
}

# event: what to do
EVENT_ADVICE: Final[dict[str, str]] = {
    "cache.read_only": (
        "If two daemons share one cache, nothing. Otherwise make its folder writable, and restart the daemon."
    ),
    "cluster.away": "Is the cluster up, and `engine.address` right? The daemon joins it by itself when it is back.",
    "cluster.back": "",
    "daemon.draining": "",
    "daemon.drain_timeout": "Some trainer is stopped, or in a long step: it finds the next daemon by itself.",
    "daemon.failed": "Report it, unless it says that the installation changed.",
    "daemon.ready": "",
    "daemon.stopped": "",
    "daemon.stuck": "Report it, with the stacks that follow in the journal.",
    "data.absent": (
        "Mount the file system that it names, or correct the path and restart; the daemon continues by itself when "
        "the data are there."
    ),
    "data.away": (
        "Mount or restore the data: the stream continues by itself. If you changed them on purpose, restart with "
        "--rescan."
    ),
    "data.back": "",
    "epoch.finished": "Its `verdict` says what to make faster.",
    "log.held": "Look at the event that its field `of` names.",
    "log.unwritten": "Look for what stopped reading: a log driver that hangs, a full disk, Ctrl-S in a terminal.",
    "manifest.listing": (
        "Wait: listing ten million files takes a minute or, from a network disk with a cold cache, much longer."
    ),
    "manifest.made": "",
    "manifest.older": "If the labels changed, list the samples again: see the runbook.",
    "manifest.reused": "If files have changed since then, list the samples again: see the runbook.",
    "manifest.unlocked": (
        "Make the state folder writable, on a file system that supports locks; until then do not use `--rescan`."
    ),
    "manifest.waiting": "Wait: this daemon takes the list as soon as the other one has made it.",
    "monitor.failed": "The client does not speak HTTP, or has closed the connection. Usually nothing has to be done.",
    "monitor.open": "If you did not mean that: `monitor: 127.0.0.1:9191`.",
    "monitor.ready": "",
    "node.lost": "Ray's own logs say why. A node that comes back is used again.",
    "node.refused": "Mount the data there, or install the same versions. It is tried again every 15 s.",
    "node.serving": "",
    "node.silent": "Is the node overloaded, or its network slow? It gets work again with its next answer.",
    "notify.failed": (
        "No process reads from the NOTIFY_SOCKET in the daemon's environment: unset the variable, or start the daemon "
        "with systemd."
    ),
    "receipt.bad": "This must never happen: keep the logs of the daemon and the trainer, and report it.",
    "receipt.ok": "",
    "reload.began": "",
    "reload.done": "",
    "reload.failed": (
        "Fix the lines that it names, and reload again. Until then, the daemon serves what it served before."
    ),
    "reload.nothing": "Only a file can be reloaded: `streamd serve` or `streamd.local` was given data or a mapping.",
    "reload.restart_needed": "Restart at a convenient time: trainers continue after the restart.",
    "sample.bad": (
        "Replace or remove the file, and list the samples again when no training is running; until then, the sample "
        "stays bad."
    ),
    "sample.forgiven": (
        "Nothing: samples that are still bad will be found again. Verdicts on another list of samples do not count, "
        "and with `expect` only those on bytes that were read do."
    ),
    "sample.suspect": "Nothing yet: if a second worker dies at it, the sample counts as bad.",
    "session.began": "",
    "session.ended": "",
    "daemon.no_digest_process": (
        "Nothing, if it happens once: the process may have been ended for lack of memory. If it is repeated, the host, "
        "or TasksMax of the service, lets the daemon start no process: look for what has used up the tasks."
    ),
    "daemon.no_thread": (
        "The host, or TasksMax of the service, lets the daemon start no more threads. Trainers read on, but nobody "
        "looks whether data is back. Look for what has used up the tasks, which `systemctl status streamd` counts, or "
        "raise TasksMax."
    ),
    "endpoint.gone": (
        "Nothing, if the line says that it was made anew. Keep the endpoint and the state folder out of folders that "
        "something cleans, such as /tmp: see `listen` and STATE_DIRECTORY."
    ),
    "memory.beyond": "Set less `memory`, or allow the service more (MemoryMax=, or the container's limit).",
    "gate.ended": (
        "Nothing, if it happens now and then. The line names the user or the address, whose trainers have subscribed "
        "again by now. If it is repeated, a program of this user or on another host attacks the daemon, or is broken."
    ),
    "gate.no_bbr": "Run `modprobe tcp_bbr` and restart the daemon, if trainers come over a link that loses packets.",
    "gate.ready": "",
    "session.refused": "See the refusals.",
    "starter.remark": "Follow the message. `streamd init` writes the configuration to a file, which you can change.",
    "stream.changed": "Start its trainers again, as their error message says.",
    "stream.poorly_mixed": "Use a larger `shuffle.buffer`, as the message says, or `streamd pack --shuffle`.",
    "stream.remark": "Follow the message: most often a cache is full, or was written by another version.",
    "stream.served": "",
    "stream.stopped": "Follow the message, then start the stream's trainers again from their checkpoints.",
    "stream.too_large": "Use more `memory`, or smaller batches: see Sizing.",
    "window.warning": "If memory is short, use more `memory` or fewer trainers. Report anything else.",
    "wire.malformed": "Another version of streamd, or another program, uses the socket: see Upgrade.",
    "worker.denied": "The host has no processes, descriptors or memory left: see TasksMax and LimitNOFILE.",
    "worker.died": (
        "If it ran out of memory, use fewer workers or smaller pictures. If it was SIGKILL, look for the kernel's "
        "out-of-memory killer."
    ),
    "worker.waiting": "Is a mount gone, or a disk failing? The worker is replaced after a minute.",
}

# kind of fault: what it is, what to do
FAULT_ADVICE: Final[dict[str, tuple[str, str]]] = {
    "stale": ("the file is not the one that was listed", "List the samples again: see the runbook."),
    "gone": (
        "the file is not there, may not be read, or lies outside the source",
        "Restore it, and list the samples again.",
    ),
    "damaged": ("cut off, zeros, or broken inside", "Copy it again, and list the samples again."),
    "large": ("beyond 256 MiB or 100 million pixels", "Make it smaller, and list anew."),
    "crash": ("brings a worker down, twice", "Report the file. Replace it, and list the samples again."),
    "transform": ("your transform raises on it", "Fix the transform, and reload."),
    "unfit": (
        "not an image, or an image in a format that no decoder reads",
        "Convert or remove it: docs/pixels.md says which formats are supported.",
    ),
}

# verdict: what it says of an epoch, what to do
STAGE_ADVICE: Final[dict[str, tuple[str, str]]] = {
    "disk": ("workers waited for reads", "More RAM for the page cache, a faster disk, shards or a pack, a `cache`."),
    "decode": ("all workers were busy", "More `workers` and cores, a `cache`, or a pack of decoded images."),
    "transport": (
        "batches were ready, or neither reading nor decoding delayed them",
        "More `prefetch`, larger batches. Does the trainer hold batches, or is `memory` short?",
    ),
    "none": ("the trainer itself", "Nothing in streamd makes it faster."),
}

# what a trainer does: what it says
DOING: Final[dict[SessionState, str]] = {
    "gathering": (
        'The trainer was started with `{"together": K}`, and too few other trainers have started. Start them, or '
        "leave out `together`."
    ),
    "waiting": "It waits for a batch that is not ready yet. If this happens often or lasts long, see the verdicts.",
    "reading": "All is well.",
    "resting": "It has made no request for a while: it validates, compiles, saves, or is stopped in a debugger.",
    "finished": "It has been sent all its epochs.",
}

# a piece of why a stream stops: what to do
STOPS: Final[dict[str, str]] = {
    "more than bad_samples.max_fraction": (
        "`streamd check` names the bad samples: fix the data and list the samples again, or raise the limit."
    ),
    "and bad_samples.policy is fail": "Fix that sample and list the samples again, or choose another policy.",
    "waits for its data: ": "Mount or restore the data: nothing else has to be done.",
    " cannot be read: ": "A disk or mount fails: repair it, then start the trainers again.",
    "and all others are stale": (
        "The file was changed or replaced: list the samples again, and start the training over."
    ),
    "cannot be recorded": "Free some disk space in the state folder, then restart the daemon.",
    " died, the last ": "Something outside kills the workers: look for the kernel's out-of-memory killer.",
    "transform at ": "Fix your transform, and reload.",
}


def classes() -> dict[str, type[StreamdError]]:
    """Every error, in the order of the source."""
    found = dict(inspect.getmembers(errors, inspect.isclass)).items()
    ours = [(name, each) for name, each in found if issubclass(each, StreamdError)]
    return dict(sorted(ours, key=lambda each: inspect.getsourcelines(each[1])[1]))


def error_table() -> str:
    rows = [
        (
            code(name),
            "" if name == "StreamdError" else code(each.__bases__[0].__name__),
            str(each.exit_status),
            (each.__doc__ or "").split("\n\n")[0],
            *ERRORS[name],
        )
        for name, each in classes().items()
    ]
    return table(("error", "is a", "exit status", "what it says", "who meets it", "what to do"), rows)


def refusal_table() -> str:
    rows = [(code(why), *REFUSALS[why]) for why in get_args(Refusal)]
    return table(("refusal", "when", "what comes of it, what to do"), rows)


def event_table() -> str:
    rows = [(code(event), meaning, EVENT_ADVICE[event] or "Nothing.") for event, meaning in EVENTS.items()]
    return table(("event", "what it means", "what to do"), rows)


def fault_table() -> str:
    return table(("kind", "what it is", "what to do"), [(code(kind), *FAULT_ADVICE[kind]) for kind in FAULT_KINDS])


def stage_table() -> str:
    rows = [(code(stage), *STAGE_ADVICE[stage]) for stage in get_args(EpochBottleneck)]
    return table(("verdict", "what was waited for", "what makes it faster"), rows)


def doing_table() -> str:
    rows = [(code(word), code(STATE_WORDS[word]), DOING[word]) for word in get_args(SessionState)]
    return table(("doing", "shown as", "what it says"), rows)


def stop_table() -> str:
    rows = [(code(f"… {piece.strip()} …"), do) for piece, do in STOPS.items()]
    return table(("why a stream stopped", "what to do"), rows)


# --- what `streamd status` ends with 1 for

_STREAM: Final = StreamStatus("train", 80_000, 32, 2_500, 0, 0.0, 0.0, None, 0, 0, 0)
_BAD: Final = "812 of 80000 samples are bad, more than bad_samples.max_fraction 0.01 allows; ..."
_UNREAD: Final = "cat/0012.jpg cannot be read: Input/output error"


def _troubled(
    *streams: StreamStatus, deaths: int = 0, reload_failed: bool = False, draining: bool = False
) -> DaemonStatus:
    return DaemonStatus(
        "", 0, "", 0.0, 4, 0.0, 0, 0, draining, streams, deaths_lately=deaths, reload_failed=reload_failed
    )


# a daemon with one trouble, and what to do
TROUBLES: Final[tuple[tuple[DaemonStatus, str], ...]] = (
    (
        _troubled(replace(_STREAM, stopped=_BAD)),
        (
            "`streamd check` names them. Fix the data and list the samples again, or raise `bad_samples.max_fraction` "
            "and reload."
        ),
    ),
    (
        _troubled(replace(_STREAM, failed=_UNREAD)),
        "Fix what it names. The message disappears when trainers are started again.",
    ),
    (
        _troubled(replace(_STREAM, receipts_bad=1)),
        "This must never happen: keep both logs, and report it. The message stays until the daemon is restarted.",
    ),
    (_troubled(deaths=4), "See `worker.died`."),
    (_troubled(reload_failed=True), "See `reload.failed`."),
    (_troubled(draining=True), "Start it again, if that was not intended."),
)


def troubles() -> Iterator[tuple[str, str]]:
    """What is said, and what to do."""
    for daemon, do in TROUBLES:
        (said,) = daemon.all_troubles
        yield said, do


def trouble_table() -> str:
    return table(("`streamd status` says", "what to do"), [(code(said), do) for said, do in troubles()])
