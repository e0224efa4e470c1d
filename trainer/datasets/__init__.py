"""Datasets: read, checked, partitioned over the workers, drawn in batches. Needs numpy only."""
