"""Reads config.yaml into a frozen `Config`, or raises a ConfigError that names every line to correct.

    load       text to data, to streams, to models; errors of the models as sentences
    inherit    `like:` and stream names (pure)            locations    the line of each key, and problems (pure)
    schema     the models, and their JSON schema          parsers      parsers of single values (pure)
    schema_sections, schema_sources                       hints        corrections for common mistakes (pure)
               parts of the models                        units        sizes and durations, 1GiB, 10s (pure)
    fields     the types of the models' keys

config.schema.json is what `streamd schema` prints. Only this package imports pydantic and ruamel.yaml.
"""
