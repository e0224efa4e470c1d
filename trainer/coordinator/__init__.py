"""The way to the state server beside its client, which is in esync/: to a published one, and to this project's own."""
