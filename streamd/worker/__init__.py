"""A decode process, `python -m streamd.worker`: it reads, decodes, transforms and reports.

main            takes tasks, gives reports                  fill_rows          one task
stream_reader   a stream as a worker has it open            transforms         the user's own function
thumbnail_process   draws bad samples for the dashboard, in a process of its own
"""
