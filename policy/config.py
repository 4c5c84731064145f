"""Configuration of a run: a preset, then a TOML file, then flags, each winning over what came before."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from drkernel_q.errors import BadSettings

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def presets(kind: str) -> list[str]:
    """Name the presets of a kind of run (`train`, `sft`, ...): the files `policy/presets/KIND-NAME.toml`."""
    names = (file.name for file in (resources.files("policy") / "presets").iterdir())
    return sorted(name.removesuffix(".toml").removeprefix(f"{kind}-") for name in names if name.startswith(f"{kind}-"))


def load_config(
    model: type[ConfigT],
    kind: str,
    preset: str | None = None,
    file: Path | None = None,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Resolve a configuration; overrides are `section.key=VALUE` with the value in TOML, or bare text.

    A flag that is None was not given; the key of a flag may hold points too.

    Raises:
        BadSettings: a preset, a file, a key or a value is wrong; the message names it.
    """
    values: dict[str, Any] = {}
    if preset is not None:
        _merge(values, _preset(kind, preset))
    if file is not None:
        _merge(values, _read(file))
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise BadSettings(f"`{override}` is no setting; write it as KEY=VALUE.")
        _merge(values, _nested(key.strip(), _value(text.strip())))
    for key, value in (flags or {}).items():
        if value is not None:
            _merge(values, _nested(key, value))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadSettings(_sentence(error, model)) from None


class Difference(NamedTuple):
    """A setting that two configurations have otherwise."""

    key: str
    before: Any
    """None where it was not set."""
    now: Any


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their keys with points; tuples become lists, and lists are values."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = list(value) if isinstance(value, tuple) else value
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any], free: Iterable[str] = ()) -> list[Difference]:
    """List by key what two configurations have otherwise; None is as good as absent.

    Keys that are `free`, with all below them, may differ.
    """
    old, new, allowed = flat(before), flat(now), tuple(free)
    return [
        Difference(key, old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not any(key == name or key.startswith(f"{name}.") for name in allowed)
    ]


def _preset(kind: str, name: str) -> dict[str, Any]:
    if name not in (known := presets(kind)):
        raise BadSettings(f"There is no preset `{name}`; there are {', '.join(known)}.")
    return tomllib.loads((resources.files("policy") / "presets" / f"{kind}-{name}.toml").read_text(encoding="utf-8"))


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"{file} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{file} is no TOML: {error}.") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    key = ".".join(path)
    if first["type"] != "extra_forbidden":
        return f"The setting `{key}` is wrong: {first['msg']}."
    near = difflib.get_close_matches(key, _keys(model), n=1)
    return f"There is no setting `{key}`" + (f"; did you mean `{near[0]}`?" if near else ".")


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _keys(field.annotation, f"{prefix}{name}.")
    return keys
