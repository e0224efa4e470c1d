"""The launchers: a job's processes, here or on several hosts."""
