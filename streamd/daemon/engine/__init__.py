"""Batches made on this host: `engine` cuts them into tasks for the `worker_pool`.

batch_job      one batch on its way             open_streams    the streams that workers know
worker_handle  one worker, with its watchdog    crashes         what a worker's end says of a sample
absences       streams whose data are away      mount_events    when mounts change
row_cost       how many rows a task has
record_results what a task leaves behind
"""
