"""The Django app: owns the state of this process and the parts around it."""

import math
import time

from django.apps import AppConfig
from django.conf import settings
from prometheus_client import CollectorRegistry, Info, ProcessCollector, disable_created_metrics

from server.answers import ResponseCache
from server.handlers import Handlers
from server.jobs import Jobs
from server.metrics import StateCollector, Traffic


class ServerConfig(AppConfig):
    """Puts the parts together."""

    name = "server"
    watched_at = -math.inf  # when a page asked last, on time.monotonic()

    def ready(self) -> None:
        disable_created_metrics()  # an extra line for each counter
        self.registry = CollectorRegistry()
        self.response_cache = ResponseCache(time.monotonic)
        self.traffic = Traffic(self.registry)
        self.handlers = Handlers(Jobs(settings.STATE_SERVER_MAX_JOBS))
        self.registry.register(StateCollector(self.handlers, time.monotonic))
        ProcessCollector(registry=self.registry)
        Info("esync_build", "This program.", registry=self.registry).info({"version": settings.STATE_SERVER_VERSION})
