"""Reads what a user sets in the environment. What is wrong is named, with what is allowed, and nothing starts."""

import os
import socket

from django.core.exceptions import ImproperlyConfigured
from server.jobs import MAX_JOBS
from server.policies import POLICIES

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def token() -> str:
    """ESYNC_TOKEN; empty where there is none. Raises ImproperlyConfigured if it cannot stand in an HTTP header."""
    given = os.environ.get("ESYNC_TOKEN", "")
    if not given.isascii() or not given.isprintable() or given != given.strip():
        raise ImproperlyConfigured(
            "ESYNC_TOKEN has a letter that an HTTP header cannot carry as it is; give printable ASCII characters, "
            "such as those of: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return given


def hosts() -> list[str]:
    """The names, beside all addresses, by which this server tells of its jobs; by any where there is no token."""
    names = os.environ.get("ESYNC_HOSTS", "").replace(",", " ").split()
    return [".localhost", socket.gethostname(), *names] if token() else ["*"]


def init_policy() -> str:
    """ESYNC_POLICY: of a job that `POST /init/` begins."""
    return _checked("ESYNC_POLICY", os.environ.get("ESYNC_POLICY") or "preprint", tuple(POLICIES))


def log_level() -> str:
    """ESYNC_LOG_LEVEL, in upper or lower case."""
    return _checked("ESYNC_LOG_LEVEL", os.environ.get("ESYNC_LOG_LEVEL", "").upper() or "INFO", LOG_LEVELS)


def max_jobs() -> int:
    """ESYNC_MAX_JOBS."""
    text = os.environ.get("ESYNC_MAX_JOBS") or str(MAX_JOBS)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10_000):
        raise ImproperlyConfigured(f"ESYNC_MAX_JOBS={text!r}; give a whole number from 1 to 10000")
    return int(text)


def _checked(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ImproperlyConfigured(f"{name}={value!r} is unknown; choose from {', '.join(choices)}")
    return value
