"""From presets, files and `key=value` words to a Config; every unknown key is an error with a suggestion."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fewmask.config import HORIZON, Config, Section, Size
from fewmask.errors import ConfigError
from fewmask.layers import layered, merge_all

SectionType = TypeVar("SectionType", bound=Section)
_EXPONENT = r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"  # YAML 1.1 reads 1e-4 as a word
_NUMBER = r"[-+]?[\d.]+([eE][-+]?\d+)?"
_SPELLED = rf"\d+x\d+|{_EXPONENT}|{_NUMBER}(,\s*{_NUMBER})+"  # values of words that YAML alone leaves as text
DEFAULT_PRESET = "general"  # of `fewmask train` without a preset or a file


def list_presets() -> list[str]:
    folder = resources.files("fewmask") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def preset(name: str) -> dict[str, Any]:
    require_preset(name, "--preset")
    return {**_mapping(_preset_text(name), name), "preset": name}


def require_preset(name: str, where: str) -> None:
    if name not in list_presets():
        raise ConfigError(f"there is no preset {name!r}", where=where, fix=", ".join(list_presets()))


def preset_sentence(name: str) -> str:
    """What the preset is for: the comment at the top of its file."""
    top = itertools.takewhile(lambda line: line.startswith("#"), _preset_text(name).splitlines())
    return " ".join(line.removeprefix("#").strip() for line in top)


def _preset_text(name: str) -> str:
    return (resources.files("fewmask") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


def read_settings_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(
            "the settings file does not exist", where=str(path), fix="a YAML file such as a run's config.yaml"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError(f"the settings file cannot be read: {why}", where=str(path), fix="a YAML file") from error
    return _mapping(text, str(path))


def spelled_out(values: Mapping[Any, Any], method_keys: Collection[str], where: str) -> dict[str, Any]:
    """A settings file in full: its lines may be spelled as words, `training.steps: 4`, `steps: 4`, `crop: 64x64`.

    What is said twice, in any spelling, is an error, since nobody could tell which one counts.
    """
    result: dict[str, Any] = {}
    for key, value in values.items():
        section = isinstance(value, Mapping) and "." not in str(key)
        full = str(key) if section else _full_key(str(key), method_keys, where)
        _put(result, full.split("."), value, "", where)
    return result


def _put(result: dict[str, Any], path: list[str], value: Any, prefix: str, where: str) -> None:
    """Into the mapping, with keys and values as words have them."""
    first, *rest = path
    full = f"{prefix}{first}"
    inner = {".".join(rest): value} if rest else value
    if not isinstance(inner, Mapping):
        if first in result:
            raise ConfigError(f"{full} is set twice", where=where, fix="one of them")
        result[first] = _as_word_value(full, inner)
        return
    if not isinstance(result.setdefault(first, {}), dict):
        raise ConfigError(f"{full} is set twice", where=where, fix="one of them")
    for key, each in inner.items():
        _put(result[first], str(key).split("."), each, f"{full}.", where)


def _as_word_value(full: str, value: Any) -> Any:
    """What the same text would be on the command line, where YAML made a string of it."""
    if not isinstance(value, str):
        return value
    if value == "none" and _may_be_none(full):
        return None
    return _value(value) if not _is_text(full) and re.fullmatch(_SPELLED, value) else value


def resolve(
    *layers: Mapping[str, Any], words: Iterable[str] = (), method_keys: Collection[str] = (), where: str = "settings"
) -> Config:
    """Later layers win; `key=value` words win over all. `method_keys` are the method's own settings."""
    return _horizons_in_steps(read_section(Config, layered(*layers, word_layer(words, method_keys)), where))


def word_layer(words: Iterable[str], method_keys: Collection[str] = ()) -> dict[str, Any]:
    """All words as one layer, whatever their order."""
    return merge_all(parse_word(word, method_keys) for word in words)


def _horizons_in_steps(config: Config) -> Config:
    """A horizon of 0.1 is a tenth of the steps, whatever their number has become in the last layer."""
    shares = {
        key: value
        for key, value in config.settings.items()
        if key.endswith(HORIZON) and isinstance(value, float) and 0 < value < 1
    }
    horizons = {key: max(1, round(share * config.training.steps)) for key, share in shares.items()}
    return config.model_copy(update={"settings": config.settings | horizons})


