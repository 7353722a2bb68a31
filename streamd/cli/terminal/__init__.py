"""What all commands share: how one ends (`run_guarded`), how far a long one has come (`progress`)."""
