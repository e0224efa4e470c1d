"""Datasets: read, checked, drawn in batches. Needs numpy only."""
