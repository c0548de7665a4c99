"""What can go wrong, as one tree.

FewmaskError
├── ConfigError        a setting or argument that cannot be used
├── DataError          a data set that cannot be read or trained on
├── CheckpointError    a run folder or weight file that cannot be used
└── TrainingError      a run that had to stop: non-finite loss, out of memory

Each says what is wrong, where, and what would be valid. The command line prints one block and exits with 2.
"""

from __future__ import annotations


class FewmaskError(Exception):
    """A problem the user can fix: what happened, where, and what would be valid instead."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(
            "\n".join(part for part in (what, where and f"  where: {where}", fix and f"  valid: {fix}") if part)
        )


class ConfigError(FewmaskError):
    """A setting or argument that cannot be used."""


class DataError(FewmaskError):
    """A data set, image or mask that cannot be read or trained on."""


class CheckpointError(FewmaskError):
    """A run folder, checkpoint or weight file that cannot be used."""


class TrainingError(FewmaskError):
    """A run that had to stop."""
