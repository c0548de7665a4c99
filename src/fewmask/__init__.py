"""fewmask: few masks, many images, one good segmentation model."""

__version__ = "0.1.0"
