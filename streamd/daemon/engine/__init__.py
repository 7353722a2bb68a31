"""Batches made on this host, in decode processes that are watched and replaced.

engine        produces batches and handles their outcomes; owns the other parts, and calls its EngineListener
worker_pool   the processes, in generations: starts and replaces them, and assigns tasks
worker_handle, watchdog, crashes   one process: its socket, its deadline, and what its exit says about a row
batch_job     one batch and its tasks, and how many rows a task has
open_streams, absences, mount_events   the streams that workers have open, and those whose data are missing
"""
