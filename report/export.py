"""The rounds of all workers in other programs' forms: a CSV file with a row a round, runs of TensorBoard."""

import contextlib
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from esync.measure import STAGES
from trainer.run_logs.rounds import Round
from trainer.run_logs.scalars import LOSS, SAMPLES_S, STEPS, WAITING, RoundNumbers, TensorBoard, check_tensorboard
from utils import SetupError

PLACE = ("seed", "network", "mode", "host", "device", "rank")  # of a worker; `seed`: folder of its run, of several
COLUMNS = (
    *(*PLACE, "round", "total_time", "num_samples", "steps"),
    *("samples_per_s", "waiting_share", "loss", "metric", "value"),
)
COUNTS = ("bytes_pushed", "bytes_pulled", "steps_lost", "bad_steps")  # as in the logs


Write = Callable[[Sequence[Any], Iterable[Round]], None]  # of a worker's PLACE and rounds


@contextlib.contextmanager
def to(table: Path | None, board: Path | None) -> Iterator[list[Write]]:
    """Opens a CSV file, with its head, and a folder for TensorBoard; yields a writer for each. Raises SetupError if
    tensorboardX is not installed, or the file or the folder cannot be made."""
    with contextlib.ExitStack() as stack:
        writers: list[Write] = []
        if board is not None:
            check_tensorboard(board)
            writers.append(partial(_to_tensorboard, board))
        if table is not None:
            try:
                file = stack.enter_context(table.open("w", newline=""))
            except OSError as error:
                raise SetupError(f"{table} cannot be written: {error.strerror}; choose another file") from None
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
