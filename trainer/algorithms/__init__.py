"""The algorithms, one file each, with its server part on the hub."""
