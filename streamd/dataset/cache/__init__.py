"""Decoded samples kept on disk: the `store`, and its `file`, with the lock that decides which process may write."""
