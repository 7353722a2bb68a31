"""Values on which all processes agree: what a stream is, what a batch holds, how each is named and added up.

    spec           a stream, its labels and images; cursors      spec_file        the stream saved beside a model
    sampler        the samples of a batch                        permutation      a keyed bijection on [0, n), and draws
    leaky_bucket   what was taken lately, time by user           slot_layout      the offsets of arrays in a slot
    steps          the batches of a rank, step by step           display          what people see of a batch
    bad_samples    the rule that replaces bad samples            token            a position as a trainer saves it
    receipt        the tally of an epoch, its digests            text             text and numbers for people
    status         the state of a daemon, all its figures        counters         numbers by group and name, all names
    epoch_timing   where time goes, what limits trainers         rank_receipts    whether ranks together took an epoch
    log            events, for people, journal and programs      import_function  the user's own function, by name
    host           its folders, named files, processors, memory

Pure: no I/O, no clock, no threads. The exceptions are `log`, `counters`, `import_function`, `spec_file` and `host`.
"""
