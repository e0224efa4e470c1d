"""The hub: one process to which every worker of a job is connected, and in which an algorithm's server part runs."""
