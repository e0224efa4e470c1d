"""Sums over all workers without a parameter server: who sends which piece to whom, and what carries it.

schedules.py is pure; mesh.py says what it takes to follow a schedule, virtual_mesh.py and tcp.py do it.
"""
