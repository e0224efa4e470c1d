"""The Django project around the state server's one app, `server`."""
