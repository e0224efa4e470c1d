"""What summary.py and draw.py show: the numbers (metrics.py) and what they mean (definitions.py), the table as text
(tables.py), the figures (figures.py), their axes (x_axes.py) and the marks on them (marks.py). Of several runs: what is
drawn of them (runs.py), their table (run_tables.py), means with intervals (bands.py, statistics.py)."""
