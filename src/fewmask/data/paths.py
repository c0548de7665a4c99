"""Where files lie, as seen from the data set's root."""

from __future__ import annotations

import os
from pathlib import Path


def outside_root(root: Path, path: Path) -> bool:
    """Whether a path leads out of the data set, by `..` or by a link."""
    real_root = os.path.realpath(root)
    return os.path.commonpath([real_root, os.path.realpath(path)]) != real_root


def relative(root: Path, path: Path) -> str:
    """A path as messages show it, with forward slashes."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
