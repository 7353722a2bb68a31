"""The configuration: config.yaml -> a frozen `Config`, or a ConfigError that names every line to mend.

    load       text -> data -> streams -> models, and what the models refuse, as sentences
    inherit    `like:` and stream names (pure)            locations    a place and a sentence (pure)
    schema     the models, and as editors read them;      parsers      single values (pure)
               _sections, fields, and _sources, made      hints        what people mean who write otherwise (pure)
               of what formats declare                    units        1GiB, 10s (pure)

config.schema.json is what `streamd schema` prints.

Only this package knows pydantic and ruamel.yaml.
"""
