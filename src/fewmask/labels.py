"""What stands in class maps, on disk and in tensors, where nothing is known."""

from __future__ import annotations

IGNORE = 255
