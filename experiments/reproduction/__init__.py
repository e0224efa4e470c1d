"""The published experiments again, and their tables beside the published numbers."""
