"""A worker's log folder, the runs before it, and whether workers keep their pace."""
