"""Reads config.yaml into a frozen `Config`, or raises a ConfigError that names every line to correct.

    load       text to data, to streams, to models
    inherit    `like:` and stream names (pure)            locations    the line of each key, and problems (pure)
    schema     the models, and their JSON schema          errors       errors of the models as sentences, with hints
    schema_sections                                       units        sizes and durations, 1GiB, 10s (pure)
               the models of its parts
    fields     the types of the models' keys

config.schema.json is what `streamd schema` prints. Only this package imports pydantic and ruamel.yaml.
"""
