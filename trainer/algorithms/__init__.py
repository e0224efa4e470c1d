"""The algorithms, one file each; the optimizer of an algorithm's parameter server has a file beside it."""
