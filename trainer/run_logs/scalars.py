"""The numbers of a worker's rounds for other programs: as TensorBoard's scalars and as rows of a CSV file."""

import contextlib
import csv
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from esync.measure import AGGREGATION_STAGES, STAGES
from esync.metric import Metric
from trainer.run_logs.rounds import Round
from utils import SetupError, remedy, setup_errors

SAMPLES_S, STEPS, WAITING, LOSS = "samples/s", "local_steps", "waiting_share", "loss"
EVENTS = "events.out.tfevents.*"  # files of a run of TensorBoard


def measured(evaluation: tuple[Metric, float] | None) -> dict[str, float]:
    """The metric's value by name, which may be that of the loss too; empty where there is none."""
    return {} if evaluation is None else {f"test_{evaluation[0].name}": evaluation[1]}


class RoundNumbers:
    """The numbers of a worker's rounds, given in order."""

    def __init__(self) -> None:
        self._before = 0, 0.0  # number and end of the round before

    def of(self, one: Round) -> dict[str, float]:
        """The numbers of a round by name; those that its log lacks are left out. The waiting share is the part of the
        round that the worker spent in its exchange and waiting for others there, as scripts/why.sh has it. It and the
        samples/s need the round before, so that the first of the logs has neither where it is not the job's first."""
        before, begin_s = self._before
        self._before = one.number, one.elapsed_s
        found = {} if one.loss is None else {LOSS: one.loss}
        found |= measured(one.evaluation)
        found[STEPS] = one.complete
        if before == one.number - 1 and one.elapsed_s > begin_s:
            took_s = one.elapsed_s - begin_s
            found[SAMPLES_S] = one.samples / took_s
            found[WAITING] = min(1.0, one.seconds(*AGGREGATION_STAGES) / took_s)
        return found


def check_tensorboard(folder: Path) -> None:
    """Makes a folder for TensorBoard. Raises SetupError if tensorboardX is not installed, or the folder cannot be
    made."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError:
        raise SetupError("--tensorboard needs tensorboardX: pip install -r requirements-tensorboard.txt") from None
    with setup_errors(f"folder {folder} of --tensorboard", remedy("choose another with --tensorboard")):
        folder.mkdir(parents=True, exist_ok=True)


class TensorBoard:
    """Writes a worker's rounds as a run of TensorBoard, in place of one that is there. Steps are rounds, times those of
    the worker's clock: virtual ones in virtual time."""

    def __init__(self, folder: Path, fail: Callable[[str], None]) -> None:
        """`fail` is told once why the run is not complete; then nothing more is written."""
        self._folder, self._fail, self._has_failed = folder, fail, False
        self._writer: Any = None
        self._numbers = RoundNumbers()
        self._begin_s: float | None = None  # of the worker's training, by the machine's clock

    def resume(self, rounds: Iterable[Round], elapsed_s: float) -> None:
        """Begins with the rounds that the worker has logged before, in a job of that age."""
        self._begin_s = time.time() - elapsed_s
        for one in rounds:
            self.write(one)

    def write(self, one: Round) -> None:
        """Adds a round."""
        for each in one.evaluated:  # of the models of earlier rounds
            self.add(measured(each.logged), each.round, one.elapsed_s)
        self.add(self._numbers.of(one), one.number, one.elapsed_s)

    def add(self, numbers: Mapping[str, float], round_: int, elapsed_s: float) -> None:
        """Adds numbers of a round that are known at this age of the job."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        if self._has_failed or not numbers:
            return
        if self._begin_s is None:
            self._begin_s = time.time() - elapsed_s
        tags = {re.sub(r"[^A-Za-z0-9_./-]", "_", name): value for name, value in numbers.items()}
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in tags.items()])
        try:
            if self._writer is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                for path in self._folder.glob(EVENTS):
                    path.unlink()
                self._writer = EventsWriter(str(self._folder / "events"))
            self._writer.write_event(Event(wall_time=self._begin_s + elapsed_s, step=round_, summary=summary))
            self._writer.flush()
        except OSError as error:
            self._has_failed = True
            self._fail(f"{self._folder} cannot be written: {error.strerror}")


# --------------------------------------------------------------------------------- of all workers, from their logs

PLACE = ("seed", "network", "mode", "host", "device", "rank")  # of a worker; `seed`: folder of its run, of several
COLUMNS = (
    *(*PLACE, "round", "total_time", "num_samples", "steps"),
    *("samples_per_s", "waiting_share", "loss", "metric", "value"),
)
COUNTS = ("bytes_pushed", "bytes_pulled", "steps_lost", "bad_steps")  # as in the logs
Write = Callable[[Sequence[Any], Iterable[Round]], None]  # of a worker's PLACE and rounds


@contextlib.contextmanager
def export_to(table: Path | None, board: Path | None) -> Iterator[list[Write]]:
    """Opens a CSV file, with its head, and a folder for TensorBoard; yields a writer for each. Raises SetupError if
    tensorboardX is not installed, or the file or the folder cannot be made."""
    with contextlib.ExitStack() as stack:
        writers: list[Write] = []
        if board is not None:
            check_tensorboard(board)
            writers.append(partial(_to_tensorboard, board))
        if table is not None:
            with setup_errors(f"{table} cannot be written", "choose another file"):
                file = stack.enter_context(table.open("w", newline=""))
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow([*COLUMNS, *COUNTS, *(f"{stage.replace(' ', '_')}_s" for stage in STAGES)])
            writers.append(lambda place, rounds: rows.writerows(_rows(place, rounds)))
        yield writers


def _rows(place: Sequence[Any], rounds: Iterable[Round]) -> Iterator[list[Any]]:
    numbers = RoundNumbers()
    for one in rounds:
        its = numbers.of(one)
        yield [
            *place,
            *(one.number, one.elapsed_s, one.samples),
            *(its.get(name, "") for name in (STEPS, SAMPLES_S, WAITING, LOSS)),
            *((one.evaluation[0].name, one.evaluation[1]) if one.evaluation else ("", "")),
            *(getattr(one, name) for name in COUNTS),  # None is an empty cell
            *map(one.seconds, STAGES),
        ]


def _to_tensorboard(folder: Path, place: Sequence[Any], rounds: Iterable[Round]) -> None:
    seed, network, mode, host, device, _ = place
    board = TensorBoard(folder / seed / network / mode / f"{host}-{device}", _fail)
    for one in rounds:
        board.write(one)


def _fail(why: str) -> None:
    raise SetupError(why)
