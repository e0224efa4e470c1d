"""The way to a published state server, beside the client in esync/."""
