"""Which machines to train on, and by which algorithm: scripts/advise.py."""
