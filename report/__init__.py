"""What draw.py shows: the table as text (tables.py), the figures (figures.py) and the marks on them (marks.py), and
what the numbers mean (definitions.py)."""
