"""Settings of the state server. What a user may change comes from the environment; what is wrong there is named, with
what is allowed, and nothing starts:

ESYNC_SECRET_KEY  Django's secret key (default: random at every start; nothing that is signed outlives the process)
ESYNC_TOKEN       when set, every POST needs the header `Authorization: Bearer <token>`
ESYNC_HOSTS       with a token: more names, with commas, by which readers may ask; others get 421
ESYNC_POLICY      policy of a job that is started by the published `POST /init/` (default: preprint, as published)
ESYNC_MAX_JOBS    jobs that are kept at a time (default: 64); the oldest that has ended makes room for the next
ESYNC_RECORD      folder for what is decided about the members of jobs (server/rendezvous/record.py; default: none)
ESYNC_LOG_LEVEL   how much the server's own log says (default: INFO; DEBUG names every decision)
"""

import importlib.metadata
import os
import secrets
import socket
from collections.abc import Collection
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from server.answers import MAX_BODY_BYTES
from server.jobs import MAX_JOBS
from server.policies import POLICIES


def _given(name: str, default: str = "") -> str:
    return os.environ.get(name) or default


def _checked(name: str, value: str, choices: Collection[str]) -> str:
    if value not in choices:
        raise ImproperlyConfigured(f"{name}={value!r} is unknown; choose from {', '.join(choices)}")
    return value


def _token() -> str:
    token = _given("ESYNC_TOKEN")
    if not token.isascii() or not token.isprintable() or token != token.strip():
        raise ImproperlyConfigured(
            "ESYNC_TOKEN has a letter that an HTTP header cannot carry as it is; give printable ASCII characters, "
            "such as those of: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def _max_jobs() -> int:
    text = _given("ESYNC_MAX_JOBS", str(MAX_JOBS))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10_000):
        raise ImproperlyConfigured(f"ESYNC_MAX_JOBS={text!r}; give a whole number from 1 to 10000")
    return int(text)


_VERSION = Path(__file__).resolve().parents[2] / "VERSION"  # there is none where pip has installed this
STATE_SERVER_VERSION = _VERSION.read_text().strip() if _VERSION.exists() else importlib.metadata.version("esync")
STATE_SERVER_TOKEN = _token()
STATE_SERVER_MAX_JOBS = _max_jobs()
STATE_SERVER_INIT_POLICY = _checked("ESYNC_POLICY", _given("ESYNC_POLICY", "preprint"), POLICIES)
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LOG_LEVEL = _checked("ESYNC_LOG_LEVEL", _given("ESYNC_LOG_LEVEL", "info").upper(), _LOG_LEVELS)

SECRET_KEY = _given("ESYNC_SECRET_KEY") or secrets.token_urlsafe(50)
# The names, beside all addresses, by which this server tells of its jobs (server/views.py); any where there is no token
_NAMES = [".localhost", socket.gethostname(), *_given("ESYNC_HOSTS").replace(",", " ").split()]
ALLOWED_HOSTS = _NAMES if STATE_SERVER_TOKEN else ["*"]

INSTALLED_APPS = ["server"]
MIDDLEWARE: list[str] = []  # every worker asks after every local step, so each layer would be paid on every query
SILENCED_SYSTEM_CHECKS = [
    "security.W001",  # SecurityMiddleware: what it would add, the page's headers have (server/views.py); no HTTPS here
    "security.W002",  # X-Frame-Options: the page's Content-Security-Policy says frame-ancestors 'none'
    "security.W003",  # CSRF: a POST with an Origin is refused (server/receiver.py); there are no cookies and no forms
]
ROOT_URLCONF = "server.http"
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
TIME_ZONE = None  # the machine's, in log lines too; Django would give the whole process Chicago's

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s state server | %(message)s", "datefmt": "%Y-%m-%d %H:%M:%S"}},
    "filters": {"limit": {"()": "server.log_limit.LogLimit"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["limit"]}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        "server": {"level": _LOG_LEVEL},
        "django.request": {"level": "ERROR"},  # a line for every query would bury everything else
        "django.server": {"handlers": ["stderr"], "level": "ERROR", "propagate": False},
    },
}
