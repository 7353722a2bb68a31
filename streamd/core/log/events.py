"""The names of all events, their meanings, and their message ids in the journal."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import NAMESPACE_URL, uuid5

EVENTS: Final[dict[str, str]] = {
    "cache.read_only": "nothing is added to a cache: another daemon writes it, or it cannot be locked",
    "cluster.away": "the cluster that decodes cannot be used; trainers wait, and the daemon joins it when it is back",
    "cluster.back": "the cluster that decodes can be used",
    "daemon.draining": "the daemon was asked to stop and disconnects its trainers; they wait for the next daemon",
    "daemon.drain_timeout": "some trainers did not disconnect in time; the daemon ends anyway",
    "daemon.failed": (
        "the daemon failed because of an error of its own: it ends, and systemd, or the program that started it, "
        "starts it again"
    ),
    "daemon.no_digest_process": (
        "the process that computes the digests of other users' epochs cannot start, or has ended; the daemon computes "
        "them itself, and tries again"
    ),
    "daemon.no_thread": "the host lets the daemon start no more threads; what needed one waits, and is tried again",
    "daemon.ready": "trainers are served from now on",
    "daemon.stopped": "the daemon has ended as it was asked to",
    "daemon.stuck": "batches are requested, but none makes progress: the service manager starts the daemon again",
    "data.absent": (
        "the data to be listed are missing: the daemon waits for their file system, and trainers wait for the daemon"
    ),
    "data.away": (
        "the data of a stream are missing, for example because a file system is not mounted; the stream waits for them"
    ),
    "data.back": "the data of a stream are there again, and the stream continues",
    "endpoint.gone": (
        "a socket or another file of the running daemon was removed, for example by a cleaner of /tmp; it is made "
        "anew, or the daemon ends"
    ),
    "epoch.finished": "all trainers that read an epoch of a stream have finished it",
    "gate.ended": (
        "a process at the border has ended, which serves the clients of one user or those on other hosts, or refers "
        "clients to the gates of their users; it is started again when it is needed"
    ),
    "gate.no_bbr": (
        "trainers on other hosts are served without BBR, which this kernel does not have: a link that loses packets "
        "will be slow"
    ),
    "gate.ready": "trainers on other hosts can connect",
    "log.held": "an event was repeated so often that this number of them was not logged",
    "log.unwritten": (
        "this number of lines of the log were not written, since nothing read the pipe or terminal behind stderr; the "
        "daemon did not wait for it"
    ),
    "manifest.listing": "samples are being listed",
    "manifest.made": "the samples of a stream were listed",
    "manifest.older": (
        "a file of labels was changed after its samples were listed: restart with --rescan to list them again"
    ),
    "manifest.reused": "the list of samples from an earlier start is used",
    "manifest.unlocked": "lists cannot be locked: nothing keeps another daemon from listing their samples again",
    "manifest.waiting": "another daemon lists the same samples, and this one waits for it",
    "memory.beyond": "`memory` is more than this machine, or the cgroup of the daemon, has",
    "monitor.failed": "a connection to the monitor failed; trainers are served as before",
    "monitor.open": "the monitor can be reached from other hosts",
    "monitor.ready": "metrics are served over HTTP",
    "notify.failed": "the service manager cannot be notified",
    "node.lost": "a node of the cluster has left, or its processes have ended; other nodes do its tasks",
    "node.refused": "a node of the cluster may not decode: other data, another installation, or none",
    "node.serving": "a node of the cluster has proven its data and its pixels, and decodes from now on",
    "node.silent": "a node of the cluster has not answered in time; other nodes do its tasks",
    "receipt.bad": "a trainer's account of an epoch does not add up: samples were missed or repeated",
    "receipt.ok": "a trainer's account of an epoch adds up",
    "reload.began": "the configuration is being read again",
    "reload.done": "the configuration was read again, and is served",
    "reload.failed": (
        "the configuration was read again, but cannot be served, or not all of it: what cannot be served stays as it "
        "was before"
    ),
    "reload.nothing": "there is no configuration file to read again",
    "reload.restart_needed": "settings have changed that need a restart",
    "sample.bad": (
        "a sample cannot be decoded; from now on it is replaced or masked, or ends the stream, depending on "
        "`bad_samples`"
    ),
    "sample.forgiven": "verdicts on another list of samples, or on what one host alone could not read, were ignored",
    "sample.suspect": "a worker died while it handled a sample; the sample is tried once more, alone",
    "session.began": "a trainer has subscribed",
    "session.ended": "a trainer has left, or was lost",
    "session.refused": "a trainer could not be let in",
    "starter.remark": (
        "a remark about a configuration that was made from data, for example that there is only one class"
    ),
    "stream.changed": "a stream was replaced by a reload; its trainers get an error that says what to do",
    "stream.poorly_mixed": "the labels of a stream are poorly mixed within its batches",
    "stream.remark": "something about a stream's transform, labels or settings that its owner should know",
    "stream.served": "a stream is served from now on",
    "stream.stopped": "a stream cannot continue; its trainers get an error that says why",
    "stream.too_large": "no trainer can subscribe to a stream, because the stream needs more memory than there is",
    "window.warning": "the scheduler has found an unexpected situation",
    "wire.malformed": "a client sent a frame that no client of this version sends",
    "worker.denied": "the host cannot start another worker; the daemon tries again",
    "worker.died": "a worker has died; another takes its place",
    "worker.waiting": "a worker has been waiting for a file for a long time",
}

# Events that are logged however often they repeat: the end of the daemon or of a stream; mistakes in a configuration,
# which have a line each; and the counts of suppressed events themselves.
NEVER_SUPPRESSED: Final = frozenset({"daemon.failed", "daemon.stuck", "log.held", "reload.failed", "stream.stopped"})


@lru_cache(maxsize=256)
def compute_message_id(event: str) -> str:
    """Returns the MESSAGE_ID of an event, the same in every version: 32 hexadecimal digits."""
    return uuid5(NAMESPACE_URL, f"streamd:event:{event}").hex
