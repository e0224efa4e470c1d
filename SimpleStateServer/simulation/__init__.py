"""A cluster on a virtual clock: the state server's own handlers and policies, simulated workers and network.

No HTTP, no threads, no sleeping, no randomness but a seed's: the same arguments give the same outcome.
"""
