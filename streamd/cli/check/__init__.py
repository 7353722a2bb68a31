"""`streamd check`: reads the data as a worker would, and reports what it finds.

command           the command                            run         from configuration to findings, with progress
findings          the findings, which are troubles, and the report (pure)
labels            classes, counts, ranges, copies of files, masks (pure)
reader_pool       starts and replaces reading processes  reader_process   a process that reads and decodes
reader_messages   messages between them (pure)
"""
