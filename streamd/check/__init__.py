"""What `streamd check` finds out: the data as a worker would see them, and what follows from that.

survey     configuration in, findings out            findings   what was found, and what of it is trouble (pure)
readers    the processes that read, kept alive       reading    one of them: files read and decoded, nothing kept
records    what is said between them (pure)
tallies    what they tell of a stream, added up      summary    from sums to findings
twins      files with the same content (pure)        labels     classes, counts and ranges of labels (pure)
fitting    trainers that `memory` has room for       report     findings as lines for people (pure)
progress   how far it has come, on stderr
"""
