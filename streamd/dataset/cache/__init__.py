"""Decoded samples kept on disk: the `store`, its `file`, and the `writer_lock` that says who may write."""
