"""Reads config.yaml into a frozen `Config`, or raises a ConfigError that names every line to correct.

    load       text to data, to streams (`like:`), to models
    schema     the models, and their JSON schema          errors       errors of the models as sentences, with hints
    schema_sections                                       locations    the line of each key, and problems (pure)
               the models of its parts                    units        sizes and durations, 1GiB, 10s (pure)
    fields     the types of the keys, with their bounds   images       where the images of a stream lie (pure)
    rules      what goes together in a stream (pure)

config.schema.json, which is not in the repository, is what `streamd schema` prints: setup.py writes it. Only this
package imports pydantic and ruamel.yaml.
"""
