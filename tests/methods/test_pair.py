"""Learners of unlike architecture, p0 of their own, and other starts of a stage."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from fewmask.config import LossSettings
from fewmask.errors import ConfigError
from fewmask.labels import IGNORE
from fewmask.learning.losses import LabeledLoss
from fewmask.methods.method import Method
from fewmask.methods.rml import P0, RMLSettings, RobustMutualLearning
from fewmask.networks.build import build_network
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.randomness import Randomness
from fewmask.training.engine import Engine
from fewmask.types import Batch, Measure, Prediction, Progress, Update
from tests.methods.pixel_rml import K, batch_of, loss_by_loop, mix_by_loop
from tests.methods.test_contract import fake_of, make_fake
from tests.miniature import CLASSES, NETWORK, make_batch, make_method, make_progress, requests
from tests.networks.small import vit_settings

SIZE, STRIDES, WIDTHS = 4, (1, 2), (2, 3)


class BlockNetwork(SegmentationNetwork):
    """Two linear maps per block of stride x stride pixels."""

    def __init__(self, seed: int, stride: int, width: int) -> None:
        nn.Module.__init__(self)
        generator = torch.Generator().manual_seed(seed)
        self.embed = nn.Parameter(torch.randn(width, 3, generator=generator, dtype=torch.float64))
        self.classify = nn.Parameter(torch.randn(K, width, generator=generator, dtype=torch.float64))
        self.num_classes, self.block, self.width = K, stride, width

    @property
    def stride(self) -> int:
        return self.block

    @property
    def feature_channels(self) -> int:
        return self.width

    def forward(self, images: Tensor, noise: object = None) -> Prediction:
        features = torch.einsum("dc,nchw->ndhw", self.embed, nn.functional.avg_pool2d(images, self.block))
        return Prediction(torch.einsum("kd,ndhw->nkhw", self.classify, features), features)


def pair_of(strides: tuple[int, int] = STRIDES, widths: tuple[int, int] = WIDTHS, **settings: object):
    """Both learners start from weights of their own."""

    def build(learner: str) -> BlockNetwork:
        index = int(learner[-1]) - 1
        return BlockNetwork(index, strides[index], widths[index])

    chosen = {"dropout": 0.0, "stochastic_depth": 1.0, "momentum": 0.9, "decay": 0.8, **settings}
    return RobustMutualLearning(RMLSettings(**chosen), build, LabeledLoss(LossSettings())).double()


def unlike_batch() -> Batch:
    """The first learner's soft labels for each pixel, the second one's for each block of 2x2."""
    generator = torch.Generator().manual_seed(3)
    stored = {
        f"{P0}_{index + 1}": torch.randn(
            2, K, SIZE // stride, SIZE // stride, generator=generator, dtype=torch.float64
        ).log_softmax(1)
        for index, stride in enumerate(STRIDES)
    }
    return replace(batch_of(), stored=stored)


def enlarged(probability: np.ndarray) -> np.ndarray:
    """[N, K, 2, 2] -> [N, K, 4, 4], half-pixel centers: pixel 1 lies a quarter of the way from block 0 to block 1."""
    share = np.array([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]])  # of the two blocks in each of four pixels
    return np.einsum("yi,nkij,xj->nkyx", share, probability, share)


def test_labels_cross_at_crop_resolution_from_each_teachers_own_p0():
    """Student 1 (stride 1) learns what p0 of the second learner (stride 2) says, and the other way round."""
    method, batch = pair_of(coupling="indirect", confidence="static"), unlike_batch()
    soft = [batch.stored[f"{P0}_1"].exp().numpy(), enlarged(batch.stored[f"{P0}_2"].exp().numpy())]
    labels = [np.where(batch.valid.numpy(), each.argmax(1), IGNORE) for each in soft]
    for learner in (0, 1):
        assert np.array_equal(method.pseudo_labels(batch)[learner].label.numpy(), labels[learner])
    assert not np.array_equal(*labels)
    updates = {
        each.optimizer: each.loss for each in requests(method, batch, make_progress()) if isinstance(each, Update)
    }
    got = {name: [term for term in loss.terms if term.name == "unlabeled"] for name, loss in updates.items()}
    mixed = [torch.from_numpy(mix_by_loop(strong.numpy(), batch)) for strong in batch.strong]
    targets = [mix_by_loop(label, batch) for label in labels]
    (term,) = got["student_1"]
    assert (term.total / term.count).item() == pytest.approx(
        loss_by_loop(method.student_1, mixed[0], targets[1]).item()
    )
    logits = enlarged(method.student_2(mixed[1]).logits.detach().numpy())
    losses = np.log(np.exp(logits).sum(1)) - np.take_along_axis(logits, np.minimum(targets[0], K - 1)[:, None], 1)[:, 0]
    (term,) = got["student_2"]
    assert (term.total / term.count).item() == pytest.approx(losses[targets[0] != IGNORE].mean())


def test_rectification_stays_with_each_learner():
    """omega_i * p0_i on the learner's own grid and scale: the second label is that of 2x2 blocks, enlarged."""
    method, batch = pair_of(), unlike_batch()
    for prototypes in method.prototypes:
        nn.init.normal_(prototypes.center, generator=torch.Generator().manual_seed(4))
        prototypes.known.fill_(True)
    method.prototypes_2.spread.fill_(2.0)  # T = 16 / 2, while the first learner's is 1
    features = method.teacher_2(batch.weak).features.numpy()  # [2, 3, 2, 2]
    center = method.prototypes_2.center.numpy()  # [K, 3]
    distance = np.linalg.norm(features[:, None] - center[None, :, :, None, None], axis=2)  # [2, K, 2, 2]
    weight = np.exp(-8 * distance) / np.exp(-8 * distance).sum(1, keepdims=True) * batch.stored[f"{P0}_2"].exp().numpy()
    expected = enlarged(weight / weight.sum(1, keepdims=True)).argmax(1)
    assert np.array_equal(method.pseudo_labels(batch)[1].label.numpy(), np.where(batch.valid.numpy(), expected, IGNORE))


