"""Errors of a message: it is malformed, or it does not fit its job."""

from __future__ import annotations

import hmac


class BadMessage(Exception):
    """A malformed message. `field` names the wrong part, where there is one."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.field = field

    @classmethod
    def of_field(cls, field: str, value: object, allowed: str) -> BadMessage:
        """The error of a value that is not allowed. None counts as missing."""
        if value is None:
            return cls(f"field {field!r} is missing; give {allowed}", field)
        shown = repr(value)
        if len(shown) > 80:
            shown = f"{shown[:77]}..."
        return cls(f"field {field!r} is {shown}; give {allowed}", field)


class Conflict(Exception):
    """A well-formed message that does not fit its job. `code` is for programs.

    no-job         no `/init/` began a job for published workers
    unknown-job    there is no job of this name
    job-settings   a message of a running job with other settings, or a JOIN for another number of workers
    stale          the worker is already known to be in a later round
    round-ahead    the worker is not known to be in the round before
    too-many-jobs  there is no room for another job
    token          the job was begun with a token, and the message has another one or none
    other-sender   another sender speaks for the worker in this generation
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def check_token(begun_with: str, given: str, job: str) -> None:
    """Raises Conflict where a message has not the token with which its job was begun."""
    if begun_with and not hmac.compare_digest(begun_with.encode(), given.encode()):
        raise Conflict("token", f"job {job!r} was begun with a token; send the same (ESYNC_TOKEN)")
