"""Batches made on this host, in decode processes that are watched and replaced.

engine        produces batches, judges what comes of them; owns the rest, and calls its EngineListener
worker_pool   the processes, in generations: which of them gets which task
worker_handle, watchdog, crashes   one process: its socket, its deadline, what its end says of a row
batch_job, row_cost   one batch and its tasks, and how many rows a task has
open_streams, absences, mount_events   the streams that workers know, and those whose data are missing
"""
