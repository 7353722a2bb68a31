"""Values on which all processes agree: what a stream is, what a batch holds, how each is named and added up.

    spec           a stream, its labels and images, cursors, and the batches of a rank, step by step
    sampler        a batch's samples, what replaces bad ones     slot_layout      the offsets of arrays in a slot
    receipt        the tally of an epoch, its digests            token            a position as a trainer saves it
    status         the state of a daemon, all its figures        counters         numbers by name
    epoch_timing   where an epoch's time went, what limits it
    rank_receipts  whether ranks together took an epoch          display          what people see of a batch
    leaky_bucket   what was taken lately, time by user           text             text and numbers for people
    log            events, for people, journal and programs      stderr_guard     what nobody waits for when they log
    host           its folders, named files, processors, memory  import_function  the user's own function, by name
    cluster_settings  what a bridge to a cluster is started with

Pure: no I/O, no clock, no threads. The exceptions are `log`, `stderr_guard`, `import_function` and `host`.
"""