def test_a_step_moves_prototypes_of_either_width_and_compares_at_the_finer_stride():
    method, batch = pair_of(), unlike_batch()
    for prototypes in method.prototypes:
        prototypes.known.fill_(True)
    one = method.teacher_1(batch.weak).logits.softmax(1).numpy()
    other = enlarged(method.teacher_2(batch.weak).logits.softmax(1).numpy())
    optimizers = {name: torch.optim.SGD(each.parameters(), 0.1, fused=True) for name, each in method.trained().items()}
    engine = Engine(method, optimizers, device=torch.device("cpu"))
    engine.step(batch, make_progress())
    assert [tuple(each.center.shape) for each in method.prototypes] == [(K, 2), (K, 3)]
    assert all(each.center.abs().sum() > 0 for each in method.prototypes)
    assert engine.flush()["coupling/total_variation"] == pytest.approx(
        0.5 * np.abs(one - other).sum(1)[batch.valid.numpy()].mean()
    )


def test_the_sweep_stores_p0_for_each_learner_at_its_stride():
    method = pair_of()
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    label = torch.randint(0, K, (2, 8, 8), generator=torch.Generator().manual_seed(6))
    method.start_stage(0)
    assert method.sweep(images, label) == {}  # of labeled images nothing is stored
    stored = method.sweep(images, None)
    method.finish_sweep()
    assert method.stored_strides() == {f"{P0}_1": 1, f"{P0}_2": 2}
    for name, teacher in zip(stored, method.teachers, strict=True):
        torch.testing.assert_close(
            stored[name].exp(), teacher(images).logits.softmax(1), atol=1e-6, rtol=0, check_dtype=False
        )


