"""What becomes of a job when its processes die, a link is cut or a disk is full."""
