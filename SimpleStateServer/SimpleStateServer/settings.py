"""Settings of the state server. What a user may change comes from the environment:

ESYNC_SECRET_KEY  Django's secret key (default: random at every start; nothing that is signed outlives the process)
ESYNC_TOKEN       when set, every POST needs the header `Authorization: Bearer <token>`
ESYNC_HOSTS       with a token: more names, with commas, by which readers may ask; others get 421
ESYNC_POLICY      policy of a job that is started by the published `POST /init/` (default: preprint, as published)
ESYNC_MAX_JOBS    jobs that are kept at a time (default: 64); the oldest that has ended makes room for the next
ESYNC_LOG_LEVEL   how much the server's own log says (default: INFO; DEBUG names every decision)
"""

import os
import secrets
from pathlib import Path

from SimpleStateServer import environment

DEBUG = False
SECRET_KEY = os.environ.get("ESYNC_SECRET_KEY") or secrets.token_urlsafe(50)
ALLOWED_HOSTS = environment.hosts()  # of readers (server/views.py)

INSTALLED_APPS = ["server"]
# None on purpose. Every worker asks after every local step, so each layer is paid on every query.
MIDDLEWARE: list[str] = []
SILENCED_SYSTEM_CHECKS = [
    "security.W001",  # SecurityMiddleware: what it would add, the page's headers have (server/views.py); no HTTPS here
    "security.W002",  # X-Frame-Options: the page's Content-Security-Policy says frame-ancestors 'none'
    "security.W003",  # CSRF: a POST with an Origin is refused (server/receiver.py); there are no cookies and no forms
]
ROOT_URLCONF = "SimpleStateServer.urls"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
USE_TZ = True
TIME_ZONE = None  # the machine's, in log lines too; Django would give the whole process Chicago's

DATA_UPLOAD_MAX_MEMORY_SIZE = 64 * 1024  # bytes of a request's body; more is answered with 413

STATE_SERVER_VERSION = (Path(__file__).resolve().parents[2] / "VERSION").read_text().strip()
STATE_SERVER_TOKEN = environment.token()
STATE_SERVER_INIT_POLICY = environment.init_policy()
STATE_SERVER_LOG_LEVEL = environment.log_level()
STATE_SERVER_MAX_JOBS = environment.max_jobs()

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s state server | %(message)s", "datefmt": "%Y-%m-%d %H:%M:%S"}},
    "filters": {"limit": {"()": "server.log_limit.LogLimit"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["limit"]}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        "server": {"level": STATE_SERVER_LOG_LEVEL},
        "django.request": {"level": "ERROR"},  # a line for every query would bury everything else
        "django.server": {"handlers": ["stderr"], "level": "ERROR", "propagate": False},
    },
}
