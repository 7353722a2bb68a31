"""`streamd verify`: `receipt_files` reads what ranks wrote, `command` adds it up and prints it."""
