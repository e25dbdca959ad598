"""How a run ends when it does not end well."""

from __future__ import annotations

#: Exit codes, the same as in the repository's other programs.
OK, FAILURE, USAGE, PRECONDITION = 0, 1, 2, 3


class TrainerError(Exception):
    """Training cannot go on; the message says why and what to look at.

    Takes one text, so that it survives the way from a Ray actor to the driver.
    """


class PreconditionError(TrainerError):
    """Training could not begin: the cluster, the model or the output folder is not as needed."""
