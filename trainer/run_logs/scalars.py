"""The numbers of a worker's rounds for other programs: as TensorBoard's scalars and as rows of a CSV file."""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.metric import logged_value
from trainer.run_logs.measure import AGGREGATION_STAGES, FORWARD_BACKWARD
from trainer.run_logs.round_log import EVALUATED, seconds_in
from utils import RUN_AS_OWNER, SetupError, remedy

SAMPLES_S, STEPS, WAITING, LOSS = "samples/s", "local_steps", "waiting_share", "loss"
TEST = "test_{}"  # the metric, whose name may be loss too
FLUSH_S = 5  # between writes to the disk
QUEUE = 1000  # events that wait for the thread that writes them, with some room for it to end
EVENTS = "events.out.tfevents.*"  # files of a run of TensorBoard


class RoundNumbers:
    """The numbers of a worker's rounds, given in order."""

    def __init__(self) -> None:
        self._before = 0, 0.0  # number and end of the round before

    def of(self, record: Mapping[str, Any]) -> dict[str, float]:
        """The numbers of a round's log by name; those that it lacks are left out.

        The waiting share is the part of the round that the worker spent in its exchange and waiting for others there,
        as scripts/why.sh has it. It and the samples/s need the round before, so that a resumed worker's first round has
        neither.
        """
        number, end_s, steps = record["num_iters"], record["total_time"], record["time"].values()
        before, begin_s = self._before
        self._before = number, end_s
        found = {LOSS: record["loss"]} if isinstance(record.get("loss"), (int, float)) else {}
        if (logged := logged_value(record)) is not None:
            found[TEST.format(logged[0].name)] = logged[1]
        found[STEPS] = sum(FORWARD_BACKWARD in times for times in steps)
        if before == number - 1 and end_s > begin_s:
            found[SAMPLES_S] = record["num_samples"] / (end_s - begin_s)
            found[WAITING] = min(1.0, seconds_in(steps, AGGREGATION_STAGES) / (end_s - begin_s))
        return found


def check_tensorboard(folder: Path) -> None:
    """Makes a folder for TensorBoard. Raises SetupError if tensorboardX is not installed, or the folder cannot be
    made."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError:
        raise SetupError("--tensorboard needs tensorboardX: pip install -r requirements-tensorboard.txt") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what_to_do = remedy("choose another with --tensorboard", RUN_AS_OWNER)
        raise SetupError(f"folder {folder} of --tensorboard: {error.strerror}; {what_to_do}") from None


class TensorBoard:
    """Writes a worker's rounds as a run of TensorBoard. Steps are rounds, times those of the worker's clock: virtual
    ones in virtual time."""

    def __init__(self, folder: Path, goes_on: bool = False) -> None:
        """check_tensorboard has made the run's folder. With `goes_on` an earlier run is resumed, and its events
        stay."""
        from tensorboardX import SummaryWriter

        if not goes_on:
            for path in folder.glob(EVENTS):
                path.unlink()
        self._writer = SummaryWriter(str(folder), max_queue=QUEUE, flush_secs=FLUSH_S)
        self._thread = self._writer._get_file_writer().event_writer._worker
        self._numbers = RoundNumbers()
        self._begin_s: float | None = None  # of the worker's training, by the machine's clock

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds a round's log. Raises SetupError if the disk is full, and the run is not complete from here on."""
        self._check()
        if self._begin_s is None:
            self._begin_s = time.time() - record["total_time"]
        at_s = self._begin_s + record["total_time"]
        for name, value in self._numbers.of(record).items():
            self._add(name, value, record["num_iters"], at_s)
        for each in record.get(EVALUATED, ()):  # of the models of earlier rounds
            if (logged := logged_value(each)) is not None:
                self._add(TEST.format(logged[0].name), logged[1], each["round"], at_s)

    def _add(self, name: str, value: float, number: int, at_s: float) -> None:
        # Of other characters in a tag tensorboardX would tell each time.
        self._writer.add_scalar(re.sub(r"[^A-Za-z0-9_./-]", "_", name), value, number, at_s)

    def close(self) -> None:
        """Writes what is left; raises as `write`."""
        self._check()
        try:
            self._writer.close()
        except OSError as error:
            raise SetupError(f"{self._writer.logdir} cannot be written: {error.strerror}") from None

    def _check(self) -> None:
        """An error ends tensorboardX's thread, within a record of the file; then calls would wait for it for ever."""
        if not self._thread.is_alive():
            raise SetupError(f"{self._writer.logdir} cannot be written: see the error above; is the disk full?")
