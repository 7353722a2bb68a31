"""Values on which all processes agree: what a stream is, what a batch holds, how each is named and added up.

    spec           a stream, its labels and images, cursors, and the batches of a rank, step by step
    sampler        the samples of a batch                        permutation      a keyed bijection on [0, n), and draws
    leaky_bucket   what was taken lately, time by user           slot_layout      the offsets of arrays in a slot
    bad_samples    the rule that replaces bad samples            display          what people see of a batch
    receipt        the tally of an epoch, its digests            token            a position as a trainer saves it
    status         the state of a daemon, all its figures        text             text and numbers for people
    epoch_timing   where time goes, what limits trainers         counters         numbers by group and name, all names
    log            events, for people, journal and programs      rank_receipts    whether ranks together took an epoch
    host           its folders, named files, processors, memory  import_function  the user's own function, by name

Pure: no I/O, no clock, no threads. The exceptions are `log`, `counters`, `import_function` and `host`.
"""
