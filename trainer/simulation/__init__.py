"""A whole cluster in one process, in virtual time: its network, servers and clock-driven workers."""
