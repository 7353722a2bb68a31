"""`streamd show`: a `contact_sheet` of a batch; `draw_text` writes on it."""
