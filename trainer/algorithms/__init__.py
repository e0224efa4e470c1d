"""The algorithms: one file an idea of the field; beside it what its parameter server does."""
