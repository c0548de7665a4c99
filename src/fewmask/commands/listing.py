"""`fewmask methods`, `networks` and `presets`: what there is."""

from __future__ import annotations

import typer

from fewmask.cli import print_json
from fewmask.config import Config
from fewmask.settings import list_presets, preset, preset_sentence, resolve, written


def show_methods(as_json: bool) -> int:
    from fewmask.methods.table import describe_methods  # the other lists start without torch

    methods = describe_methods()
    if as_json:
        print_json(methods)
        return 0
    for method in methods:
        typer.echo(f"{method['name']}\n  {method['summary']}\n  {method['paper']}")
        typer.echo(f"  scored networks: {', '.join(method['predictors'])}")
        for key, entry in method["settings"].items():
            typer.echo(f"    {key + '=' + written(entry['default']):<28} {entry['meaning']}")
        typer.echo("")
    typer.echo("use: fewmask train DATA --out RUN --method rml stages=3 threshold=0.9")
    return 0


def show_networks(as_json: bool) -> int:
    from fewmask.networks.catalog import list_networks

    networks = list_networks()
    if as_json:
        print_json(networks)
        return 0
    kinds = {kind: [entry for entry in networks if entry["kind"] == kind] for kind in ("head", "backbone", "hint")}
    typer.echo("heads (network.head)")
    for entry in kinds["head"]:
        typer.echo(f"  {entry['name']:<24} {entry['about']}")
    typer.echo(f"\n  {'backbones':<24} {'parameters':>10}  {'strides':<12}  (network.backbone)")
    for entry in kinds["backbone"]:
        strides = ", ".join(str(stride) for stride in entry["strides"])
        typer.echo(f"  {entry['name']:<24} {entry['parameters'] / 1e6:>8.1f} M  {strides:<12}  {entry['about']}")
    typer.echo("\n" + "\n".join(entry["about"] for entry in kinds["hint"]))
    typer.echo("use: fewmask train DATA --out RUN network.backbone=resnet101 network.head=deeplabv2")
    return 0


def show_presets(as_json: bool) -> int:
    presets = {name: preset(name) for name in list_presets()}
    if as_json:
        print_json(presets)
        return 0
    for name, values in presets.items():
        config = resolve(values)
        crop = "x".join(map(str, config.views.crop)) if config.views.crop else "by the images' size"
        network = f"{config.network.head} on {config.network.backbone}"
        typer.echo(f"{name}\n  {preset_sentence(name)}")
        typer.echo(f"  {config.method}, {network}, crop {crop}, {_steps(config)} steps\n")
    typer.echo("use: fewmask train DATA --out RUN --preset camvid")
    return 0


def _steps(config: Config) -> str:
    """Of each baseline and of each stage, where there are any."""
    stage, stages = config.training.steps, config.settings.get("stages")
    if stages is None:
        return str(stage)
    own = [config.learners.get(learner, {}) for learner in ("student_1", "student_2")]  # methods with stages are pairs
    baselines = [config.baseline, *(each.get("baseline", {}) for each in own)]
    common, first, second = (each.get("training", {}).get("steps") for each in baselines)
    two = own[0] != own[1] or config.settings.get("baselines") == "two"
    steps = [str(first or common or stage)] + [str(second or common or stage)] * two
    return " + ".join([*steps, f"{stages} x {stage}"])
