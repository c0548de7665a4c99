"""The plan that is printed before a long wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fewmask.config import OptimizerSettings
from fewmask.data.check_report import counted
from fewmask.networks.build import network_report
from fewmask.networks.recomputation import recomputed_modules
from fewmask.networks.weight_matching import DRAWN
from fewmask.settings import SectionType, written
from fewmask.training.baselines import Baseline
from fewmask.training.forecast import Forecast
from fewmask.training.learners import learner_config
from fewmask.training.memory_advice import untried
from fewmask.training.optimizers import head_rate
from fewmask.training.pixel_store import map_forms
from fewmask.training.placement import describe_placement, place_of_soft_labels
from fewmask.training.session import Session
from fewmask.types import FlatImages
from fewmask.views.sampler import describe_views


def describe_plan(
    session: Session, start: int, forecast: Forecast | None = None, baselines: Sequence[Baseline] = ()
) -> str:
    """Data, network, method, optimizer and steps, a line each, with what was decided on the user's behalf."""
    dataset, stores = session.dataset, session.stores
    return _lines(
        ("data", _data_line(session)),
        ("classes", f"{len(dataset.classes)}: {', '.join(dataset.classes.names)}"),
        ("images", f"{_sizes(stores.labeled)}, {counted(stores.channels, 'channel')}, {_store_size(session)} decoded"),
        *(("", line) for line in describe_placement(stores, session.maker)),
        _views_row(session),
        *_network_rows(session),
        *_companion_rows(session),
        *_method_rows(session),
        *_average_rows(session),
        *_optimizer_rows(session, baselines),
        *_steps_rows(session, start, baselines),
        *_memory_rows(session),
        *_stored_rows(session),
        *_forecast_rows(session, forecast),
        *(("note", note) for note in [*dataset.notes, *_own_notes(session)]),
    )


def describe_baseline(session: Session, start: int) -> str:
    """What is a baseline's own: the plan of the run that it belongs to has been printed."""
    return _lines(_views_row(session), *_method_rows(session), *_optimizer_rows(session), *_steps_rows(session, start))


def _lines(*rows: tuple[str, str]) -> str:
    return "\n".join(f"  {name:<10} {text}" for name, text in rows)


def _views_row(session: Session) -> tuple[str, str]:
    views = session.config.views
    assert views.crop is not None
    return "views", describe_views(views, views.crop, session.method.views)


def _own_notes(session: Session) -> Iterator[str]:
    networks = session.method.networks().items()
    if any(each.weights.source == DRAWN for name, each in networks if name not in session.method.companions):
        yield "weights start at random; network.pretrained=hub downloads ImageNet's, which helps where masks are few"
    if not session.dataset.val:
        yield f"without held-out labels {session.method.predictors[0]} ships, as it is at the last step"


def _data_line(session: Session) -> str:
    dataset = session.dataset
    counts = f"{len(dataset.labeled)} labeled, {len(dataset.unlabeled)} unlabeled, {len(dataset.val)} validation"
    return f"{dataset.root} ({dataset.layout}): {counts} images; split {session.checksums['split'][:12]}"


def _sizes(images: FlatImages) -> str:
    sizes = sorted(set(zip(images.height.tolist(), images.width.tolist(), strict=True)))
    shown = "x".join(map(str, sizes[0]))
    return (f"{shown} to {sizes[-1][0]}x{sizes[-1][1]}" if len(sizes) > 1 else shown) + " (height x width)"


def _store_size(session: Session) -> str:
    stores = session.stores
    parts = [part for part in (stores.labeled, stores.unlabeled, stores.val) if part is not None]
    size = sum(part.values.numel() * part.values.element_size() for part in parts)
    return f"{size / 2**20:.1f} MiB"


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


def _forecast_rows(session: Session, forecast: Forecast | None) -> list[tuple[str, str]]:
    if forecast is None:
        return []
    advice = untried(session.config, session.engine.precision, session.engine.device)
    return [("time", forecast.time_line()), ("memory", forecast.memory_line(advice))]


