"""Which flags of ASGD exclude each other. Standard library only."""

from config import Config, names_of
from utils import SetupError

EXCLUSIVE = (
    ("use_dcasgd", "max_delay"),
    ("use_dcasgd", "table"),
    ("use_dcasgd", "rescale"),
    ("max_delay", "table"),
)


def check_flags(config: Config, num_workers: int | None) -> None:
    """Raises SetupError for flags of two rules of the server, and for DC-ASGD with another one's."""
    for pair in EXCLUSIVE:
        values = [getattr(config, name) for name in pair]
        if all(values):
            one, other = (f"{names_of(name)[-1]} {value}" for name, value in zip(pair, values, strict=True))
            raise SetupError(f"{one} and {other} are different algorithms: leave one of them out")
