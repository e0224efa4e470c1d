"""Measurements of parts of the program, a program each."""
