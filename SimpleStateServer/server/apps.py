"""The Django app, which owns the one router of this process, and what it is reached by."""

from __future__ import annotations

import time

from django.apps import AppConfig
from django.conf import settings
from prometheus_client import CollectorRegistry

from server.handlers import Handlers
from server.jobs import Jobs
from server.receiver import Receiver
from server.refusals import Refusals
from server.router import Router
from server.traffic import Traffic


class ServerConfig(AppConfig):
    """Puts the parts together."""

    name = "server"

    def ready(self) -> None:
        """Called by Django once, when every app is loaded."""
        self.registry = CollectorRegistry()
        self.traffic = Traffic(self.registry)
        self.refusals = Refusals(time.monotonic)
        self.router = Router(Handlers(Jobs(settings.STATE_SERVER_MAX_JOBS)), clock=time.monotonic)
        self.receiver = Receiver(
            self.router, self.traffic, settings.STATE_SERVER_TOKEN, settings.STATE_SERVER_INIT_POLICY, self.refusals
        )
