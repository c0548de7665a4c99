"""The plan that is printed before a long wait."""

from __future__ import annotations

from fewmask.networks.build import network_report
from fewmask.training.optimizers import head_rate
from fewmask.training.session import Session
from fewmask.types import FlatImages
from fewmask.views.sampler import describe_views


def describe_plan(session: Session, start: int) -> str:
    """Data, network, method, optimizer and steps, a line each, with what was decided on the user's behalf."""
    config, dataset, stores = session.config, session.dataset, session.stores
    assert config.views.crop is not None
    rows = [
        ("data", _data_line(session)),
        ("classes", f"{len(dataset.classes)}: {', '.join(dataset.classes.names)}"),
        ("images", f"{_sizes(stores.labeled)}, {stores.channels} channels, {_store_size(session)} decoded"),
        ("views", describe_views(config.views, config.views.crop, session.method.views)),
        *_network_rows(session),
        ("method", f"{config.method}: {_settings_line(session)}"),
        *_average_rows(session),
        ("optimizer", _optimizer_line(session)),
        ("steps", _steps_line(session, start)),
        *(("note", note) for note in dataset.notes),
    ]
    if not dataset.val:
        rows.append(
            ("note", f"without held-out labels {session.method.predictors[0]} ships, as it is at the last step")
        )
    return "\n".join(f"  {name:<10} {text}" for name, text in rows)


def _data_line(session: Session) -> str:
    dataset = session.dataset
    counts = f"{len(dataset.labeled)} labeled, {len(dataset.unlabeled)} unlabeled, {len(dataset.val)} validation"
    return f"{dataset.root} ({dataset.layout}): {counts} images; split {session.checksums['split'][:12]}"


def _sizes(images: FlatImages) -> str:
    sizes = sorted(set(zip(images.height.tolist(), images.width.tolist(), strict=True)))
    return (
        "x".join(map(str, sizes[0]))
        if len(sizes) == 1
        else f"{sizes[0][0]}x{sizes[0][1]} to {sizes[-1][0]}x{sizes[-1][1]}"
    )


def _store_size(session: Session) -> str:
    stores = session.stores
    parts = [part for part in (stores.labeled, stores.unlabeled, stores.val) if part is not None]
    size = sum(part.values.numel() * part.values.element_size() for part in parts)
    return f"{size / 2**20:.0f} MiB"


def _network_rows(session: Session) -> list[tuple[str, str]]:
    networks = session.method.networks()
    report = network_report(next(iter(networks.values())), session.config.network)
    size = f"{report.parameters / 1e6:.1f} M parameters, stride {report.stride}"
    rows = [("network", f"{report.name}, {size} ({', '.join(networks)})")]
    return rows + [("", note) for note in report.notes]


def _settings_line(session: Session) -> str:
    settings = session.method.noise_settings
    return ", ".join(f"{key}={value}" for key, value in settings.model_dump().items())


def _average_rows(session: Session) -> list[tuple[str, str]]:
    """How far moving averages get within a stage: a prototype that keeps 0.9999 a step hardly moves in a short one."""
    steps, averages = session.config.training.steps, session.method.moving_averages()
    parts = [f"{each.what} keep {each.factor:g} a step, {each.start_left(steps):.1%} of the start" for each in averages]
    return [("averages", f"{'; '.join(parts)} after {steps} steps")] if parts else []


def _optimizer_line(session: Session) -> str:
    settings = session.config.optimizer
    rates = f"rate {settings.lr:g} (head {head_rate(settings):g}), {settings.schedule}"
    return f"{settings.name}, {rates}, weight decay {settings.weight_decay:g}"


def _steps_line(session: Session, start: int) -> str:
    training, engine = session.config.training, session.engine
    labeled = f"{training.batch} labeled"
    both = (
        f"{labeled} + {training.unlabeled_batch or training.batch} unlabeled"
        if session.method.views.unlabeled
        else labeled
    )
    processes = f", {engine.world.size} processes" if engine.world.size > 1 else ""
    begin = f"{start} to " if start else ""
    where = f"{engine.precision} on {engine.device}{processes}, seed {session.config.seed}"
    return f"{begin}{training.steps} of {both} images, {where}"
