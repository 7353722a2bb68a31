"""`streamd show`: a `contact_sheet` of a batch, whose places are in `sheet_grid`."""
