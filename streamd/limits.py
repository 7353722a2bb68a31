"""Every bound streamd sets, with its unit and its reason."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- memory and slots
PAGE_BYTES: Final = 4096  # images begin at a page, so that a mapping can be handed to a framework as it is
TENSOR_ALIGN_BYTES: Final = 64  # TensorFlow aborts on a DLPack address that is not a multiple of this
MAX_SLOTS: Final = 4096  # one descriptor each in the daemon, one mapping in every worker
MIN_CREDIT: Final = 2  # one batch in training, one on its way
DEFAULT_CREDIT: Final = 16  # half of it is told of and sent at a time: with 8, wake-ups cost a fast trainer a tenth
MAX_CREDIT: Final = 1024
MAX_ARRAY_FILES: Final = 4096  # of a stream: every worker keeps each open
MAX_OPEN_SHARDS: Final = 512  # of a stream in a worker; to open another takes as long as to open an image's own file

# --- work
TASK_ROWS: Final = 32  # rows a worker decodes at a time: two milliseconds of small JPEGs, so that workers share a batch
TASK_S: Final = 0.25  # ... and fewer where they would take longer: of huge pictures a batch would be one worker's
TASKS_AHEAD_PER_WORKER: Final = 2  # one decoding, one whose files are being read
MAX_TASKS_AHEAD: Final = 8  # a worker, where tasks are so cheap that handing them over one by one would cost as much
WORK_AHEAD_S: Final = 0.025  # what lies with a worker then, at most: who comes new waits as long for his first batch
AHEAD_SHARE: Final = 8  # ... if that takes no more than this part of the memory
MAX_BATCH_ROWS: Final = 65536  # row numbers travel as 16 bits
WORKER_RESPAWN_S: Final = 0.2  # pause after a worker's death, doubled up to the next line
WORKER_RESPAWN_MAX_S: Final = 5.0
NEW_WORKERS_S: Final = 60.0  # until they have imported a transform, which may bring large libraries along
WORKER_LEAVE_S: Final = 2.0  # from the end of its socket to its own; it may be starting, or at a huge picture
TASK_ATTEMPTS: Final = 10  # deaths from outside that end a task's stream, ...
TASK_GIVE_UP_S: Final = 60.0  # ... if they go on for so long: somebody may kill workers as fast as they start
# RLIMIT_DATA: heap only, since RLIMIT_AS would count the slots. libwebp and Pillow hold the largest picture four times,
# and its file twice, which makes 2 GiB; the rest is for what a worker keeps, reads ahead and has imported.
WORKER_DATA_BYTES: Final = 3 * GIB
HELPER_OOM_SCORE: Final = 300  # added for workers and the listing, of 1000: both map what the daemon has, 30 % of RAM
# The linear algebra that NumPy and OpenCV bring along, and nobody uses, would take 40 and 140 MB of that for each core.
# Transforms: text has the same hash in all workers, and Albumentations asks no network for its newest version.
WORKER_ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "NO_ALBUMENTATIONS_UPDATE": "1",
}
STOPPED_S: Final = 2.0  # a worker silent for so long may have been stopped by somebody: it is looked at
ROW_DEADLINE_S: Final = 30.0  # the largest picture allowed takes some seconds, on a busy host a few times that
STALLED_S: Final = 180.0  # nothing decoded and no worker replaced, which comes after 60 s: the engine itself is stuck
PROOF_SAMPLES: Final = 16  # whose files prove a root: half of them are there by no chance, and a look takes 50 us
PROOF_S: Final = 10.0  # a file system that says nothing for so long is away, as a mount that hangs
RETURN_MIN_S: Final = 0.1  # between two looks for data that are away, doubled up to ...
RETURN_MAX_S: Final = 5.0  # ... this: what is mounted is seen at once, what is moved or restored so late
READ_AHEAD_BYTES: Final = 64 * MIB  # of a task's files at a time; 32 of the largest would fill a worker's memory
CHUNKS_KEPT_BYTES: Final = 128 * MIB  # of all stores' chunks in a worker, decompressed; orders are made to fit it
UNPACKING_ROWS: Final = 1 << 16  # planned to count how often chunks are decompressed: a tenth of a second
MAX_CHUNK_BYTES: Final = 256 * MIB  # decompressed to get one row: a worker has memory for a few of them
CACHE_UNPUBLISHED_BYTES: Final = 256 * MIB  # a worker's, ahead of the disk; what comes then waits for another epoch
CACHE_PUBLISH_S: Final = 0.25  # from a row that is kept to its place on the disk: what a kill may cost

# --- pictures
MAX_FILE_BYTES: Final = 256 * MIB  # no photograph is larger; a sparse file posing as one is
MAX_PIXELS: Final = 100_000_000  # beyond it an image is a decompression bomb, not training data
MAX_TEXT_BYTES: Final = 1024  # of a string label; every row of a batch has room for the longest
MAX_REASON_CHARS: Final = 200  # of a decoder's message that is kept
MAX_REFUSAL_CHARS: Final = 600  # of why a stream cannot be opened: a transform's labels, those wanted, and its file

# --- mixing
MIXING_BATCHES: Final = 256  # that the shuffle score is taken over: a hundredth of error or less, in milliseconds
MIXING_ROWS: Final = 1 << 15  # ... and no more samples than that, however large batches are
MIXING_COLUMNS: Final = 8  # of a vector: so many numbers tell whether its order is mixed
POORLY_MIXED: Final = 0.9  # a shuffle score below it is told of: every tenth pair of a batch is too much alike
MIXED_ENOUGH: Final = 0.95  # that is what a larger buffer is recommended for

# --- packs
PACK_BATCH_BYTES: Final = 4 * MIB  # of pixels, written at a time: a system call is cheap then, and slots stay few
PACK_AHEAD_BYTES: Final = 256 * MIB  # decoded and not written yet: what workers do while the disk makes all of it safe
PACK_SYNC_BYTES: Final = 256 * MIB  # between two of the journal's entries: what a kill may cost, ...
PACK_SYNC_S: Final = 5.0  # ... or what was written in so long, where the disk is slow
PACK_SHARD_BYTES: Final = 4 * GIB  # of pixels in one .npy file
PACK_TAR_BYTES: Final = GIB  # of a tar shard: as WebDataset's own writer has it in effect
PACK_IMAGE: Final = "X"  # what ml-pyxis calls its images

# --- the wire
MAX_CLIENT_FRAME_BYTES: Final = 64 * KIB  # the largest thing a client may say
HANDSHAKE_MS: Final = 5000
ROUTER_QUEUE: Final = 4096  # headers queued for one client by libzmq; credit is the real bound
SECRET_BYTES: Final = 16  # pairs the descriptor socket with the session
MAX_SESSIONS: Final = 256
MAX_HELD_OVER: Final = 16  # ended subscriptions of a stream that a process holds batches of: each is one of the above
# Descriptors of the daemon, by what was counted: libzmq ends the process that has none left for a connection.
OWN_DESCRIPTORS: Final = 40  # loop, ZeroMQ, log, state; a listing, a reload and a slot on its way to a client
WORKER_DESCRIPTORS: Final = 4  # its socket and its process, and those of its successor while a transform changes
STREAM_DESCRIPTORS: Final = 7  # its list, the locks of it, of its verdicts, its cache; while reloaded, new ones but one
SESSION_DESCRIPTORS: Final = 4  # its connection and the socket that let it in, its lifeline, its process
RELOADED_STREAMS: Final = 16  # that reloads may add without a restart, where there are descriptors to spare
LEAST_SLOTS_A_SESSION: Final = 4  # two batches of its own, and as many in production
KNOCKS: Final = 8  # connections let in at a time: what libzmq may accept before we are told of the first
SPARE_DESCRIPTORS: Final = 4 * (KNOCKS + 1)  # of those who only ask, or come: two groups, twice
MAX_MONITOR_CONNECTIONS: Final = 32  # over HTTP at a time; for one more the oldest goes, so that descriptors last
SHOWN_ROWS: Final = 32  # of a batch on the dashboard: they fill a screen, ...
SHOWN_BYTES: Final = 8 * MIB  # ... if their pixels are no more, nor one row: the loop copies, for some milliseconds
SHOWN_S: Final = 20.0  # a page waits so long for a batch to leave before it asks again
MAX_THUMBNAILS: Final = 512  # of bad samples, kept small as they are
THUMBNAIL_S: Final = 10.0  # to read and decode one
MAX_EPOCHS: Final = 1 << 40  # beyond any training, and within a frame's integers
MAX_WORLD: Final = (1 << 20) - 1  # far beyond any job, and every index up to its padding fits the digest's places
MAX_TRAINER_NAME_CHARS: Final = 64  # longer ones fill the tables in which they stand
MAX_NAMES: Final = 4096  # asked for at a time; the ids fit a client's frame
MAX_SEGMENTS: Final = 512  # parts that an epoch's history may have, one a change of rank or world: half a frame

# --- patience
CONNECT_TIMEOUT_S: Final = 10.0
ASK_AGAIN_S: Final = 1.0  # between a question and the same once more: the daemon may have been on its way
LOOK_TIMEOUT_S: Final = 2.0  # the same for commands that only look: somebody sits before them
SHOWN_NAMES_TIMEOUT_S: Final = 1.0  # for names under a notebook's pictures: without an answer it shows none
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
SEND_COMPANY_S: Final = 0.008  # a batch just decoded waits so long for others, for one wake-up instead of four
SEND_COMPANY_CREDIT: Final = 8  # ... if the trainer's credit is large enough to hide it
ANSWER_TIMEOUT_S: Final = 5.0  # a subscription unanswered for so long is asked again on a new socket
PAIR_S: Final = 5.0  # from a welcome to the lifeline: who died between them keeps its memory no longer; hosts are busy
SILENCE_S: Final = 10.0  # a loop that has waited so long asks whether the daemon still knows of it
AWAY_FIRST_LINE_S: Final = 2.0  # a loop that waits so long for a daemon that is away says so on stderr
AWAY_LINE_S: Final = 30.0  # between two lines on stderr while the daemon is away
HELD_COLLECT_S: Final = 1.0  # all credit held for so long: collect garbage
HELD_ERROR_S: Final = 5.0  # and so long after that: say so
LAST_WORD_S: Final = 1.0  # a stream closed at an epoch's end waits so long for the daemon's word on it
REPORT_INTERVAL_S: Final = 1.0  # a slow loop reports each batch that it drops, but no more often than this
PROGRESS_DELAY_S: Final = 0.02  # releases wait for company at most so long before they are told
DRAIN_S: Final = 5.0  # from SIGTERM to the end
LOOK_FOR_DATA_S: Final = 10.0  # between two looks for data that were not there at the start, unless one mounts them
REFUSED_START_S: Final = 10.0  # a service that cannot start ends no sooner while trainers wait: 6 starts a minute of 20

# --- the log
LOG_SPAN_EVENTS: Final = 50  # of one name, within the next line; beyond a fleet's start, nobody reads more of a kind
LOG_SPAN_S: Final = 30.0
LOG_LINE_VALUE_CHARS: Final = 200  # of a field in a line, which stays one
LOG_TEXT_CHARS: Final = 1 << 16  # of a text, or a field elsewhere: all that one frame of a client can bring along

# --- checkpoints
MAX_NESTING: Final = 64  # of a callback's lists and dicts: JSON that Python's stack can hold, three levels for each

# --- where an epoch's time goes
WAIT_NOTICED: Final = 0.05  # of an epoch: who waits less gains nothing worth mentioning from faster data
LAY_READY: Final = 0.5  # of the batches: with more of them ready, the way to the trainer is what takes so long
READS: Final = 0.5  # of the workers' time: with more of it spent on waiting for reads, the disk is
ALL_AT_WORK: Final = 0.75  # of the workers: they count as all busy; a batch's last tasks leave some without

# --- fairness
CATCH_UP_S: Final = 10.0  # what a leader may lose an epoch so that a follower draws level
KEEP_COST_S: Final = 0.01  # a batch as dear to decode is worth a fresh slot, so that a latecomer finds it in memory