def _network_rows(session: Session) -> Iterator[tuple[str, str]]:
    """A row for each kind of network, with the names of those that are of this kind."""
    networks, method = session.method.networks(), session.method
    learners = {name: method.learner_of(name) for name in networks if name not in method.companions}
    settings = {name: learner_config(session.config, learner).network for name, learner in learners.items()}
    for kind, names in _alike(settings):
        reports = [network_report(networks[name], kind) for name in names]
        size = f"{reports[0].parameters / 1e6:.1f} M parameters, stride {reports[0].stride}"
        yield "network", f"{reports[0].name}, {size} ({', '.join(names)})"
        yield from (("", note) for note in dict.fromkeys(note for report in reports for note in report.notes))


def _companion_rows(session: Session) -> Iterator[tuple[str, str]]:
    """What trains beside the learners, and how."""
    for name, companion in session.method.companions.items():
        parameters = [parameter for module in session.method.updated()[name] for parameter in module.parameters()]
        size = sum(parameter.numel() for parameter in parameters) / 1e6
        optimizer = _optimizer_words(session.stepper.optimizers[name], head=companion.built)
        yield "companion", f"{name}, {size:.1f} M parameters; {optimizer}"


def _method_rows(session: Session) -> Iterator[tuple[str, str]]:
    """The settings that are not the method's own defaults; config.yaml has all of them."""
    config, fields = session.config, type(session.method.noise_settings).model_fields
    given = {key: value for key, value in config.settings.items() if value != _plain(fields[key].default)}
    words = ", ".join(f"{key}={written(value)}" for key, value in given.items())
    preset = f", preset {config.preset}" if config.preset else ""
    yield "method", f"{config.method}{preset}: {words or 'its default settings'}"


def _plain(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


def _average_rows(session: Session) -> list[tuple[str, str]]:
    """How far moving averages get within a stage: a prototype that keeps 0.9999 a step hardly moves in a short one."""
    steps, averages = session.config.training.steps, session.method.moving_averages()
    parts = [f"{each.what} keep {each.factor:g} a step, {each.start_left(steps):.1%} of the start" for each in averages]
    return [("averages", f"{'; '.join(parts)} after {steps} steps")] if parts else []


def _optimizer_rows(session: Session, baselines: Sequence[Baseline] = ()) -> Iterator[tuple[str, str]]:
    """A row for each kind of settings, with the names of learners and baselines that have them."""
    before = {each.folder.path.name: each.config.optimizer for each in baselines}
    learners = {name: session.stepper.optimizers[name] for name in session.method.trained()}
    kinds = _alike({**learners, **before})
    for settings, names in kinds:
        whose = f" ({', '.join(names)})" if len(kinds) > 1 else ""
        yield "optimizer", f"{_optimizer_words(settings)}{whose}"


def _optimizer_words(settings: OptimizerSettings, head: bool = True) -> str:
    rates = f"rate {settings.lr:g}" + (f" (head {head_rate(settings):g})" if head else "")
    return f"{settings.name}, {rates}, {settings.schedule}, weight decay {settings.weight_decay:g}"


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


def _steps_rows(session: Session, start: int, baselines: Sequence[Baseline] = ()) -> Iterator[tuple[str, str]]:
    """What comes one after the other, and what each step sees."""
    training, engine, stages = session.config.training, session.engine, session.method.stages
    before = [f"a baseline of {each.config.training.steps} supervised steps" for each in baselines]
    own = f"{stages} stages of {training.steps} steps" if stages > 1 else f"{training.steps} steps"
    begin = f", from step {start} on" if start else ""
    yield "steps", ", then ".join([*before, f"{own}{begin}"])
    images = f"{training.batch} labeled"
    if session.method.views.unlabeled:
        images += f" + {training.unlabeled_batch or training.batch} unlabeled"
    processes = f", {engine.world.size} processes" if engine.world.size > 1 else ""
    yield "", f"{images} images each, {engine.precision} on {engine.device}{processes}, seed {session.config.seed}"
