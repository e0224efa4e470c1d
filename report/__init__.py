"""Output of summary.py and draw.py: numbers (metrics.py, definitions.py), table (tables.py), figures (figures.py),
their axes (x_axes.py) and marks (marks.py); of several runs: curves (runs.py), table (run_tables.py), medians with
intervals (bands.py, statistics.py). Rounds for other programs:
export.py. Of why.sh: logs of a job (job_logs.py), speeds (measured.py), trace (trace.py)."""
