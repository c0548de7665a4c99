"""The PixelStore: maps of the unlabeled pool beside its images. How large they are, and where a sweep writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewmask.data.host_memory import HostMemory
from fewmask.methods.method import Method
from fewmask.types import FlatImages, PixelMaps
from fewmask.views.soft_label_codes import CODES, SAFE


@dataclass(frozen=True)
class MapForm:
    """How the maps of one name are kept."""

    code: str
    classes: int
    stride: int

    def cells(self, images: FlatImages) -> tuple[Tensor, Tensor]:
        """Height and width of each image's map, [n] int64: a network's cells, the last one possibly cut."""
        return -(-images.height // self.stride), -(-images.width // self.stride)

    def bytes(self, images: FlatImages) -> int:
        height, width = self.cells(images)
        return int((height * width).sum()) * CODES[self.code].bytes_per_cell(self.classes)


def map_forms(method: Method, asked: str) -> dict[str, MapForm]:
    """The maps that the method's sweep will store, by name; `asked` is a code or auto."""
    strides = method.stored_strides()
    if not strides:
        return {}
    classes = next(iter(method.networks().values())).num_classes
    code = SAFE if asked == "auto" else asked
    return {name: MapForm(code, classes, stride) for name, stride in strides.items()}


def stored_bytes(forms: Mapping[str, MapForm], images: FlatImages | None) -> int:
    return 0 if images is None else sum(form.bytes(images) for form in forms.values())


def empty_maps(form: MapForm, images: FlatImages, host: HostMemory | None = None, name: str = "") -> PixelMaps:
    """Room for the maps of all images, allocated once: on the images' GPU, or where the host has room."""
    height, width = form.cells(images)
    cells = height * width
    row = CODES[form.code].encode(torch.zeros(1, form.classes))  # one row says width and dtype
    shape = (int(cells.sum()), row.shape[1])
    if images.values.is_cuda:
        values = images.values.new_empty(shape, dtype=row.dtype)
    else:
        values = (host or HostMemory()).empty(name, shape, row.dtype)
    return PixelMaps(values, cells.cumsum(0) - cells, height, width, form.code, form.classes)


def uniform_maps(form: MapForm, images: FlatImages, host: HostMemory | None = None, name: str = "") -> PixelMaps:
    """Maps of the size that a sweep's will have, before there was one: every class is as likely."""
    maps = empty_maps(form, images, host, name)
    row = torch.full((1, form.classes), -math.log(form.classes))
    maps.values[:] = CODES[form.code].encode(row).to(maps.values.device)
    if host is not None:
        host.release()
    return maps


def write_maps(maps: PixelMaps, first: int, log_probability: Tensor) -> None:
    """Keep the maps [N, K, h, w] of N neighbors, the first of which is image `first`."""
    count, _, height, width = log_probability.shape
    wanted = (int(maps.height[first]), int(maps.width[first]))
    assert (height, width) == wanted, f"a map of {(height, width)} cells where the image has {wanted}"
    rows = CODES[maps.code].encode(log_probability.permute(0, 2, 3, 1).flatten(0, 2))  # [N * h * w, *]
    start = int(maps.offset[first])
    maps.values[start : start + count * height * width] = rows.to(maps.values.device)
