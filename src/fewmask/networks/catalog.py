"""What `fewmask networks` lists: the heads, and backbones that are good places to start."""

from __future__ import annotations

from typing import Any

HEADS = {
    "deeplabv2": "the paper's: 1x1 and four dilated 3x3 branches, concatenated, squeeze-and-excitation, 3x3 to `width`",
    "deeplabv3plus": "DeepLabv3+: a pyramid at `deep_stride`, refined with fine features at `stride` (4 is usual)",
    "sum4": "classic DeepLabv2: the sum of four dilated 3x3 convolutions straight to the classes",
    "sum2": "sum4 with its first two rates only, to compare with numbers from code that had this bug",
    "setr_naive": "for vision transformers: LayerNorm, 1x1 convolution to `width`, BatchNorm, ReLU, classifier",
}

# name: parameters of the feature extractor in millions, strides, when to take it
BACKBONES: dict[str, tuple[float, tuple[int, ...], str]] = {
    "resnet10t": (4.9, (4, 8, 16, 32), "small; narrow it with options.channels to train from scratch on a CPU"),
    "resnet18": (11.2, (4, 8, 16, 32), "small and quick"),
    "resnet50": (23.5, (4, 8, 16, 32), "the default"),
    "resnet101": (42.5, (4, 8, 16, 32), "the paper's; pretrained: hub or coco-voc-classes"),
    "mobilenetv2_100": (1.8, (4, 8, 16, 32), "few parameters and little memory"),
    "tf_efficientnet_lite4": (11.1, (4, 8, 16, 32), "strong for its size, no squeeze-and-excitation"),
    "convnext_tiny": (27.8, (4, 8, 16, 32), "no BatchNorm of its own: for very small batches, with the head deeplabv2"),
    "vit_tiny_patch16_224": (5.5, (16,), "for setr_naive; small"),
    "vit_base_patch16_384": (86.1, (16,), "the paper's transformer, with head setr_naive"),
}

HINT = (
    "most other timm models with features_only work as network.backbone, too, at any image size; train prints the "
    "stride and the parameters it got, and refuses what it cannot use before anything is trained"
)


def list_networks() -> list[dict[str, Any]]:
    """Heads first, then backbones, then one hint."""
    rows: list[dict[str, Any]] = [{"kind": "head", "name": name, "about": about} for name, about in HEADS.items()]
    for name, (millions, strides, about) in BACKBONES.items():
        rows.append(
            {
                "kind": "backbone",
                "name": name,
                "about": about,
                "parameters": round(millions * 1e6),
                "strides": list(strides),
            }
        )
    return [*rows, {"kind": "hint", "name": "timm", "about": HINT}]
