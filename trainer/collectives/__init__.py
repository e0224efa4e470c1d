"""Sums over all workers without a parameter server: schedules of exchanges, and what carries the exchanges.

schedules.py is pure; mesh.py is the protocol of an exchange, which tcp.py and trainer/simulation/virtual_mesh.py keep.
"""
