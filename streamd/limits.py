"""Every bound that streamd sets, with its unit and its reason.

A comment that begins with dots continues the one above it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- memory and slots
PAGE_BYTES: Final = 4096  # images begin at a page, so that frameworks can use a mapping as it is
TENSOR_ALIGN_BYTES: Final = 64  # TensorFlow aborts on a DLPack address that is not a multiple of this
MAX_SLOTS: Final = 4096  # each is one descriptor in the daemon and one mapping in every worker
MIN_CREDIT: Final = 2  # one batch in training, and one on its way
DEFAULT_CREDIT: Final = 16  # half of it is released and sent at a time: with 8, wake-ups cost a fast trainer a tenth
MAX_CREDIT: Final = 1024
# Kept for the first MIN_CREDIT batches of sessions, up to half of the sessions' memory: one part in so many, ...
KEPT_SHARE: Final = 8  # ... so that trainers of DEFAULT_CREDIT need two of their 16 batches from it, ...
KEPT_SESSIONS: Final = 7  # ... and room for so many sessions: 14 of the 16 batches that the next one would need
OTHER_USERS: Final = 4  # users that may hold all they are allowed, and the next one still finds two batches
USER_KEPT_SHARE: Final = 8  # a user leaves one part in so many; alone on 1 GiB it has eight trainers at full credit
OWN_USER_SHARE: Final = 8  # one part in so many is for the daemon's own user, whatever all the others hold
MAX_ARRAY_FILES: Final = 4096  # files of one stream: every worker keeps all of them open
MAX_OPEN_SHARDS: Final = 512  # of one stream in one worker; opening another costs as much as opening an image's file

# --- work
TASK_ROWS: Final = 32  # rows a worker decodes at a time: two milliseconds of small JPEGs, so that workers share a batch
TASK_S: Final = 0.25  # ... and fewer if they take longer, or one worker would decode a whole batch of huge pictures
TASKS_AHEAD_PER_WORKER: Final = 2  # one in decoding, and one whose files are being read
MAX_TASKS_AHEAD: Final = 8  # for each worker, where tasks are so cheap that sending them singly would cost as much
WORK_AHEAD_S: Final = 0.025  # the most work that a worker holds then: a new trainer waits this long for its first batch
WORK_BESIDE_OTHERS_S: Final = (
    0.004  # the same, where several streams are read: trainers of one wait for the others' work
)
AHEAD_SHARE: Final = 8  # ... if that takes no more than one part in so many of the memory
MAX_BATCH_ROWS: Final = 65536  # messages carry row numbers in 16 bits
MAX_SEED: Final = (1 << 63) - 1
MAX_SHUFFLE_CHUNK: Final = 1 << 32  # in samples, and of a buffer in chunks: more than any store holds
WORKER_RESPAWN_S: Final = 0.2  # the pause after a worker's death, doubled each time up to the next line
WORKER_RESPAWN_MAX_S: Final = 5.0
NEW_WORKERS_S: Final = 60.0  # the time in which new workers import a transform, which may load large libraries
WORKER_LEAVE_S: Final = 2.0  # from the end of a worker's socket to its exit; it may be starting, or at a huge picture
WORKER_ORPHAN_S: Final = 10  # the same where no daemon is left to end it: its cache may be on a slow disk
TASK_ATTEMPTS: Final = 10  # deaths from outside after which a task's stream stops, ...
TASK_GIVE_UP_S: Final = 60.0  # ... if they continue for this long: something may kill workers as fast as they start
# RLIMIT_DATA bounds the heap alone; RLIMIT_AS would count the slots too. libwebp and Pillow hold the largest picture
# four times and its file twice, which makes 2 GiB. The rest is for what a worker keeps, reads ahead and has imported.
WORKER_DATA_BYTES: Final = 3 * GIB
HELPER_NICENESS: Final = 1  # of processes that do the daemon's work: trainers on the same host come first
HELPER_OOM_SCORE: Final = 300  # of 1000, so 30 % of RAM; for workers and the listing, which map what the daemon maps
# The linear algebra of NumPy and OpenCV, which workers do not use, would take 40 and 140 MB of a worker's data limit
# for each core. The other two are for transforms: text has the same hash in all workers, and Albumentations does not
# look up its newest version.
WORKER_ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "NO_ALBUMENTATIONS_UPDATE": "1",
}
STOPPED_S: Final = 2.0  # a worker that is silent for this long may be stopped by a signal: its state is checked
ROW_DEADLINE_S: Final = 30.0  # the largest picture allowed takes some seconds, on a busy host several times that
UNREAD_S: Final = 60.0  # for a process that fills slots to read the next of the messages that wait: it may be starting
STALLED_S: Final = 180.0  # without a task done or a worker replaced, which takes 60 s, the engine itself is stuck
PROOF_SAMPLES: Final = 16  # files that prove a root: half of them cannot be there by chance, and a check takes 50 us
PROOF_S: Final = 10.0  # a file system that does not answer for this long is away, like a mount that hangs
RETURN_MIN_S: Final = 0.1  # between two checks whether data are back, doubled each time up to ...
RETURN_MAX_S: Final = 5.0  # ... this. Mounts are noticed at once, files that were moved or restored by then
GATHERED_BYTES: Final = 32 * MIB  # of stored rows that are resized at a time: 32 photos of 640x480 take 28 MiB
READ_AHEAD_BYTES: Final = 64 * MIB  # of a task's files at a time; 32 of the largest files would fill a worker's memory
CHUNKS_KEPT_BYTES: Final = 128 * MIB  # decompressed chunks of all stores in a worker; orders are chosen to fit into it
MASKS_COUNTED: Final = (
    1000  # of each image, by check: they are decoded twice, and shares of pixels are known to a percent
)
UNPACKING_ROWS: Final = 1 << 16  # rows planned to count how often chunks are decompressed: it takes a tenth of a second
MAX_CHUNK_BYTES: Final = 256 * MIB  # decompressed to read one row: a worker has memory for a few of them
CACHE_UNPUBLISHED_BYTES: Final = 256 * MIB  # of one worker, not on the disk yet; further rows wait for another epoch
CACHE_PUBLISH_S: Final = 0.25  # from a row that is cached to its publication on the disk: what a kill may cost

# --- a cluster
MAX_NODES: Final = 128  # of one daemon: a report on all of them fits into a record, and no trainer takes more
CALL_TASKS: Final = 4  # tasks in one call of a node: a call costs as much as decoding a dozen small pictures
NODE_TASKS_AHEAD: Final = 8  # for each decode process of a node: one call at work, and one under way to it
SILENT_S: Final = 2.0  # a call of a node may take so long, ...
SILENT_TIMES: Final = 5.0  # ... or so many times as long as usual, before its tasks also go to another node
NODES_LOOK_S: Final = 2.0  # between two looks at the list of nodes, for which Ray has no event
CLUSTER_ANSWER_S: Final = 10.0  # without an answer from the cluster's head it is reported as away
NODE_START_S: Final = 120.0  # from the start of a node's actor to its first answer, with a runtime environment
NODE_RETRY_S: Final = 15.0  # before a node that was refused is tried again: somebody mounts the data meanwhile
BRIDGE_LEAVE_S: Final = 15.0  # from the end of its socket to its exit: it ends actors, and a cluster of its own
NODE_REPORT_S: Final = 1.0  # between two reports on nodes, unless one changes its state
NODE_RATE_S: Final = 10.0  # the span over which a node's rate is measured
MAX_TRANSFORM_SOURCES_BYTES: Final = 16 * MIB  # the modules of a transform that are sent to nodes
MAX_TESTIMONIES: Final = 4096  # samples of which one node says that it cannot read them; older ones are forgotten

# --- pictures
MAX_FILE_BYTES: Final = 256 * MIB  # no photograph is larger, but a sparse file that pretends to be one is
MAX_PIXELS: Final = 100_000_000  # a larger image is a decompression bomb, not training data
MAX_RAW_BYTES: Final = 512 * MIB  # of one picture in mode raw; a worker holds it twice, and its file, below its limit
MAX_RAW_CHANNELS: Final = 32  # in mode raw: more than any satellite's bands
MAX_VIEWS: Final = 64  # of one picture: multi-crop training takes a dozen; each is a whole image of the batch's memory
MAX_FRAMES: Final = 64  # of one clip; each is a whole image of the batch's memory
MAX_FRAME_OFFSET: Final = 1_000_000_000  # in rows: farther than any sequence is long
MAX_TIFF_PAGES: Final = 128  # listed to find those of one picture: 32 channels, each with three reduced copies
MAX_TEXT_BYTES: Final = 1024  # of a string label; every row of a batch has room for the longest
MAX_BOXES: Final = 1 << 14  # of one sample; aerial images have a few thousand, and every row has room for the most
MAX_ANNOTATION_BYTES: Final = 4 * GIB  # of a COCO file; the largest public ones have 1.5 GB
MAX_LABEL_FILE_BYTES: Final = 16 * MIB  # of the text file with the boxes of one picture
MAX_CONFIG_BYTES: Final = 64 * MIB  # of a config.yaml: a thousand streams with their classes take a tenth of it
MAX_SPEC_FILE_BYTES: Final = 64 * MIB  # of the file beside a model, with the names of all its classes
MAX_DATA_YAML_BYTES: Final = MIB  # of a data.yaml; the names of a thousand classes take 30 kB
MAX_BOX_CLASS: Final = (1 << 24) - 1  # the largest whole number up to which float32 holds all
MAX_REASON_CHARS: Final = 200  # kept of a decoder's message
MAX_REFUSAL_CHARS: Final = 600  # kept of why a stream cannot be opened: a transform's labels, those expected, its file

# --- mixing
MIXING_BATCHES: Final = 256  # the basis of the shuffle score: an error of a hundredth or less, in milliseconds
MIXING_ROWS: Final = 1 << 15  # ... and at most this many samples, however large the batches are
MIXING_COLUMNS: Final = 8  # of a vector label: so many numbers show whether its order is mixed
POORLY_MIXED: Final = 0.9  # a shuffle score below it is reported: every tenth pair of a batch is too similar
MIXED_ENOUGH: Final = 0.95  # the score for which a larger buffer is recommended

# --- packs
PACK_BATCH_BYTES: Final = 4 * MIB  # pixels written at a time: system calls cost little then, and few slots are in use
PACK_AHEAD_BYTES: Final = 256 * MIB  # decoded and not yet written: the work of workers while the disk syncs
PACK_SYNC_BYTES: Final = 256 * MIB  # between two syncs: what the system may hold of a pack and not yet have written
PACK_SHARD_BYTES: Final = 4 * GIB  # of pixels in one .npy file
PACK_TAR_BYTES: Final = GIB  # of one tar shard: the effective limit of WebDataset's own writer
PACK_IMAGE: Final = "X"  # the name of the images in ml-pyxis

# --- the wire
MAX_CLIENT_FRAME_BYTES: Final = 64 * KIB  # the largest frame that a client may send
HANDSHAKE_MS: Final = 5000
ROUTER_QUEUE: Final = 4096  # headers that libzmq queues for one client; credit is the real bound
SECRET_BYTES: Final = 16  # of the secret that pairs the descriptor socket with a session
MAX_SESSIONS: Final = 256
# Of the sessions, for users other than the daemon's own: one user's sessions must not keep the others out.
USER_SESSION_PART: Final = 4  # one user has at most one part in so many, ...
LEAST_USER_SESSIONS: Final = 8  # ... or this many, if that is more: the ranks of one host
RESERVED_SESSIONS: Final = 16  # the last ones, kept for users without a session, ...
RESERVED_SESSION_PART: Final = 8  # ... or one part in so many, if that is less: a small daemon serves few users
# Of the event loop's time, for each user other than the daemon's own: frames beyond it stay unread for a while.
LOOP_BURST_S: Final = 0.05  # all trainers of a user that subscribe at once; nobody notices a loop that is late by this
LOOP_SHARE: Final = 0.15  # then this part of the time: six users that want all they can get leave a tenth to the owner
QUESTION_WEIGHT: Final = 10.0  # of a frame that no batch or receipt needs: a user's take a part in 67 of the loop
NETWORK_LOOP_SHARE: Final = 0.45  # of all keys of other hosts together: as much as three that want all they can get
MAX_FRAME_CHARGE_S: Final = 0.05  # for one frame: a longer time was spent by the host, not by the frame
# Of the event loop's time, for answers that are the same for all who ask, such as the status.
ANSWER_SHARE: Final = 0.02  # a status of 256 trainers takes 3 ms: seven are made in a second
ANSWER_BURST_S: Final = 0.02  # before that share counts: people and scripts always see what is so now
ANSWER_AGE_S: Final = 1.0  # however long an answer takes, none is older: rates are over seconds
MAX_OPEN_EPOCHS: Final = 2 * MAX_CREDIT  # of a session, without receipts: it holds batches of half as many
DIGEST_TURN_ROWS: Final = 1 << 20  # of one user's digest before the next user's turn: 70 ms
MAX_DIGEST_TURN_S: Final = 0.5  # of such a turn, as charged: a longer time was spent by the host
# The digests of users other than the daemon's own are computed by a worker beside the pool.
DIGEST_NICENESS: Final = 10  # of that worker: where processors are short, it gets a tenth of what trainers get
DIGEST_ANSWER_S: Final = 30.0  # for one piece; a worker that takes longer was stopped, and is replaced
DIGEST_RESTART_S: Final = 10.0  # until the worker that computes digests is started again after it has ended
# Of the time of the worker that computes digests, for each user other than the daemon's own. The next epoch's digest
# is computed ahead, so that a trainer does not wait for its share.
DIGEST_BURST_S: Final = 0.3  # four million samples
DIGEST_SHARE: Final = 0.05
MAX_HELD_OVER: Final = 16  # ended subscriptions of a stream with batches held by a process; each is one of the above
# Descriptors of the daemon, as counted: libzmq ends a process that has none left for a connection.
OWN_DESCRIPTORS: Final = 48  # loop, ZeroMQ, log, state, door, digests; a listing, a reload, and a slot on its way
WORKER_DESCRIPTORS: Final = 4  # its socket and its process, and those of its successor while a transform changes
STREAM_DESCRIPTORS: Final = 7  # its list, the locks of list, verdicts and cache; in a reload new ones for all but one
SESSION_DESCRIPTORS: Final = 4  # its connection and the socket that accepted it, its lifeline, its process
RELOADED_STREAMS: Final = 16  # added by reloads without a restart, if there are descriptors to spare
LEAST_SLOTS_A_SESSION: Final = 4  # two batches of its own, and as many in production
KNOCKS: Final = 8  # connections accepted at a time: so many may libzmq accept before it reports the first
SPARE_DESCRIPTORS: Final = 4 * (KNOCKS + 1)  # for clients that only send requests, or are connecting: two groups, twice
DOOR_BACKLOG: Final = 128  # clients that wait at the public path; more of them wait in their own connect
DOOR_WAITING: Final = 64  # ... and those that were let in, while the gate of their user starts
DOOR_REFUSAL_S: Final = 0.2  # a user who gets no gate is sent away for so long before the daemon is asked again
REFERRAL_BYTES: Final = 256  # of the line that the door sends; a path has at most 107
MAX_GATES: Final = 16  # users with a gate at a time; more than a host has people who train
GATE_DESCRIPTORS: Final = 4  # in the daemon, for each gate: its two links, its last words, its process
GATE_FILES: Final = 2048  # descriptors that a gate may open, more than it ever does
FILES_A_GATE: Final = 256  # a daemon with few descriptors has fewer gates: one for each so many
GATE_CONNECTIONS: Final = 512  # descriptors for the clients of one gate, which are those of one user
GATE_DATA_BYTES: Final = 256 * MIB  # of a gate's heap: what its user makes it keep ends the gate, not the daemon
MAX_GATE_RECORD_BYTES: Final = 128 * KIB  # from a gate to the daemon: a client's frame, its identity, or a warning
GATE_UNREAD_S: Final = (
    20.0  # in which a gate must read of the frames that wait, or it is ended: twice what it may start
)
GATE_IDLE_S: Final = 300.0  # a gate without clients ends after this time
GATE_START_S: Final = 10.0  # from the start of a gate to its first word; on a busy host it takes a second
THREAD_RETRY_S: Final = 1.0  # until a thread is tried again that the host did not let start
GATE_RESTART_S: Final = 0.25  # the pause after a gate's death, doubled each time up to ...
GATE_RESTART_MAX_S: Final = 30.0  # ... this: a user that ends its own gate again and again waits
GATE_SOUND_S: Final = 60.0  # a gate that has lived this long starts anew without a pause
LINK_TURN_S: Final = 0.001  # in which frames of one socket or gate are handled, before the loop serves others
MAX_MONITOR_CONNECTIONS: Final = 32  # over HTTP at a time; another one replaces the oldest, so that descriptors last
SHOWN_ROWS: Final = 32  # of a batch on the dashboard: they fill a screen, ...
SHOWN_BYTES: Final = 8 * MIB  # ... if their pixels take no more, nor one row: the loop copies them, for milliseconds
SHOWN_PICTURES: Final = 12  # of one sample, with all its views and frames: more would not fit beside each other
SHOWN_CLASSES: Final = 24  # in the legend of masks, which takes some lines; the colours repeat after 22
SHOWN_S: Final = 20.0  # a page waits this long for a batch to be sent before it sends its request again
MAX_THUMBNAILS: Final = 512  # small pictures of bad samples that are kept
THUMBNAIL_S: Final = 10.0  # to read and decode one
MAX_EPOCHS: Final = 1 << 40  # more than any training has, and within a frame's integers
MAX_WORLD: Final = (1 << 20) - 1  # far beyond any job, and every index up to its padding fits the digest's places
MAX_TRAINER_NAME_CHARS: Final = 64  # longer names would fill the tables in which they are shown
MAX_NAMES: Final = 4096  # in one request; the ids fit into a client's frame
MAX_COUNT: Final = 1 << 53  # of anything a client counts: exact as a float, and two of them fit into 64 bits
MAX_REPORTED_S: Final = 1e9  # of an epoch's times as a trainer reports them: thirty years
MAX_NAME_CHARS: Final = 1024  # of a name that a client sends: a longer one cannot be a typing error
MAX_DIGEST_CHARS: Final = 64  # of an order id or a digest, which have 32
MAX_VERIFIED_BATCHES: Final = 1 << 25  # of an epoch that `streamd verify` adds up: 1e9 samples; at most half a gigabyte
MAX_RECEIPT_FILE_BYTES: Final = 1 << 28  # that it reads: receipts of 100,000 epochs, each with a few changes of world
MAX_LISTS_JSON_BYTES: Final = 1 << 30  # of an exported list's verdicts: ten million of them
MAX_SEGMENTS: Final = 512  # segments of an epoch's history, one for each change of rank or world: half a frame

# --- bad samples

TOLERATED_BAD: Final = 10  # up to this many bad pictures never stop a stream, however small it is
# Unless max_fraction is written: one bad download in a small set is more than 1 %. The largest number is 1 % of 50,000
# pictures, and sets of such sizes have less than that. docs/operations.md has the figures.
SMALL_SET_BAD_FRACTION: Final = 0.05
SMALL_SET_MOST_BAD: Final = 500

# --- trainers on other hosts
REMOTE_CREDIT: Final = 64  # by default: twice what is under way at 1 Gbit/s and 100 ms, in batches of 400 KB
PIECE_BYTES: Final = 256 * KIB  # of pixels in one message: at 10 Mbit/s one arrives every 0.2 s, and shows life
SENDING_BYTES: Final = 4 * MIB  # of one trainer in libzmq's hands: a few ms of a fast link; the rest waits in its slots
SILENT_LINK_MS: Final = 60_000  # until a connection whose bytes nobody acknowledges is given up: TCP_USER_TIMEOUT
KEEPALIVE_S: Final = 15  # between two probes of a link without traffic, which find a host that is gone
KEYS_CHECK_S: Final = 3.0  # between two looks at the clients' keys: a removed one may go on for 10 s at most
MAX_KEY_FILE_BYTES: Final = 16 * KIB  # a file with a key has 300 bytes
MAX_CLIENT_KEYS: Final = 4096  # in the folder: each is read again when it changes
KEY_CONNECTIONS_A_S: Final = 20.0  # of one key: a trainer makes three, and one more for each request, ...
KEY_CONNECTIONS_BURST: Final = 200.0  # ... and all ranks of a host may begin at the same time
STRANGER_CONNECTIONS_A_S: Final = 20.0  # of all keys that are not allowed; each costs a handshake
STRANGER_CONNECTIONS_BURST: Final = 100.0
MAX_KEY_PAUSE_S: Final = 5.0  # of a key over its share, told to its gate; a trainer without an answer waits 15 s
KEY_WAITING_FRAMES: Final = 1024  # of a paused key: sixteen of each of the sessions that it may have, ...
KEY_WAITING_BYTES: Final = 4 * MIB  # ... and no more bytes than this; beyond that, its connections are closed
KEY_OPEN_CONNECTIONS: Final = 256  # of one key: its sessions make three each
SILENT_CONNECTIONS: Final = 512  # without a frame so far, as all are in their handshake; one more replaces an old one
KEY_FRAMES_A_S: Final = 8000.0  # of one key: 120,000 batches a second take as many reports; the gate passes 30,000
KEY_FRAMES_BURST: Final = 16_000.0
REMOTE_QUEUE: Final = 64  # frames of one connection that libzmq receives ahead: 4 MiB at most
REMOTE_BACKLOG: Final = 128  # connections that wait for the listener
REMOTE_GATE_DATA_BYTES: Final = 512 * MIB  # of the heap of a gate for other hosts, which encrypts for all of them

# --- patience
CONNECT_TIMEOUT_S: Final = 10.0
ASK_AGAIN_S: Final = 1.0  # between a request and its repetition: the daemon may have been starting
REMOTE_ASK_AGAIN_S: Final = 5.0  # ... on another host: connecting and both handshakes take five round trips
LOOK_TIMEOUT_S: Final = 2.0  # the same bound for commands that only show something: a user waits for them
SHOWN_NAMES_TIMEOUT_S: Final = 1.0  # for the names under a notebook's pictures, which are shown without them after it
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
SEND_COMPANY_S: Final = 0.008  # a batch just decoded waits this long for others, for one wake-up instead of four
SEND_COMPANY_CREDIT: Final = 8  # ... if the trainer's credit is large enough to hide it
ANSWER_TIMEOUT_S: Final = 5.0  # a subscription without an answer is sent again on a new socket after this time
PAIR_S: Final = 5.0  # from a welcome to its lifeline: a trainer that dies between them frees its memory; hosts are busy
SILENCE_S: Final = 10.0  # a loop that has waited this long checks whether the daemon still has its session
AWAY_FIRST_LINE_S: Final = 2.0  # a loop that waits this long for a daemon that is away reports it on stderr
AWAY_LINE_S: Final = 30.0  # between two such lines on stderr
HELD_COLLECT_S: Final = 1.0  # with all credit held for this long, garbage is collected
HELD_ERROR_S: Final = 5.0  # ... and this long after that, BatchesHeldError is raised
LAST_WORD_S: Final = 1.0  # a stream closed at an epoch's end waits this long for the daemon's receipt
REPORT_INTERVAL_S: Final = 1.0  # a slow loop reports each batch that it drops, but no more often than this
PROGRESS_DELAY_S: Final = 0.02  # the longest time that releases wait for others before they are reported
DRAIN_S: Final = 5.0  # from SIGTERM to the daemon's end
LOOK_FOR_DATA_S: Final = 10.0  # between two checks for data that were missing at the start; a mount is noticed at once
FILES_PAUSE_S: Final = 0.2  # after a change among the daemon's files: a cleaner removes many, and /tmp is busy
FILES_CHECK_S: Final = 10.0  # between two looks at the daemon's files where the kernel reports no changes of them
REFUSED_START_S: Final = 10.0  # a service that cannot start ends no sooner while trainers wait: 6 of 20 starts a minute

# --- the log
LOG_SPAN_EVENTS: Final = 50  # of one name, within the next line; after a fleet's start, nobody reads more of one kind
LOG_SPAN_S: Final = 30.0
LOG_LINE_VALUE_CHARS: Final = 200  # of a field's value in a line, which stays one line
LOG_UNWRITTEN_BYTES: Final = MIB  # of lines that nothing reads: an hour of a busy daemon; later ones are counted
LOG_CHUNK_BYTES: Final = 64 * KIB  # read at a time of what children say, as much as a pipe holds
LOG_LAST_WORDS_S: Final = 1.0  # at the end of a process, for the next of its lines to be read
LOG_TEXT_CHARS: Final = 1 << 16  # of a text, or of a field elsewhere: all that one frame of a client can contain

# --- checkpoints
MAX_NESTING: Final = 64  # of a callback's lists and dicts: JSON that Python's stack can hold, three levels for each

# --- where an epoch's time goes
WAIT_NOTICED: Final = 0.05  # of an epoch: a trainer that waits less gains nothing worth mentioning from faster data
LAY_READY: Final = 0.5  # of the batches: if more of them lay ready, the transport to the trainer is what takes the time
READS: Final = 0.5  # of the workers' time: if they wait longer than that for reads, the disk is the limit
ALL_AT_WORK: Final = 0.75  # of the workers: they count as all busy, since a batch's last tasks leave some without one

# --- fairness
CATCH_UP_S: Final = 10.0  # the most that a leader may lose in an epoch so that a follower draws level
# Of the workers' time, for sessions of one user that draw level with those of others: subscribing again and again must
# not put a user first for ever.
USER_CATCH_UP_SHARE: Final = 0.1
USER_CATCH_UP_BURST_S: Final = 0.5
KEEP_STEPS: Final = 256  # a cheaper batch is kept for trainers no further behind: its slot serves the next one
KEEP_COST_S: Final = 0.01  # a batch that costs this much gets a fresh slot and is kept for trainers that start late
