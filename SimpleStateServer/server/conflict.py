"""A sound message that does not fit."""

from __future__ import annotations


class Conflict(Exception):
    """A sound message that does not fit its job. `code` is for programs.

    no-job         no `/init/` began a job for published workers
    unknown-job    there is no job of this name
    job-settings   a RESET of a running job with other settings, or a JOIN for another number of workers
    stale          the worker is already known to be in a later round
    round-ahead    the worker is not known to be in the round before
    too-many-jobs  there is no room for another job
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
