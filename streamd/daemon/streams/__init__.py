"""The streams that a daemon serves: `catalog` makes each a `served_stream` out of the configuration, which says what
the digest of each of its epochs must be.

`listing_process` lists the samples, in a process that ends; `quarantine` is the durable list of bad ones;
`shuffle_score` tells how well batches mix the labels. `manifest_locks` says who uses a list.
"""
