"""Job files: what the user trains, in a Python file of his own."""
