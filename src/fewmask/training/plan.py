"""The plan that is printed before a long wait."""

from __future__ import annotations

from collections.abc import Iterator

from fewmask.networks.build import network_report
from fewmask.training.optimizers import head_rate
from fewmask.training.pixel_store import map_forms
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
        ("optimizer", _optimizer_line(session)),
        ("steps", _steps_line(session, start)),
        *_stored_rows(session),
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
        yield "stored", f"{name}: soft labels as {form.code} at stride {form.stride}, {size}"


def _network_rows(session: Session) -> list[tuple[str, str]]:
    networks = session.method.networks()
    report = network_report(next(iter(networks.values())), session.config.network)
    size = f"{report.parameters / 1e6:.1f} M parameters, stride {report.stride}"
    rows = [("network", f"{report.name}, {size} ({', '.join(networks)})")]
    return rows + [("", note) for note in report.notes]


def _settings_line(session: Session) -> str:
    settings = session.method.noise_settings
    return ", ".join(f"{key}={value}" for key, value in settings.model_dump().items())


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
