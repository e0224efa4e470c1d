"""Output of summary.py and draw.py: logs as devices (job_logs.py), their JSON (device_json.py), numbers (metrics.py,
definitions.py, statistics.py), runs and tables of them (runs.py, tables.py), figures (figure_set.py) of curves
(figures.py, csv_curves.py) and bars (bars.py), their style (style.py). Speeds for why.sh: measured.py."""

import os

import trainer  # noqa: F401  (the import of `server` here needs it)

# matplotlib cannot be imported where this names a backend that is not installed, such as that of the notebook from
# which the program was started. Only windows need one.
BACKEND = os.environ.pop("MPLBACKEND", "")
os.environ.pop("SOURCE_DATE_EPOCH", None)  # no file has a date, and matplotlib fails where this is no number
