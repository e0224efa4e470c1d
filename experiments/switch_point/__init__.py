"""The offline search for Sync-Switch's switch point."""
