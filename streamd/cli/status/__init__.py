"""`streamd status` and `streamd top`: one `table` of how a daemon is, or one that changes."""
