"""The comparison of all algorithms: its runs, its tables, and the same on real processes."""
