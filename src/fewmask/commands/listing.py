"""`fewmask methods`, `networks` and `presets`: what there is."""

from __future__ import annotations

import typer

from fewmask.cli import print_json
from fewmask.methods.table import describe_methods
from fewmask.networks.catalog import list_networks
from fewmask.settings import list_presets, preset


def show_methods(as_json: bool) -> int:
    methods = describe_methods()
    if as_json:
        print_json(methods)
        return 0
    for method in methods:
        typer.echo(f"{method['name']}: {method['summary']}")
        typer.echo(f"  {method['paper']}")
        for key, entry in method["settings"].items():
            typer.echo(f"  {key + '=' + str(entry['default']):<28} {entry['meaning']}")
        typer.echo("")
    typer.echo("use: fewmask train DATA --out RUN --method mean_teacher threshold=0.9")
    return 0


def show_networks(as_json: bool) -> int:
    networks = list_networks()
    if as_json:
        print_json(networks)
        return 0
    for entry in networks:
        typer.echo("  ".join(f"{value}" for value in entry.values()))
    return 0


def show_presets(as_json: bool) -> int:
    presets = {name: preset(name) for name in list_presets()}
    if as_json:
        print_json(presets)
        return 0
    for name, values in presets.items():
        training, network = values.get("training", {}), values.get("network", {})
        steps, crop = training.get("steps", "?"), "x".join(map(str, values.get("views", {}).get("crop", [])))
        line = f"{values.get('method', 'mean_teacher')}, {network.get('backbone', '?')}, crop {crop}, {steps} steps"
        typer.echo(f"{name:<18} {line}")
    typer.echo("\nuse: fewmask train DATA --out RUN --preset camvid")
    return 0
