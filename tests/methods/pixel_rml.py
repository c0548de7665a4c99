"""RML on 4x4 images with networks that see one pixel, and its parts as loops over pixels."""

import numpy as np
import torch
from torch import Tensor, nn

from fewmask.config import LossSettings
from fewmask.labels import IGNORE
from fewmask.learning.losses import LabeledLoss
from fewmask.methods.rml import P0, RMLSettings, RobustMutualLearning
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.types import Batch, Prediction

K, D, SIZE = 3, 2, 4


class PixelNetwork(SegmentationNetwork):
    """Two linear maps per pixel: enough to follow by hand."""

    def __init__(self, seed: int) -> None:
        nn.Module.__init__(self)
        generator = torch.Generator().manual_seed(seed)
        self.embed = nn.Parameter(torch.randn(D, 3, generator=generator, dtype=torch.float64))
        self.classify = nn.Parameter(torch.randn(K, D, generator=generator, dtype=torch.float64))
        self.num_classes = K

    @property
    def stride(self) -> int:
        return 1

    @property
    def feature_channels(self) -> int:
        return D

    def forward(self, images: Tensor, noise: object = None) -> Prediction:
        features = torch.einsum("dc,nchw->ndhw", self.embed, images)
        return Prediction(torch.einsum("kd,ndhw->nkhw", self.classify, features), features)


def method_of(**settings: object) -> RobustMutualLearning:
    chosen = {"dropout": 0.0, "stochastic_depth": 1.0, "momentum": 0.9, "decay": 0.8, "labeled_every": 2, **settings}
    method = RobustMutualLearning(
        RMLSettings(**chosen), lambda learner: PixelNetwork(int(learner[-1])), LabeledLoss(LossSettings())
    ).double()
    for index, prototypes in enumerate(method.prototypes):
        generator = torch.Generator().manual_seed(10 + index)
        prototypes.center.copy_(torch.randn(K, D, generator=generator, dtype=torch.float64))
        prototypes.known.fill_(True)
    return method


def batch_of(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def images() -> Tensor:
        return torch.rand(2, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)

    label = torch.randint(0, K, (2, SIZE, SIZE), generator=generator)
    label[0, 0, 0] = IGNORE
    valid = torch.ones(2, SIZE, SIZE, dtype=torch.bool)
    valid[1, 3] = False
    box = torch.zeros(2, SIZE, SIZE, dtype=torch.bool)
    box[0, 1:3, 1:4] = True
    box[1, :, :2] = True
    position = torch.arange(2)
    soft = torch.randn(2, K, SIZE, SIZE, generator=generator, dtype=torch.float64).log_softmax(1)
    return Batch(
        image=images(), label=label, image_index=position, image_position=position, weak=images(), valid=valid,
        strong=(images(), images()), box=box, partner=torch.tensor([1, 0]), weak_index=position,
        weak_position=position, stored={P0: soft},
    )  # fmt: skip


def denoise_by_loop(network: PixelNetwork, prototypes: Tensor, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The rectified label of each pixel (Eqs. 6 and 10), and the class of each pixel by the network itself."""
    embed, classify = network.embed.detach().numpy(), network.classify.detach().numpy()
    label, own = np.full((2, SIZE, SIZE), IGNORE), np.full((2, SIZE, SIZE), IGNORE)
    for n, y, x in np.ndindex(2, SIZE, SIZE):
        if not batch.valid[n, y, x]:
            continue
        feature = embed @ batch.weak[n, :, y, x].numpy()
        weight = np.exp([-np.linalg.norm(feature - center) for center in prototypes.numpy()])
        label[n, y, x] = (weight / weight.sum() * np.exp(batch.stored[P0][n, :, y, x].numpy())).argmax()
        own[n, y, x] = (classify @ feature).argmax()
    return label, own


def loss_by_loop(network: PixelNetwork, images: Tensor, label: np.ndarray) -> Tensor:
    """Mean cross entropy over the pixels that have a label."""
    losses = []
    for n, y, x in np.ndindex(*label.shape):
        if label[n, y, x] != IGNORE:
            logits = network.classify @ (network.embed @ images[n, :, y, x])
            losses.append(logits.logsumexp(0) - logits[int(label[n, y, x])])
    return torch.stack(losses).mean()


def mix_by_loop(first: np.ndarray, batch: Batch) -> np.ndarray:
    """m * x_u1 + (1 - m) * x_u2 for images [2, C, H, W] or labels [2, H, W]."""
    mixed = first.copy()
    for n, y, x in np.ndindex(2, SIZE, SIZE):
        if batch.box[n, y, x]:
            mixed[n, ..., y, x] = first[1 - n, ..., y, x]
    return mixed
