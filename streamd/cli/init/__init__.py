"""`streamd init`: the first config.yaml, made from what lies at a path."""
