"""What `streamd check` finds out: the data as a worker would see them, and what follows from that.

command           the command                            run         configuration in, findings out; how far it has come
reader_pool       the processes that read, kept alive    reader_process   one of them: read and decoded, nothing kept
reader_messages   what is said between them (pure)       findings    what was found, and what of it is trouble (pure)
totals            what they tell of a stream, added up   summary     from totals to findings, and what is estimated
duplicates        files with the same content (pure)     labels      classes, counts and ranges of labels (pure)
trainers_that_fit     trainers that `memory` has room for    report      findings as lines for people (pure)
start_obstacles   what else `serve` would refuse
"""
