"""Every error, refusal, trouble, event, fault and verdict, and what to do about each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, get_args

from operations_table import code, table

from streamd import errors
from streamd.core.bottleneck import EpochBottleneck
from streamd.core.log.events import EVENTS
from streamd.core.status import STATE_WORDS, DaemonStatus, SessionState, StreamStatus
from streamd.daemon.monitor.bad_samples import FAULT_KINDS
from streamd.errors import StreamdError
from streamd.ipc.messages import Refusal

# error: who meets it, what to do
ERRORS: Final[dict[str, tuple[str, str]]] = {
    "StreamdError": ("anybody", "As it says."),
    "ConfigError": (
        "commands, trainers",
        "Mend the line or argument that it names; docs/mistakes.md has most of them.",
    ),
    "MissingExtraError": ("commands, trainers", "Run the pip command in it, in the environment that it came from."),
    "DataAwayError": ("commands", "Mount or bring back the data, or name their new place; a daemon waits by itself."),
    "NoDatasetError": ("trainers on torch", "Put `torch.loader(stream)` in the DataLoader's place."),
    "ConnectError": ("commands, trainers", "Start the daemon, or name its endpoint; is the user in group streamd?"),
    "ClosedError": ("trainers", "Another part of the program closed it: connect again, or wait with the closing."),
    "RefusedError": ("trainers", "See the refusals below."),
    "TokenError": ("trainers that resume", "Serve the stream as it was, resume the right one, or begin anew."),
    "StreamStoppedError": ("trainers", "`streamd status` says why; mend it, then start them again from a checkpoint."),
    "StreamChangedError": ("trainers", "As it says: subscribe again, with the token where the order is the same."),
    "BatchesHeldError": ("trainers", "Drop views of batches, keep `batch.copy()`, or a larger `prefetch`."),
    "ReceiptError": ("trainers", "Must not happen: keep the logs of daemon and trainer, and report it."),
    "LossError": ("trainers", "The model's affair; the page of pictures shows the batch, `blame` its samples."),
    "OutputExistsError": ("`streamd init`", "`--force` replaces the file, `-o` names another place."),
    "HostError": ("`streamd service`", "What the host's own command said is in it: mend that, and do it again."),
    "PackError": ("`streamd pack`", "Make room, then run the same command: it goes on."),
    "ForkedClientError": ("trainers that fork", "Call `streamd.connect()` in the child."),
    "OtherPixelsError": ("the daemon", "It is started anew. A transform must go by image, labels and rng alone."),
    "BrokenRuleError": ("the daemon", "It ends and is started anew, trainers go on. Report it with its line."),
    "ProtocolError": ("trainers, commands", "Another program, or another version, is at the socket: see Upgrade."),
    "OtherVersionError": ("trainers, commands", "Install the same streamd on both sides, and start both anew."),
}

# refusal: when the daemon says it, and what comes of it
REFUSALS: Final[dict[str, tuple[str, str]]] = {
    "unknown": (
        "no stream has that name",
        "The trainer ends, and hears the near name; one that was reading ends with StreamChangedError.",
    ),
    "memory": (
        "not even two batches are left for one more trainer",
        "Who is new ends, with the arithmetic; who was reading asks again. More `memory`, or smaller batches.",
    ),
    "token": ("the order is another one, or the token is damaged", "The trainer ends; see TokenError."),
    "busy": (
        "the daemon drains, or has all the sessions that it takes",
        "The trainer asks again by itself; who is new, for ten seconds.",
    ),
    "usage": ("an impossible rank, world, number of names, or another version", "The trainer ends: mend the program."),
}

# event: what to do
EVENT_ADVICE: Final[dict[str, str]] = {
    "cache.read_only": "Two daemons on one cache: fine. Else make its folder writable, and restart.",
    "daemon.draining": "",
    "daemon.drain_timeout": "Some trainer is stopped, or in a long step: it finds the next daemon by itself.",
    "daemon.failed": "Report it, unless it says that the installation changed.",
    "daemon.ready": "",
    "daemon.stopped": "",
    "daemon.stuck": "Report it, with the stacks that follow in the journal.",
    "data.absent": "Mount what it names, or correct the path and restart; it goes on by itself when they are there.",
    "data.away": "Mount or bring back the data: it goes on by itself. Changed on purpose: restart with --rescan.",
    "data.back": "",
    "epoch.finished": "Its `verdict` says what to make faster.",
    "log.held": "Look at the event that its field `of` names.",
    "manifest.listing": "Wait: ten million files take a minute or, from a cold network disk, much longer.",
    "manifest.made": "",
    "manifest.older": "If the labels changed: list anew, see the runbook.",
    "manifest.reused": "If files changed since: list anew, see the runbook.",
    "manifest.unlocked": "Make the state folder writable, on a file system with locks; `--rescan` nothing until then.",
    "manifest.waiting": "Wait: this daemon takes the list as soon as the other one has made it.",
    "monitor.failed": "Who asks speaks no HTTP, or went away.",
    "monitor.open": "If you did not mean that: `monitor: 127.0.0.1:9191`.",
    "monitor.ready": "",
    "notify.failed": "The daemon was started with a NOTIFY_SOCKET that nobody hears.",
    "receipt.bad": "Must not happen: keep the logs of daemon and trainer, and report it.",
    "receipt.ok": "",
    "reload.began": "",
    "reload.done": "",
    "reload.failed": "Mend the lines that it names, and reload again. What is served is what was served before.",
    "reload.nothing": "Only a file can be reloaded: `streamd serve` or `streamd.local` was given data or a mapping.",
    "reload.restart_needed": "Restart when it suits: trainers go on over it.",
    "sample.bad": "Replace or remove the file, and list anew when no training is under way; else it stays bad.",
    "sample.forgiven": "Nothing: the samples were listed anew since, and those that are bad are found again.",
    "sample.suspect": "Nothing yet: a second end makes it bad.",
    "session.began": "",
    "session.ended": "",
    "session.refused": "See the refusals.",
    "starter.remark": "As it says; `streamd init` writes the configuration, where you can change it.",
    "stream.changed": "Start its trainers again, as they are told.",
    "stream.poorly_mixed": "A larger `shuffle.buffer`, as it says, or `streamd pack --shuffle`.",
    "stream.remark": "As it says: most often a cache without room, or of another version.",
    "stream.served": "",
    "stream.stopped": "As it says; then start its trainers again from their checkpoints.",
    "stream.too_large": "More `memory`, or smaller batches: see Sizing.",
    "window.warning": "Where memory is short: more of it, or fewer trainers. Anything else: report it.",
    "wire.malformed": "Another version, or another program, is at the socket: see Upgrade.",
    "worker.denied": "The host has no processes, descriptors or memory left: see TasksMax and LimitNOFILE.",
    "worker.died": "Out of memory: fewer workers, or smaller pictures. SIGKILL: look for the kernel's own killer.",
    "worker.waiting": "Is a mount gone, or a disk failing? The worker is replaced after a minute.",
}

# kind of fault: what it is, what to do
FAULT_ADVICE: Final[dict[str, tuple[str, str]]] = {
    "stale": ("the file is another one than was listed", "List anew, see the runbook."),
    "gone": ("the file is not there, may not be read, or lies outside the source", "Bring it back, and list anew."),
    "damaged": ("cut off, zeros, or broken inside", "Copy it again, and list anew."),
    "large": ("beyond 256 MiB or 100 million pixels", "Make it smaller, and list anew."),
    "crash": ("brings a worker down, twice", "Report the file; replace it, and list anew."),
    "transform": ("your transform raises on it", "Mend the transform, and reload."),
    "unfit": (
        "no image, or of a kind that no decoder takes",
        "Convert or remove it: docs/pixels.md says what is taken.",
    ),
}

# verdict: what it says of an epoch, what to do
STAGE_ADVICE: Final[dict[str, tuple[str, str]]] = {
    "disk": ("workers waited for reads", "More RAM for the page cache, a faster disk, shards or a pack, a `cache`."),
    "decode": ("all workers were busy", "More `workers` and cores, a `cache`, or a pack of decoded images."),
    "transport": (
        "batches lay ready, or neither reads nor decoding held them up",
        "More `prefetch`, larger batches. Does the trainer hold batches, or is `memory` short?",
    ),
    "none": ("the trainer itself", "Nothing here makes it faster."),
}

# what a trainer does: what it says
DOING: Final[dict[SessionState, str]] = {
    "gathering": 'It was started with `{"together": K}`, and others have not come. Start them, or leave that out.',
    "waiting": "It wants a batch that is not there yet. Often for long: see the verdicts.",
    "reading": "All is well.",
    "resting": "It has asked for nothing for a while: it validates, compiles, saves, or sits in a debugger.",
    "finished": "It has been sent all its epochs.",
}

# a piece of why a stream stops: what to do
STOPS: Final[dict[str, str]] = {
    "more than bad_samples.max_fraction": "`streamd check` names them: mend the data and list anew, or raise it.",
    "and bad_samples.policy is fail": "Mend that sample and list anew, or choose another policy.",
    "waits for its data: ": "Mount or bring them back: nothing else has to be done.",
    " cannot be read: ": "A disk or mount that fails: see to it, then start the trainers again.",
    "and all others are stale": "The file was written to or replaced: list anew, and begin anew.",
    "cannot be recorded": "Make room in the state's folder, then restart.",
    " died, the last ": "Somebody kills them: look for the kernel's out-of-memory killer.",
    "transform at ": "Mend your transform, and reload.",
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
    return table(("doing", "as people see it", "what it says"), rows)


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
        "`streamd check` names them. Mend the data and list anew, or raise `bad_samples.max_fraction` and reload.",
    ),
    (
        _troubled(replace(_STREAM, failed=_UNREAD)),
        "Mend what it names. Trainers that are started again clear it.",
    ),
    (
        _troubled(replace(_STREAM, receipts_bad=1)),
        "Must not happen: keep both logs, and report it. It stays until the daemon is started anew.",
    ),
    (_troubled(deaths=4), "See `worker.died`."),
    (_troubled(reload_failed=True), "See `reload.failed`."),
    (_troubled(draining=True), "Start it again, if that was not meant."),
)


def troubles() -> Iterator[tuple[str, str]]:
    """What is said, and what to do."""
    for daemon, do in TROUBLES:
        (said,) = daemon.all_troubles
        yield said, do


def trouble_table() -> str:
    return table(("`streamd status` says", "what to do"), [(code(said), do) for said, do in troubles()])
