"""How a worker's arrays reach the others: a protocol, and what keeps it: MXNet's kvstore, or the memory of one process.

A trainer knows the protocol alone (protocol.py).
"""
