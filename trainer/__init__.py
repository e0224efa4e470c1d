"""The training side: one loop (loop.py) and a few hooks for each algorithm (trainer.py).

Importing this package imports nothing else.
"""
