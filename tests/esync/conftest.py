"""A test whose fixture `clock` is a virtual clock is the one worker on it."""

from on_virtual_clock import clock, pytest_pyfunc_call

__all__ = ["clock", "pytest_pyfunc_call"]
