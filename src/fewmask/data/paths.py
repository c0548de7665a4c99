"""Where files lie, as seen from the data set's root."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path


def outside_root(root: Path, path: Path) -> bool:
    """Whether a path leads out of the data set, by `..` or by a link."""
    real_root = os.path.realpath(root)
    return os.path.commonpath([real_root, os.path.realpath(path)]) != real_root


def relative(root: Path, path: Path) -> str:
    """A path as messages show it, with forward slashes."""
    return shown(path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path))


def is_text(name: str) -> bool:
    """Whether a file's name is UTF-8; of one that is not, Python keeps the bytes as halves of characters."""
    return shown(name) == name


def shown(name: str) -> str:
    """A name that can be printed and written: bytes that are no text become \\udce9."""
    return name.encode("utf-8", "backslashreplace").decode()


def one_spelling(name: str) -> str:
    """A name with each accent in its letter (NFC): some systems store é as one character, some as two."""
    return unicodedata.normalize("NFC", name)
