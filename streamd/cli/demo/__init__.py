"""The demonstration: `road` draws a small driving set, `judge` shows what a model has learnt from it."""
