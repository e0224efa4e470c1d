"""Output of summary.py and draw.py: numbers (metrics.py, definitions.py), table (tables.py), figures (figure_set.py) of
curves (figures.py) and rows (bars.py), their style (style.py), axes (x_axes.py), marks (marks.py) and curves of other
programs (csv_curves.py); of several runs: curves (runs.py), table (run_tables.py), medians with intervals (bands.py,
statistics.py). Rounds for other programs: export.py. Of why.sh: logs of a job (job_logs.py), speeds (measured.py),
trace (trace.py)."""

import os

# matplotlib cannot be imported where this names a backend that is not installed, such as that of the notebook from
# which the program was started. Only windows need one.
BACKEND = os.environ.pop("MPLBACKEND", "")
os.environ.pop("SOURCE_DATE_EPOCH", None)  # no file has a date, and matplotlib fails where this is no number
