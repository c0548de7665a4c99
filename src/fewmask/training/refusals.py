"""What a run's networks would refuse in the middle of it, found before anything is written."""

from __future__ import annotations

from fewmask.config import Config
from fewmask.methods.method import Method
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.distributed import World
from fewmask.training.live_norms import check_live_norms
from fewmask.training.one_size import check_one_size
from fewmask.training.placement import Stores


def check_networks(config: Config, method: Method, stores: Stores, world: World) -> None:
    """Those of the run itself; `config` has its crop."""
    training = config.training
    images = method.fewest_images(training.batch, training.unlabeled_batch or training.batch)
    for network in method.trained().values():
        check_one_size(config, network, stores, swept=method.needs_baseline)
        if world.size == 1 and not network.frozen_norm:
            check_live_norms(config, network, images)


def check_baseline(config: Config, network: SegmentationNetwork, stores: Stores, world: World) -> None:
    """That of a supervised run before it, whose crops and batches may be others; `network` has its architecture."""
    check_one_size(config, network, stores, swept=False)
    if world.size == 1 and not config.network.frozen_norm:
        check_live_norms(config, network, config.training.batch, section="baseline.")
