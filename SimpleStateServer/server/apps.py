"""The Django app, which owns the one router of this process."""

from __future__ import annotations

import time

from django.apps import AppConfig

from server.handlers import Handlers
from server.router import Router


class ServerConfig(AppConfig):
    """Makes the router; its thread starts with the first message, so also after a fork."""

    name = "server"

    def ready(self) -> None:
        """Called by Django once, when every app is loaded."""
        self.router = Router(Handlers(), clock=time.monotonic)
