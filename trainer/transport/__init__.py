"""How a worker's arrays reach the others: a protocol (protocol.py), and its implementations."""
