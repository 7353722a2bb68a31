"""The streams that a daemon serves.

`catalog` builds each stream from the configuration. `served_stream` holds one stream. `expected_digests` computes the
digest that each of its epochs must have, and `digest_turns` says whose comes next. `listing_process` lists the samples
in a process that ends. `quarantine` is the durable list of bad samples. `shuffle_score` measures how well batches mix
the labels. `manifest_locks` keeps a list of samples from being replaced while a daemon serves it.
"""
