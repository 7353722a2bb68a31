"""What commands share: the guard around each (`run_guarded`), signals (`stop_signals`), progress (`progress`)."""
