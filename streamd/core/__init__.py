"""Values that every process agrees on: what a stream is, what a batch holds, how each is named and added up.

    spec           a stream, its labels and images; cursors      spec_file        the stream that is kept beside a model
    sampler        the samples of a batch                        permutation      a keyed bijection on [0, n)
    sample_rng     what is drawn for a sample in an epoch        slot_layout      where everything lies in a slot
    steps          the batches of a rank, step by step           captions         rows of a batch in words
    bad_samples    what a batch becomes when some are bad        token            a place as a trainer saves it
    receipt        the tally of an epoch, its order digest       text             text and numbers for people
    status         how a daemon is doing                         activity         what it did between two looks
    counters       numbers by group and name                     epoch_timing     where an epoch's time went
    log            one event, said once                          import_function  the user's own function, by name

Pure: no I/O, no clock, no threads. The exceptions are `log`, `counters`, `import_function` and `spec_file`.
"""
