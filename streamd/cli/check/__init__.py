"""`streamd check`: reads the data as a worker would, and reports what it finds.

command           the command                            run         from configuration to findings, with progress
reader_pool       starts and replaces reading processes  reader_process   a process that reads and decodes
reader_messages   messages between them (pure)           findings    the findings, and which are troubles (pure)
totals            sums of a stream's results             summary     from totals to findings and estimates
duplicates        files with the same content (pure)     labels      classes, counts and ranges of labels (pure)
masks             how masks fit their pictures, class numbers (pure)
mask_reading      what a reading process counts of masks
report            findings as lines of text (pure)       start_obstacles   other reasons for which `serve` refuses
"""
