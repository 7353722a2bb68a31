"""`streamd probe`: `measure` starts trainers and adds up what they get, `trainer_process` is one of them."""
