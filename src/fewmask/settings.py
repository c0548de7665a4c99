"""From presets, files and `key=value` words to a Config; every unknown key is an error with a suggestion."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from fewmask.config import Config, Section
from fewmask.errors import ConfigError

SectionType = TypeVar("SectionType", bound=Section)


def list_presets() -> list[str]:
    folder = resources.files("fewmask") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def preset(name: str) -> dict[str, Any]:
    if name not in list_presets():
        raise ConfigError(f"there is no preset {name!r}", where="--preset", fix=", ".join(list_presets()))
    text = (resources.files("fewmask") / "presets" / f"{name}.yaml").read_text()
    return {**_mapping(text, name), "preset": name}


def read_settings_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(
            "the settings file does not exist", where=str(path), fix="a YAML file such as a run's config.yaml"
        )
    return _mapping(path.read_text(), str(path))


def resolve(*layers: Mapping[str, Any], words: Iterable[str] = ()) -> Config:
    """Later layers win; `key=value` words win over all."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer)
    for word in words:
        merged = merge(merged, parse_word(word))
    return read_section(Config, merged)


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in top.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if nested else value
    return result


def parse_word(word: str) -> dict[str, Any]:
    """`training.steps=500`, or `steps=500` where only one section has that key; else it is the method's setting."""
    key, separator, text = word.partition("=")
    if not separator or not key:
        raise ConfigError(f"{word!r} is not a setting", where="command line", fix="key=value, e.g. training.steps=2000")
    value: Any = _value(text)
    for part in reversed(_full_key(key.strip()).split(".")):
        value = {part: value}
    return value


def read_section(section: type[SectionType], values: Mapping[str, Any], where: str = "settings") -> SectionType:
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        raise _first_problem(section, error, where) from None


def all_keys(section: type[Section] = Config, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in section.model_fields.items():
        kind = field.annotation
        nested = isinstance(kind, type) and issubclass(kind, Section)
        keys += all_keys(kind, f"{prefix}{name}.") if nested else [prefix + name]  # type: ignore[arg-type]
    return keys


def _full_key(key: str) -> str:
    if "." in key or key in Config.model_fields:
        return key
    matches = [full for full in all_keys() if full.rpartition(".")[2] == key and "." in full]
    if len(matches) > 1:
        raise ConfigError(f"the setting {key!r} could mean several", where="command line", fix=" or ".join(matches))
    return matches[0] if matches else f"settings.{key}"


def _value(text: str) -> Any:
    if re.fullmatch(r"\d+x\d+", text):  # 256x320: height x width
        return [int(part) for part in text.split("x")]
    value = yaml.safe_load(text) if text.strip() else ""
    if isinstance(value, str) and "," in value:
        return [yaml.safe_load(part) for part in value.split(",")]
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)  # YAML 1.1 reads 1e-4 as a word
    return value


def _mapping(text: str, where: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"not readable as YAML: {error}", where=where, fix="key: value lines") from None
    if not isinstance(values, dict):
        raise ConfigError("settings must be a mapping", where=where, fix="key: value lines")
    return values


def _first_problem(section: type[Section], error: ValidationError, where: str) -> ConfigError:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, all_keys(section), n=3, cutoff=0.5)
        valid = f"did you mean {' or '.join(close)}?" if close else ", ".join(all_keys(section))
        return ConfigError(f"unknown setting {key!r}", where=where, fix=valid)
    described = _description(section, [str(part) for part in problem["loc"]])
    return ConfigError(f"{key} = {problem['input']!r}: {problem['msg'].lower()}", where=where, fix=described)


def _description(section: type[Section], path: list[str]) -> str:
    field = section.model_fields.get(path[0]) if path else None
    if field is None:
        return ""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Section) and len(path) > 1:
        return _description(kind, path[1:])
    return field.description or ""
