"""What summary.py and draw.py show: the numbers (metrics.py) and what they mean (definitions.py), the table as text
(tables.py), the figures (figures.py) and the marks on them (marks.py)."""
