"""The plan that is printed before a long wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fewmask.methods.method import learner_of
from fewmask.networks.build import network_report
from fewmask.networks.recomputation import recomputed_modules
from fewmask.settings import SectionType
from fewmask.training.forecast import Forecast
from fewmask.training.learners import learner_config
from fewmask.training.optimizers import head_rate
from fewmask.training.pixel_store import map_forms
from fewmask.training.placement import describe_placement, place_of_soft_labels
from fewmask.training.session import Session
from fewmask.types import FlatImages
from fewmask.views.sampler import describe_views


def describe_plan(session: Session, start: int, forecast: Forecast | None = None) -> str:
    """Data, network, method, optimizer and steps, a line each, with what was decided on the user's behalf."""
    config, dataset, stores = session.config, session.dataset, session.stores
    assert config.views.crop is not None
    rows = [
        ("data", _data_line(session)),
        ("classes", f"{len(dataset.classes)}: {', '.join(dataset.classes.names)}"),
        ("images", f"{_sizes(stores.labeled)}, {stores.channels} channels, {_store_size(session)} decoded"),
        *(("", line) for line in describe_placement(stores, session.maker)),
        ("views", describe_views(config.views, config.views.crop, session.method.views)),
        *_network_rows(session),
        ("method", f"{config.method}: {_settings_line(session)}"),
        *_average_rows(session),
        *_optimizer_rows(session),
        ("steps", _steps_line(session, start)),
        *_memory_rows(session),
        *_stored_rows(session),
        *_forecast_rows(forecast),
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


def _stored_rows(session: Session) -> Iterator[tuple[str, str]]:
    """The soft labels that each stage will keep."""
    pool = session.stores.unlabeled
    for name, form in map_forms(session.method, session.config.training.soft_labels).items():
        assert pool is not None, "soft labels are of unlabeled images"
        total = form.bytes(pool)
        size = f"{total / len(pool):,.0f} bytes per image, {total / 2**20:.1f} MiB in all"
        where = place_of_soft_labels(session.stores, total)
        yield "stored", f"{name}: soft labels as {form.code} at stride {form.stride}, {size}, {where}"


def _memory_rows(session: Session) -> Iterator[tuple[str, str]]:
    """What is computed again to save memory, and what that changes."""
    training, trained = session.config.training, session.method.trained()
    if training.checkpointing:
        counts = ", ".join(f"{len(recomputed_modules(network))} of {name}" for name, network in trained.items())
        yield "memory", f"blocks that are computed again in the backward pass: {counts}"
    if training.accumulate > 1:
        live = [name for name, network in trained.items() if any(norm.training for norm in network.batch_norms())]
        parts = f"{training.accumulate} micro-batches per step, students compute each twice"
        per_part = f"BatchNorm statistics are per micro-batch ({', '.join(live)}); network.frozen_norm=true keeps them"
        yield (
            "memory",
            f"{parts}; {per_part if live else 'no live BatchNorm, so the update is that of the whole batch'}",
        )


def _forecast_rows(forecast: Forecast | None) -> list[tuple[str, str]]:
    return [] if forecast is None else [("time", forecast.time_line()), ("memory", forecast.memory_line())]


def _network_rows(session: Session) -> Iterator[tuple[str, str]]:
    """A row for each kind of network, with the names of those that are of this kind."""
    networks = session.method.networks()
    settings = {name: learner_config(session.config, learner_of(name)).network for name in networks}
    for kind, names in _alike(settings):
        report = network_report(networks[names[0]], kind)
        size = f"{report.parameters / 1e6:.1f} M parameters, stride {report.stride}"
        yield "network", f"{report.name}, {size} ({', '.join(names)})"
        yield from (("", note) for note in report.notes)


def _settings_line(session: Session) -> str:
    settings = session.method.noise_settings
    return ", ".join(f"{key}={value}" for key, value in settings.model_dump().items())


def _average_rows(session: Session) -> list[tuple[str, str]]:
    """How far moving averages get within a stage: a prototype that keeps 0.9999 a step hardly moves in a short one."""
    steps, averages = session.config.training.steps, session.method.moving_averages()
    parts = [f"{each.what} keep {each.factor:g} a step, {each.start_left(steps):.1%} of the start" for each in averages]
    return [("averages", f"{'; '.join(parts)} after {steps} steps")] if parts else []


def _optimizer_rows(session: Session) -> Iterator[tuple[str, str]]:
    kinds = _alike(session.stepper.optimizers)
    for settings, names in kinds:
        rates = f"rate {settings.lr:g} (head {head_rate(settings):g}), {settings.schedule}"
        whose = f" ({', '.join(names)})" if len(kinds) > 1 else ""
        yield "optimizer", f"{settings.name}, {rates}, weight decay {settings.weight_decay:g}{whose}"


def _alike(settings: Mapping[str, SectionType]) -> list[tuple[SectionType, list[str]]]:
    """Different settings, each with the names that have them."""
    kinds: list[tuple[SectionType, list[str]]] = []
    for name, each in settings.items():
        names = next((names for kind, names in kinds if kind == each), None)
        if names is None:
            kinds.append((each, [name]))
        else:
            names.append(name)
    return kinds


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
