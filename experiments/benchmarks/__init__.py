"""What was measured of the program itself, a program each."""
