"""Decoded samples kept on disk: the `store`, and its `file`, with the lock that says who may write."""
