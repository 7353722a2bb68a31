"""`streamd show`: a `contact_sheet` of a batch."""
