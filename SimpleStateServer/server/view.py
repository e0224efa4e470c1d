"""A job at one moment, as its readers see it: the page (status.py) and Prometheus (metrics.py). Pure."""

from server.jobs import AT_WORK, Job
from server.policies import Sync
from server.row import HISTORY_ROUNDS, Row
from server.worker_states import ABSENT, ENDED, LOST, SILENT, TRAINING, states_of

NOT_AT_WORK = (SILENT, ABSENT, ENDED, LOST)


class View:
    """What follows from a job's rows, computed once.

    The workers' work is in columns, by rank: an object for each of 100,000 workers would set off the garbage collector,
    which then goes through the whole state table.
    """

    def __init__(self, job: Job, now: float) -> None:
        self.job, self.now, self.rows = job, now, job.rows
        self.state = job.state(now)
        self.workers = states_of(job, now)
        self.states = self.workers.states  # by rank
        slowest = job.table.slowest.rank
        self.marks = job.policy.marks(job.rows, slowest) if self.state == AT_WORK else {}  # by rank, of the marked
        self._samples: list[int] = []  # trained on
        self._computing: list[float] = []  # seconds of local steps
        self._seconds: list[float] = []  # of that work, waiting included
        for row, state in zip(job.rows, self.states, strict=True):
            self._add_work(row, state)

    def _add_work(self, row: Row, state: str) -> None:
        """A running step and its time do not count: they are reported at its end."""
        told = self.job.policy.sync is Sync.IS_NOT_SAID  # what was done is known up to each row's `since`
        past, samples, computing, begin = row.past, 0, 0.0, row.entered
        if len(past) == HISTORY_ROUNDS or self.job.settings.resumed:
            # The work before the first recorded round is known from its end on.
            if past:
                samples, computing = past[0].samples, past[0].computing
                begin = past[0].asked if told else past[1].entered if len(past) > 1 else begin
            else:
                samples, computing, begin = row.samples, row.computing, None
        elif past:
            begin = past[0].entered
        end: float | None = self.now
        if state == TRAINING or told:
            end = row.since
        elif state in NOT_AT_WORK:
            end = row.heard
        self._samples.append(row.samples - samples)
        self._computing.append(row.computing - computing)
        self._seconds.append(0.0 if begin is None or end is None else max(end - begin, 0.0))

    def samples_per_s(self, rank: int) -> float:
        seconds = self._seconds[rank]
        return self._samples[rank] / seconds if seconds > 0 else 0.0

    @property
    def samples_per_s_of_all(self) -> float:
        """Of all running workers; of a job that is not running, the mean over its time."""
        if self.state == AT_WORK:
            return sum([self.samples_per_s(rank) for rank, name in enumerate(self.states) if name not in NOT_AT_WORK])
        first, last = (marks := self.job.table.rates.marks)[0], marks[-1]
        return last.samples / (last.time - first.time) if last.time > first.time else 0.0

    def computing_share(self, rank: int) -> float | None:
        """Share of the worker's time spent computing; None where it is not known."""
        return _share(self._computing[rank], self._seconds[rank])

    @property
    def computing_share_of_all(self) -> float | None:
        """The same over all workers' time."""
        known = [seconds for seconds, computing in zip(self._seconds, self._computing, strict=True) if computing > 0]
        return _share(sum(self._computing), sum(known))

    def transmission_time(self, row: Row) -> float | None:
        """Seconds; None where none was measured."""
        is_known = row.step_times and self.job.policy.sync is not Sync.IS_NOT_SAID
        return row.transmission_time if is_known else None


def _share(computing: float, seconds: float) -> float | None:
    return round(min(computing / seconds, 1.0), 3) if seconds > 0 and computing > 0 else None
