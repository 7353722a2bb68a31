"""Training a Keras model on a running daemon: the parts of `streamd-train`."""
