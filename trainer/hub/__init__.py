"""The hub: one process to which every worker of a job is connected, and in which an algorithm's server part runs."""

from trainer.coordinator import state_server_path  # noqa: F401  (the imports of `server` here need it)
