"""Which flags of ASGD, and of model averaging, fit together. Standard library only."""

from config import SGD, Config, names_of
from utils import SetupError

EXCLUSIVE = (("use_dcasgd", "max_delay"), ("use_dcasgd", "table"), ("use_dcasgd", "rescale"), ("max_delay", "table"))


def of_asgd(config: Config, num_workers: int | None) -> None:
    """Raises SetupError for flags of two rules of the server, and for DC-ASGD with another one's."""
    for pair in EXCLUSIVE:
        values = [getattr(config, name) for name in pair]
        if all(values):
            one, other = (f"{names_of(name)[-1]} {value}" for name, value in zip(pair, values, strict=True))
            raise SetupError(f"{one} and {other} are different algorithms: leave one of them out")


def of_averaging(config: Config, num_workers: int | None) -> None:
    """Raises SetupError for Nesterov's momentum of zero, and for FedNova with another optimizer than SGD."""
    if config.normalise and config.optimizer != SGD:
        raise SetupError(
            f"--normalise 1 (FedNova) is defined for the local steps of SGD, not for --optimizer {config.optimizer}, "
            f"which divides each gradient by its size: give --optimizer {SGD}, also with --momentum, or leave "
            "--normalise out"
        )
    if config.outer_nesterov and not config.outer_momentum:
        raise SetupError(
            "--outer-nesterov 1 does nothing without momentum: also give --outer-momentum, above 0 and below 1 "
            "(DiLoCo: 0.9, with -gl 0.7), or leave it out"
        )
