"""tf.data service: one dispatcher and one worker, whose cross-trainer cache all trainers share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import islice

import contest
import tensorflow as tf
import tf_files

SERVICE = tf.data.experimental.service
SETTINGS = contest.Settings(
    library=f"tensorflow {tf.__version__}",
    chosen=f"{tf_files.CHOSEN}; an endless dataset, batched in the service; ShardingPolicy.OFF, CrossTrainerCache, "
    "compression None, one worker for the host",
    source=f"{tf_files.SOURCE}; tf.data.experimental.service, 'Sharing tf.data service with concurrent trainers'",
    inexact="the cache needs an endless dataset, and a trainer begins wherever its sliding window is",
)


def serve(options: contest.Options) -> None:
    host, port = options.address.split(":")
    dispatcher = SERVICE.DispatchServer(SERVICE.DispatcherConfig(port=int(port)))
    worker = SERVICE.WorkerServer(
        SERVICE.WorkerConfig(
            dispatcher_address=options.address, worker_address=f"{host}:{int(port) + 1}", port=int(port) + 1
        )
    )
    print("serving", flush=True)
    signal.sigwait({signal.SIGTERM})
    del worker, dispatcher


def begin(options: contest.Options) -> contest.Epoch:
    shared = SERVICE.distribute(
        processing_mode=SERVICE.ShardingPolicy.OFF,
        service=f"grpc://{options.address}",
        job_name="images",
        compression=None,
        cross_trainer_cache=tf.data.experimental.service.CrossTrainerCache(trainer_id=f"trainer {options.trainer}"),
    )
    same = contest.Options(options.data, options.store, options.workers, 0, options.trainers, options.address)
    endless = tf_files.batches(options, tf_files.shuffled(same).repeat()).apply(shared).prefetch(tf.data.AUTOTUNE)
    batches = endless.as_numpy_iterator()
    steps = -(-len(options.files()) // contest.BATCH)

    def epoch(_: int) -> Iterator[contest.Batch]:
        return islice(batches, steps)

    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS, serve=serve)
