"""The configuration: config.yaml -> a frozen `Config`, or a ConfigError that names every line to mend.

    load       text -> data -> streams -> models          error_text   what the models refuse, as sentences (pure)
    inherit    `like:` and stream names (pure)            locations    a place and a sentence (pure)
    schema     the models; _sections, fields, and         parsers      single values (pure)
               _sources, made of what formats declare
    json_schema    the models, as editors read them (pure); config.schema.json is what `streamd schema` prints
    hints      what people mean who write otherwise (pure)    units        1GiB, 10s (pure)

Only this package knows pydantic and ruamel.yaml.
"""

from streamd.config.load import ConfigInput, load_config, locate_errors
from streamd.config.schema import Config, StreamConfig, list_unserved_settings

__all__ = ["Config", "ConfigInput", "StreamConfig", "list_unserved_settings", "load_config", "locate_errors"]
