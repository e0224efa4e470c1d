"""How the processes of a job find each other, compare their set-ups, and notice that one is gone."""

from trainer.coordinator import state_server_path  # noqa: F401  (the imports of `server` here need it)
