"""The sources of samples: one model for each `kind`, built from the settings that the format declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, Union, get_args, get_origin, get_type_hints

from pydantic import Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic_core import CoreSchema, core_schema

from streamd.config.fields import ConfigModel, DataGlob, DataPath, PixelRange, ScalarValue, Text, build_validation_error
from streamd.dataset.formats import FORMATS
from streamd.dataset.sources import IS_PATTERN, DataSource, Scalar

# The type of a key in a configuration, by the type of the format's setting; other types are used as they are.
_KEY_TYPES: Final[dict[object, object]] = {
    Path: DataPath,
    str: Text,
    tuple[float, float]: PixelRange,
    Mapping[str, Scalar]: dict[str, ScalarValue],
}


class SourceModel(ConfigModel):
    """The keys below `source`, of one kind."""

    settings: ClassVar[type[DataSource]]

    def build_source(self) -> DataSource:
        """Returns the settings of the format, filled with the keys of this model."""
        return self.settings(**{name: value for name, value in self if name != "kind"})

    @model_validator(mode="after")
    def _check_setting_mistakes(self) -> Self:
        if mistakes := [((key,), sentence) for key, sentence in self.build_source().find_setting_mistakes()]:
            raise build_validation_error(*mistakes)
        return self


def _build_source_model(settings: type[DataSource]) -> type[SourceModel]:
    hints = get_type_hints(settings, include_extras=True)
    declared: Any = settings  # the settings of every format are a dataclass
    keys = {
        each.name: _build_field_definition(hints[each.name], each.default) for each in fields(declared) if each.init
    }
    kind = Literal.__getitem__(settings.kind)
    model = create_model(  # type: ignore[call-overload]  # the keys are known when this runs
        settings.__name__, __base__=SourceModel, __doc__=settings.__doc__, kind=(kind, ...), **keys
    )
    model.settings = settings
    made: type[SourceModel] = model
    return made


def _build_field_definition(hint: Any, default: object) -> tuple[Any, Any]:
    """Returns the type and the pydantic field of a key; editors show the text of the setting as its description."""
    kind, *marks = get_args(hint)
    about = next(mark for mark in marks if isinstance(mark, str))
    is_optional = get_origin(kind) in {Union, UnionType} and NoneType in get_args(kind)
    plain = next(each for each in get_args(kind) if each is not NoneType) if is_optional else kind
    reader: Any = DataGlob if IS_PATTERN in marks else _KEY_TYPES.get(plain, plain)
    return (reader | None if is_optional else reader), Field(... if default is MISSING else default, description=about)


SOURCE_MODELS: Final[dict[str, type[SourceModel]]] = {
    kind: _build_source_model(each.settings) for kind, each in FORMATS.items()
}
ENCODED_KINDS: Final = frozenset(kind for kind, model in SOURCE_MODELS.items() if model.settings.is_encoded)


class _FilledSource:
    """Makes pydantic validate by the models, and return the settings that they fill."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        models: Any = Annotated[Union[tuple(SOURCE_MODELS.values())], Field(discriminator="kind")]  # noqa: UP007 - of a tuple
        return core_schema.no_info_after_validator_function(SourceModel.build_source, handler.generate_schema(models))


FilledSource = Annotated[DataSource, _FilledSource()]
