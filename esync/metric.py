"""What an evaluation measures: the metric's name and direction, and its form in logs. Pure; standard library only."""

import contextlib
import math
import numbers
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from esync.base import SetupError

NAME = re.compile(r"(?=\S)[A-Za-z0-9 _.@()%/+-]{1,40}(?<=\S)")  # the state server's messages bound it likewise


@dataclass(frozen=True)
class Metric:
    """A number that an evaluation measures. Values of accuracy are from 0 to 1, those of others any finite number.
    Raises SetupError if the name is too long or has other characters, or accuracy is an error."""

    name: str = "accuracy"
    more_is_better: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise SetupError(
                f"a metric cannot have the name {str(self.name)[:80]!r}; use 1 to 40 letters, digits, spaces and "
                "_.-@()%/+"
            )
        if self.name == "accuracy" and not self.more_is_better:
            raise SetupError("the metric accuracy is a share of which more is better; give an error another name")

    @property
    def is_accuracy(self) -> bool:
        return self.name == ACCURACY.name

    @property
    def plural(self) -> str:
        return "accuracies" if self.is_accuracy else f"values of {self.name}"

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another; any is better than None."""
        return than is None or (value > than if self.more_is_better else value < than)

    def reached(self, value: float, target: float) -> bool:
        return math.isclose(value, target) or self.is_better(value, target)  # a mean is rounded

    def best(self, values: Iterable[float]) -> float:
        return (max if self.more_is_better else min)(values)

    def text(self, value: float) -> str:
        """Such as 0.8512; accuracies with four decimals, others with four digits."""
        return f"{value:.4f}" if self.is_accuracy else f"{value:.4g}"

    def fault(self, value: Any) -> str:
        """Why `value` is none of this metric; empty where it is one."""
        least, most = (0, 1) if self.is_accuracy else (-sys.float_info.max, sys.float_info.max)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most:
            return ""
        return "no number from 0 to 1" if self.is_accuracy else "no finite number"

    def checked(self, value: Any) -> float:
        """The value that an evaluation has returned, as a float. Raises SetupError if it is none of this metric."""
        shown, number = f"of type {type(value).__name__}", math.nan
        if isinstance(value, numbers.Real) and not isinstance(value, bool):  # also numpy's
            with contextlib.suppress(OverflowError):
                number = float(value)
                shown = f"{number:g}"
        if fault := self.fault(number):
            rather = "; give such a metric another name" if self.is_accuracy else ""
            raise SetupError(f"the metric {self.name} is {shown}, which is {fault}{rather}")
        return number

    def about(self) -> dict[str, Any]:
        """The entries of a run's description."""
        return asdict(self)

    def logged(self, value: float | None) -> dict[str, Any]:
        """The entry of a value in a log or a description: as published, or one that says what it is."""
        return {"accuracy": value} if self.is_accuracy else {"metric": {**self.about(), "value": value}}


ACCURACY = Metric()


def metric_of(about: Any) -> Metric | None:
    """The metric of which this is the description; None where it is none."""
    try:
        return Metric(about["name"], about["more_is_better"] is True)
    except (KeyError, TypeError, SetupError):
        return None


def logged_value(entries: Mapping[str, Any]) -> tuple[Metric, Any] | None:
    """The metric and its value, perhaps an impossible one, from a log or a description; None where there is none."""
    if "accuracy" in entries:
        return ACCURACY, entries["accuracy"]
    if "metric" not in entries:
        return None
    about: Any = entries.get("metric")
    metric = metric_of(about)
    return None if metric is None else (metric, about.get("value"))