def parse_word(word: str, method_keys: Collection[str] = ()) -> dict[str, Any]:
    """`training.steps=500`, or `steps=500` where only one section has that key; else it is the method's setting."""
    key, separator, text = word.partition("=")
    if not separator or not key:
        raise ConfigError(f"{word!r} is not a setting", where="command line", fix="key=value, e.g. training.steps=2000")
    full = _full_key(key.strip(), method_keys)
    if full == "preset":  # in a config.yaml it says where settings came from; it brings none
        raise ConfigError("a preset is not chosen by a setting", where=word, fix=f"--preset {text.strip() or 'NAME'}")
    read = _text if _is_text(full) else _value
    value: Any = None if text.strip() == "none" and _may_be_none(full) else read(text)
    for part in reversed(full.split(".")):
        value = {part: value}
    return value


def written(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(written(each) for each in value)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


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


def _full_key(key: str, method_keys: Collection[str] = (), where: str = "command line") -> str:
    if "." in key or key in Config.model_fields:
        return key
    matches = [full for full in all_keys() if full.rpartition(".")[2] == key and "." in full]
    matches += [f"settings.{key}"] if key in method_keys else []
    if len(matches) > 1:
        raise ConfigError(f"the setting {key!r} could mean several", where=where, fix=" or ".join(matches))
    return matches[0] if matches else f"settings.{key}"


def _may_be_none(key: str) -> bool:
    field = _known_field(key)
    return field is not None and type(None) in get_args(field.annotation)


def _is_text(key: str) -> bool:
    field = _known_field(key)
    return field is not None and field.annotation in (str, str | None)


def _known_field(key: str) -> FieldInfo | None:
    """Of a full key; none of a method's own settings, which only the method knows."""
    key = re.sub(r"^((learners|companions)\.[^.]+\.)?(baseline\.)?", "", key)  # whose these are does not matter
    section, _, name = key.rpartition(".")
    owner = Config.model_fields[section].annotation if section in Config.model_fields else None if section else Config
    return owner.model_fields.get(name) if isinstance(owner, type) and issubclass(owner, Section) else None


def _text(text: str) -> Any:
    """A name as it stands, with or without quotes: a folder 640x480 is no size, and a file 0123 is not 83."""
    text = text.strip()
    quoted = re.fullmatch(r"""'[^']*'|"[^"]*"|null|~""", text)
    return _yaml(text, "command line", "key=value, e.g. training.cache=/fast/cache") if quoted else text


def _value(text: str) -> Any:
    if re.fullmatch(r"\d+x\d+", text):  # 256x320: height x width
        return [int(part) for part in text.split("x")]
    value = _yaml(text, "command line", "key=value, e.g. views.scale=0.5,1.5") if text.strip() else ""
    if isinstance(value, str) and "," in value:
        return [_value(part) for part in value.split(",")]
    if isinstance(value, str) and re.fullmatch(_EXPONENT, value):
        return float(value)
    return value


def _mapping(text: str, where: str) -> dict[str, Any]:
    values = _yaml(text, where, "key: value lines") or {}
    if not isinstance(values, dict):
        raise ConfigError("settings must be a mapping", where=where, fix="key: value lines")
    return values


def _yaml(text: str, where: str, fix: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2024-13-01 is no day
        raise ConfigError(f"not readable as YAML: {error}", where=where, fix=fix) from None


def _first_problem(section: type[Section], error: ValidationError, where: str) -> ConfigError:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        if isinstance(problem["input"], dict) and len(problem["input"]) == 1:  # trainig.steps=3
            key = f"{key}.{next(iter(problem['input']))}"
        close = _close_keys(key, section)
        valid = f"did you mean {' or '.join(close)}?" if close else ", ".join(all_keys(section))
        return ConfigError(f"unknown setting {key!r}", where=where, fix=valid)
    field = _field(section, [str(part) for part in problem["loc"]])
    described = field.description if field else None
    wanted = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ").split(", unable")[0]
    if problem["type"] == "tuple_type":
        size = field is not None and Size in (field.annotation, *get_args(field.annotation))
        wanted = "height x width, e.g. 256x320" if size else "numbers with commas between them, e.g. 0.5,1.5"
    return ConfigError(f"{key} cannot be {problem['input']!r}", where=where, fix=f"{wanted} ({described or key})")


def _close_keys(key: str, section: type[Section]) -> list[str]:
    """Keys of the section; for a method's, where words without a section end up, those of all sections, too."""
    own = all_keys(section)
    bare = {} if section.__module__ == Config.__module__ else {full.rpartition(".")[2]: full for full in all_keys()}
    names = bare | {name: name for name in own}
    return [names[name] for name in difflib.get_close_matches(key, names, n=3, cutoff=0.5)]


def _field(section: type[Section], path: list[str]) -> FieldInfo | None:
    field = section.model_fields.get(path[0]) if path else None
    kind = field.annotation if field else None
    if isinstance(kind, type) and issubclass(kind, Section) and len(path) > 1:
        return _field(kind, path[1:])
    return field
