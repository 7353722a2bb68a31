"""The demonstration: `road` draws a small driving set, `chart` shows what a model has learnt from it."""
