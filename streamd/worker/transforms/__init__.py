"""A function of the user's, `f(image, labels, rng) -> (image, labels)`, that workers call for every sample.

`dataset.transform_source` finds where it is written and tells one version of it from another, `load` imports it, `call`
holds it to what was agreed, `trial` tries it before a stream is served.
"""