@pytest.mark.parametrize(("asked", "names"), [("auto", [P0]), ("shared", [P0]), ("own", [f"{P0}_1", f"{P0}_2"])])
def test_like_learners_share_p0_unless_asked(asked: str, names: list[str]):
    method = pair_of((2, 2), (3, 3), p0=asked)
    assert list(method.sweep(torch.rand(1, 3, 4, 4, dtype=torch.float64), None)) == names
    assert list(method.stored_strides()) == names


def test_unlike_strides_cannot_share_p0():
    with pytest.raises(ConfigError, match="stride 1 and 2 cannot share p0") as caught:
        pair_of(p0="shared")
    assert caught.value.fix == "own, or auto"
    assert pair_of((2, 2), WIDTHS, p0="shared").stored_strides() == {P0: 2}  # other widths can
    pair_of((2, 2), WIDTHS, photometric=False).start_stage(0)  # unlike learners need no noise to differ


def test_restart_from_the_baseline_with_the_teachers_soft_labels():
    """Stage 2: p0 is the last teachers', prototypes and all weights are the baseline's."""
    method = pair_of((1, 1), (2, 2), restart="baseline")
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    start = {name: value.clone() for name, value in method.state_dict().items() if name.startswith("teacher")}
    method.start_stage(0)
    first = method.sweep(images, None)[P0]
    method.finish_sweep()
    centers = [prototypes.center.clone() for prototypes in method.prototypes]
    with torch.no_grad():
        for network in (*method.students, *method.teachers):
            network.classify.mul_(-0.5)
            network.embed.add_(1.0)
    expected = sum(teacher(images).logits.softmax(1) for teacher in method.teachers) / 2
    method.start_stage(1)
    second = method.sweep(images, None)[P0]
    method.finish_sweep()
    torch.testing.assert_close(second.exp(), expected.float(), atol=1e-6, rtol=0, check_dtype=False)
    assert not torch.allclose(first, second, atol=1e-3)
    for center, prototypes in zip(centers, method.prototypes, strict=True):
        torch.testing.assert_close(prototypes.center, center)
    for name, value in start.items():
        assert torch.equal(method.state_dict()[name], value)
        assert torch.equal(method.state_dict()[name.replace("teacher", "student")], value)


def test_networks_belong_to_learners():
    assert [RobustMutualLearning.learner_of(name) for name in ("student_1", "teacher_2", "baseline_2")] == [
        "student_1",
        "student_2",
        "student_2",
    ]
    for name in ("supervised", "mean_teacher", "rml"):
        method = make_method(name)
        assert tuple(method.trained()) == method.learners
        assert {method.learner_of(each) for each in method.networks()} == set(method.learners)


def convolutions_and_attention(**settings: object) -> Method:
    """DeepLab at stride 8 with a vision transformer at stride 16."""

    def build(learner: str) -> SegmentationNetwork:
        return build_network(NETWORK if learner == "student_1" else vit_settings(width=12), num_classes=CLASSES)

    return RobustMutualLearning(RMLSettings(**settings), build, LabeledLoss(LossSettings())).train()


def test_a_pair_with_weak_statistics_never_asks_the_host():
    """Under fake tensors any .item(), nonzero or branch on a value raises."""
    method, batch = convolutions_and_attention(buffers="weak"), make_batch()
    p0 = {f"{P0}_1": torch.zeros(4, CLASSES, 4, 6), f"{P0}_2": torch.zeros(4, CLASSES, 2, 3)}
    with FakeTensorMode() as mode:
        make_fake(method, mode)
        fields = {key: fake_of(getattr(batch, key), mode) for key in batch.__dataclass_fields__}
        fields["stored"] = {key: mode.from_tensor(value) for key, value in p0.items()}
        step = mode.from_tensor(torch.tensor(0))
        progress = Progress(step, mode.from_tensor(torch.tensor(0.0)), Randomness(0, step))
        names = {each.name for each in requests(method, Batch(**fields), progress) if isinstance(each, Measure)}
    assert "coupling/total_variation" in names
