"""A data set's problems, each with the code that `fewmask check` reports it under."""

from __future__ import annotations

from fewmask.errors import DataError


class DataProblem(DataError):  # noqa: N818
    """A DataError of a known kind, such as `truncated` or `outside-root`."""

    def __init__(self, code: str, what: str, *, where: object = "", fix: str = "") -> None:
        super().__init__(what, where=str(where), fix=fix)
        self.code = code
