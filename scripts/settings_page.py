"""Writes docs/settings.md from the settings themselves: `python scripts/settings_page.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fewmask.config import Config, Section
from fewmask.methods.method import MethodSettings
from fewmask.methods.table import METHODS, describe_methods
from fewmask.settings import all_keys, list_presets

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

_START = """# Settings

Made by `python scripts/settings_page.py` from the code; edit the descriptions there, not here.

A setting is a word `key=value` on the command line, or a line in a YAML file:

```sh
fewmask train DATA --out runs/first training.steps=2000 views.crop=256x320 optimizer.name=adamw
fewmask train DATA --out runs/second --config runs/first/config.yaml seed=1
```

- Later wins: `--preset` (without it and without a file: `general`), then `--config FILE`, then options such as
  `--labels`, then `key=value` words. A resumed run starts from its own `config.yaml`.
- Rates belong to one optimizer. Naming another, as above, leaves out what the preset or file that named the first one
  has under `optimizer` and `baseline.optimizer`; the defaults below count then, and what you say beside the new name.
  The run says what was left out, and the plan which rates there are. `baseline.optimizer.name` does the same for the
  baseline alone.
- Two sizes are height x width: `256x320`. Lists are written with commas: `views.scale=0.5,1.5`.
- The section may be left out where only one section has the key: `steps=2000`. A key that no section has belongs to the
  method: `threshold=0.9`.{clash}
- A line of a file may be spelled like a word: `training.steps: 4` and `steps: 4` are `training: {{steps: 4}}`, and
  `crop: 64x64`, `scale: 0.5,1.5`, `lr: 1e-4` and `crop: none` mean what they mean there. A key without a section must
  be clear whatever the method is, and what a file says twice, in any spelling, is an error.
- An unknown key is an error that names the closest known ones. `config.yaml` in the run folder holds all settings of a
  run, resolved.
- Further down, *none* means that the setting is not set.
"""

_METHODS = """## Methods

Every method has its own settings, and the model noise of its students, with these defaults unless it lists others:
"""


def page() -> str:
    """The whole page: sections of the configuration, then each method's own settings, then the presets."""
    parts = [_START.format(clash=_clash())]
    parts += ["## The run\n", _table(Config, "", without=frozenset({"preset"}))]
    for name, kind in _sections():
        parts += [f"## `{name}`\n", _table(kind, f"{name}.")]
    parts += [_METHODS, _table(MethodSettings, "settings.")]
    parts += [_method_part(entry) for entry in describe_methods()]
    parts += ["## Presets\n", *(_preset_part(name) for name in list_presets())]
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, type[Section]]]:
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield name, field.annotation


def _clash() -> str:
    """Method settings that share their name with a section's key, which the short form means."""
    shared = {key.rpartition(".")[2]: key for key in all_keys() if "." in key}
    own = {key for kind in METHODS.values() for key in kind.Settings.model_fields}
    both = [f"  - `settings.{key}`; `{key}` alone is `{shared[key]}`" for key in sorted(own & set(shared))]
    return "\n".join([" These need their prefix:", *both]) if both else ""


def _method_part(entry: Mapping[str, Any]) -> str:
    kind = METHODS[entry["name"]].Settings
    lines = [f"### {entry['name']}\n", f"{entry['summary']}\n", f"`{entry['loss']}`  ", f"{entry['paper']}\n"]
    shared = MethodSettings.model_fields
    same = frozenset(key for key, field in shared.items() if kind.model_fields[key].default == field.default)
    return "\n".join([*lines, _table(kind, "settings.", without=same)])


def _preset_part(name: str) -> str:
    text = (resources.files("fewmask") / "presets" / f"{name}.yaml").read_text()
    return f"### {name}\n\n```yaml\n{text.rstrip()}\n```\n"


def _table(kind: type[Section], prefix: str, without: frozenset[str] = frozenset()) -> str:
    properties = kind.model_json_schema()["properties"]
    lines = ["| key | default | values | meaning |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        shape = properties[name]
        if "$ref" in shape or name in without:  # a section of its own, or described elsewhere
            continue
        default = _shown(field.get_default(call_default_factory=True))
        lines.append(f"| `{prefix}{name}` | {default} | {_values(shape)} | {field.description or ''} |")
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    """A default as it would be typed."""
    if value is None or value == ():
        return "*none*"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{value}`"


def _values(shape: Mapping[str, Any]) -> str:
    """What a JSON schema allows, in words."""
    if "anyOf" in shape:
        return " or ".join(_values(each) for each in shape["anyOf"] if each.get("type") != "null")
    if "enum" in shape or "const" in shape:
        return ", ".join(f"`{value}`" for value in shape.get("enum", [shape.get("const")]))
    kind = shape.get("type")
    if kind == "array" and "prefixItems" in shape:
        return f"{len(shape['prefixItems'])} of: {_values(shape['prefixItems'][0])}"
    if kind == "array":
        return f"list of: {_values(shape['items'])}"
    if kind in ("integer", "number"):
        return f"{kind}{_bounds(shape)}"
    return {"boolean": "`true`, `false`", "string": "text", "object": "mapping"}.get(str(kind), "anything")


def _bounds(shape: Mapping[str, Any]) -> str:
    names = {"exclusiveMinimum": "above", "minimum": "from", "exclusiveMaximum": "below", "maximum": "to"}
    return "".join(f" {word} {shape[key]:.10g}" for key, word in names.items() if key in shape)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
