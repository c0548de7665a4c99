"""The transformer on images that are neither square nor a multiple of the patch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from fewmask.networks.build import build_network
from tests.networks.small import images, vit_settings


def vit():
    return build_network(vit_settings(), num_classes=3).double().eval()


def test_the_head_is_what_the_text_says():
    head = vit().head.eval()
    state = head.state_dict()
    maps = images(2, 24, 3, 5, dtype=torch.float64)
    tokens = maps.permute(0, 2, 3, 1)
    normalized = (tokens - tokens.mean(-1, keepdim=True)) / (tokens.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    mixed = normalized @ state["embedding.1.weight"][:, :, 0, 0].T + state["embedding.1.bias"]
    feature = (mixed / (1 + 1e-5) ** 0.5).relu().permute(0, 3, 1, 2)  # BatchNorm at its start: mean 0, variance 1
    torch.testing.assert_close(head.embedding(maps), feature, atol=1e-10, rtol=0)


def test_a_transposed_network_sees_the_transposed_image():
    net = vit()
    twin = copy.deepcopy(net)
    model = twin.backbone.body.model
    with torch.no_grad():
        model.patch_embed.proj.weight.copy_(model.patch_embed.proj.weight.transpose(2, 3).clone())
        grid = model.pos_embed[:, 1:].reshape(1, 4, 4, 24).transpose(1, 2)
        model.pos_embed[:, 1:] = grid.reshape(1, 16, 24).clone()
    wide = images(2, 3, 48, 112, dtype=torch.float64)
    torch.testing.assert_close(twin(wide.mT).logits.mT, net(wide).logits, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 5), (1, 2), (2, 6)])
def test_a_patch_lands_in_its_own_row_and_column(row, column):
    net = vit()
    for block in net.backbone.body.model.blocks:  # without attention a token knows its own patch only
        block.attn.proj.weight.data.zero_()
    dark = torch.zeros(1, 3, 48, 112, dtype=torch.float64)
    bright = dark.clone()
    bright[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = 1
    changed = (net(bright).features - net(dark).features).abs().sum(dim=(0, 1)) > 1e-12
    assert changed.nonzero().tolist() == [[row, column]]


def test_sizes_that_no_patch_divides_are_padded_with_the_mean():
    net = vit()
    ragged = images(1, 3, 40, 75, dtype=torch.float64)
    padded = F.pad((ragged - net.mean) / net.std, (0, 5, 0, 8)) * net.std + net.mean
    torch.testing.assert_close(net(ragged).logits, net(padded).logits, atol=1e-9, rtol=0)
    assert net(ragged).logits.shape[2:] == (3, 5)


def test_the_stride_is_the_patch():
    assert vit().stride == 16
