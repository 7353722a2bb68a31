"""The names of all events, their meanings, and their message ids in the journal."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import NAMESPACE_URL, uuid5

EVENTS: Final[dict[str, str]] = {
    "cache.read_only": "nothing is added to a cache: another daemon writes it, or it cannot be locked",
    "daemon.draining": "the daemon was asked to end and sends its trainers away; they wait for the next one",
    "daemon.drain_timeout": "some trainers did not go in time; the daemon ends all the same",
    "daemon.failed": "the daemon's own fault: it ends, and whoever started it starts it again",
    "daemon.ready": "trainers are served from now on",
    "daemon.stopped": "the daemon has ended as it was asked to",
    "daemon.stuck": "batches are requested, but none makes progress: the service manager starts the daemon again",
    "data.absent": "the data to be listed are not there: the daemon waits for their file system, and trainers for it",
    "data.away": "the data of a stream are not there, as on a file system that is not mounted; it waits for them",
    "data.back": "the data of a stream are there again, and it goes on",
    "epoch.finished": "all trainers that were in an epoch of a stream are through with it",
    "log.held": "an event repeated itself so often that this many of it were held back",
    "manifest.listing": "samples are being listed",
    "manifest.made": "the samples of a stream were listed",
    "manifest.older": "a file of labels was written after its samples were listed: --rescan lists them again",
    "manifest.reused": "the samples are those of an earlier start",
    "manifest.unlocked": "lists cannot be locked: nothing keeps another daemon from listing their samples again",
    "manifest.waiting": "another daemon lists the same samples, and this one waits for it",
    "monitor.failed": "a connection to the monitor failed; trainers are served as before",
    "monitor.open": "the monitor can be reached from other hosts",
    "monitor.ready": "metrics are served over HTTP",
    "notify.failed": "the service manager does not listen",
    "receipt.bad": "a trainer's account of an epoch does not add up: samples were missed or repeated",
    "receipt.ok": "a trainer's account of an epoch adds up",
    "reload.began": "the configuration is read again",
    "reload.done": "the configuration was read again, and is served",
    "reload.failed": "the configuration was read again, but has a mistake: what it says of that is not served",
    "reload.nothing": "there is no file of the configuration to read again",
    "reload.restart_needed": "settings have changed that need a restart",
    "sample.bad": "a sample cannot be decoded; from now on it is replaced, masked, or an error, as `bad_samples` says",
    "sample.forgiven": "verdicts that name another list of samples were left out",
    "sample.suspect": "a worker died at a sample, which is tried once more, alone",
    "session.began": "a trainer has subscribed",
    "session.ended": "a trainer has left, or was lost",
    "session.refused": "a trainer could not be let in",
    "starter.remark": "something to know about a configuration that was made from data, such as a single class",
    "stream.changed": "a stream was replaced by a reload; its trainers are told what to do",
    "stream.poorly_mixed": "batches of a stream mix its labels poorly",
    "stream.remark": "something about a stream's transform or settings that its owner should know",
    "stream.served": "a stream is served from now on",
    "stream.stopped": "a stream cannot go on; its trainers get an error that says why",
    "stream.too_large": "nobody can subscribe to a stream, since memory is less than it needs",
    "window.warning": "the scheduler has met something that should not be",
    "wire.malformed": "somebody sent what no client of this version sends",
    "worker.denied": "the host has no room for a worker; it is tried again",
    "worker.died": "a worker has died; another takes its place",
    "worker.waiting": "a worker waits for a file for very long",
}

# Events that are logged however often they repeat: the end of the daemon or of a stream; mistakes in a configuration,
# which have a line each; and the counts of suppressed events themselves.
NEVER_SUPPRESSED: Final = frozenset({"daemon.failed", "daemon.stuck", "log.held", "reload.failed", "stream.stopped"})


@lru_cache(maxsize=256)
def compute_message_id(event: str) -> str:
    """Returns the MESSAGE_ID of an event, the same in every version: 32 hexadecimal digits."""
    return uuid5(NAMESPACE_URL, f"streamd:event:{event}").hex
