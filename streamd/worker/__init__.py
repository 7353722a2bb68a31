"""A decode process, `python -m streamd.worker`: it reads, decodes, transforms and reports.

main            receives tasks, sends reports               fill_rows          the rows of one task
stream_reader   a stream that a worker has opened           transforms         the user's own function
inspect_rows    what `streamd check` wants to know of rows, and what the dashboard shows of bad samples
"""
