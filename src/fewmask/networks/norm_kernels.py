"""Triton kernels of BatchNorm in training, forwards and backwards, with the ReLU, shortcut and gate that follow it.

Maps lie in channels-last order, so a map is a matrix [rows, channels] of N * h * w pixels. Sums are added in one fixed
order: every program sums up some tiles, and one more kernel adds what programs found. What is read a second time is
read from the end, where the cache still has it.

With m the mean, s = 1 / sqrt(variance + eps), weight w and bias b of a channel:

    y = relu(keep * (w * s * (x - m) + b) + shortcut)
    g = keep * dz, with dz = dy where y > 0
    db = sum g, dw = s * sum g * (x - m), dx = w * s * (g - db / rows - s * (x - m) * dw / rows)
"""
# Triton reads annotations as its own, so there are none but its constants, which are in capitals. Numbers that differ
# from layer to layer have no code of their own (`do_not_specialize`), but for channels, which tell how far tiles are
# aligned.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "turns"])
def moment_sums(
    maps, sums, rows, channels, turns,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of x - first and of its square, with the first pixel of each channel: so their difference keeps digits."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < channels
    first = tl.load(maps + channel, known, other=0.0).to(tl.float32)
    part, parts = tl.program_id(1), tl.num_programs(1)
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    square = tl.zeros([ROWS, CHANNELS], tl.float32)
    for turn in tl.range(turns, num_stages=STAGES):
        row = (turn * parts + part) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        value = tl.load(maps + row[:, None] * channels + channel[None, :], inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - first[None, :], 0.0)
        total += value
        square += value * value
    place = part * channels + channel
    tl.store(sums + place, tl.sum(total, 0), known)
    tl.store(sums + parts * channels + place, tl.sum(square, 0), known)


@triton.jit(do_not_specialize=["rows", "parts"])
def settle_moments(
    maps, sums, weight, bias, running_mean, running_variance, batches, found,
    rows, channels, parts, momentum, eps, CHANNELS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < channels
    total, square = _added_up(sums, channel, known, channels, parts, CHANNELS, SPLITS)
    away = total / rows  # of the mean from the first pixel
    variance = square / rows - away * away
    variance = tl.where(variance < 0.0, 0.0, variance)
    mean = tl.load(maps + channel, known, other=0.0).to(tl.float32) + away
    inverse = 1.0 / tl.sqrt(variance + eps)
    scale = tl.load(weight + channel, known, other=0.0) * inverse
    tl.store(found + channel, mean, known)
    tl.store(found + channels + channel, inverse, known)
    tl.store(found + 2 * channels + channel, scale, known)
    tl.store(found + 3 * channels + channel, tl.load(bias + channel, known, other=0.0) - mean * scale, known)
    _move(running_mean + channel, mean, momentum, known)
    _move(running_variance + channel, variance * (rows / (rows - 1.0)), momentum, known)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def _move(running, value, momentum, known):
    before = tl.load(running, known, other=0.0)
    tl.store(running, before + momentum * (value - before), known)


@triton.jit
def _added_up(sums, channel, known, channels, parts, CHANNELS: tl.constexpr, SPLITS: tl.constexpr):
    """Both sums of each channel over all parts."""
    one = tl.zeros([SPLITS, CHANNELS], tl.float32)
    other = tl.zeros([SPLITS, CHANNELS], tl.float32)
    for first in range(0, parts, SPLITS):
        part = first + tl.arange(0, SPLITS)
        inside = (part < parts)[:, None] & known[None, :]
        place = part[:, None] * channels + channel[None, :]
        one += tl.load(sums + place, inside, other=0.0)
        other += tl.load(sums + parts * channels + place, inside, other=0.0)
    return tl.sum(one, 0), tl.sum(other, 0)


@triton.jit(do_not_specialize=["rows", "pixels", "step"])
def apply_moments(
    maps, scale, shift, shortcut, keep, step, answer, rows, channels, pixels,
    RELU: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < channels
    inside = (row < rows)[:, None] & known[None, :]
    place = row[:, None] * channels + channel[None, :]
    value = tl.load(maps + place, inside, other=0.0).to(tl.float32)
    value = value * tl.load(scale + channel, known, other=0.0)[None, :]
    value += tl.load(shift + channel, known, other=0.0)[None, :]
    if GATED:
        value *= tl.load(keep + row // pixels * step, row < rows, other=0.0).to(tl.float32)[:, None]
    if ADDED:
        value += tl.load(shortcut + place, inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value <= 0.0, 0.0, value)  # NaN stays NaN, as in torch
    tl.store(answer + place, value.to(answer.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["rows", "pixels", "turns", "step"])
def gradient_sums(
    pull, more, maps, answer, mean, scale, shift, keep, step, through,
    sums, rows, channels, pixels, turns,
    RELU: tl.constexpr, ADDED: tl.constexpr, FORKED: tl.constexpr, GATED: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of g and g * (x - m); writes dz where a shortcut wants it. An answer that went two ways is pulled twice."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < channels
    center = tl.load(mean + channel, known, other=0.0)
    factor, offset = tl.load(scale + channel, known, other=0.0), tl.load(shift + channel, known, other=0.0)
    part, parts = tl.program_id(1), tl.num_programs(1)
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    product = tl.zeros([ROWS, CHANNELS], tl.float32)
    for turn in tl.range(turns, num_stages=STAGES):
        row = (turn * parts + part) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        place = row[:, None] * channels + channel[None, :]
        value = tl.load(maps + place, inside, other=0.0).to(tl.float32)
        pulled = tl.load(pull + place, inside, other=0.0).to(tl.float32)
        if FORKED:
            pulled += tl.load(more + place, inside, other=0.0).to(tl.float32)
        if RELU:
            if ADDED:
                after = tl.load(answer + place, inside, other=0.0).to(tl.float32)
            else:
                after = value * factor[None, :] + offset[None, :]
            pulled = tl.where(after <= 0.0, 0.0, pulled)
        if ADDED:
            tl.store(through + place, pulled.to(through.dtype.element_ty), inside)
        if GATED:
            pulled *= tl.load(keep + row // pixels * step, row < rows, other=0.0).to(tl.float32)[:, None]
        total += pulled
        product += pulled * (value - center[None, :])  # zero outside, where nothing pulls
    place = part * channels + channel
    tl.store(sums + place, tl.sum(total, 0), known)
    tl.store(sums + parts * channels + place, tl.sum(product, 0), known)


@triton.jit(do_not_specialize=["rows", "parts"])
def settle_gradients(
    sums, weight, inverse, settled, rows, channels, parts,
    CHANNELS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """dx = a * g + b * (x - m) + c: writes a, b and c, then dw and db."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < channels
    total, product = _added_up(sums, channel, known, channels, parts, CHANNELS, SPLITS)
    sharpness = tl.load(inverse + channel, known, other=0.0)
    to_weight = sharpness * product
    straight = tl.load(weight + channel, known, other=0.0) * sharpness
    linear = -straight * sharpness * to_weight / rows
    constant = -straight * total / rows
    tl.store(settled + channel, straight, known)
    tl.store(settled + channels + channel, linear, known)
    tl.store(settled + 2 * channels + channel, constant, known)
    tl.store(settled + 3 * channels + channel, to_weight, known)
    tl.store(settled + 4 * channels + channel, total, known)


@triton.jit(do_not_specialize=["rows", "pixels", "step"])
def apply_gradients(
    pull, maps, mean, scale, shift, settled, keep, step, to_maps,
    rows, channels, pixels,
    RELU: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < channels
    inside = (row < rows)[:, None] & known[None, :]
    place = row[:, None] * channels + channel[None, :]
    value = tl.load(maps + place, inside, other=0.0).to(tl.float32)
    pulled = tl.load(pull + place, inside, other=0.0).to(tl.float32)
    if RELU:
        factor, offset = tl.load(scale + channel, known, other=0.0), tl.load(shift + channel, known, other=0.0)
        pulled = tl.where(value * factor[None, :] + offset[None, :] <= 0.0, 0.0, pulled)
    if GATED:
        pulled *= tl.load(keep + row // pixels * step, row < rows, other=0.0).to(tl.float32)[:, None]
    straight = tl.load(settled + channel, known, other=0.0)
    linear = tl.load(settled + channels + channel, known, other=0.0)
    constant = tl.load(settled + 2 * channels + channel, known, other=0.0)
    away = value - tl.load(mean + channel, known, other=0.0)[None, :]
    result = straight[None, :] * pulled + linear[None, :] * away + constant[None, :]
    tl.store(to_maps + place, result.to(to_maps.dtype.element_ty), inside)
