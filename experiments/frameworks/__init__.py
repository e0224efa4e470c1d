"""This project beside other programs on the same work: samples/s, CPU time, bytes, memory, and lines of the user's."""
