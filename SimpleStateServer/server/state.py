"""The state table: one immutable row a worker, and indexes, so that a decision need not scan all rows.

Only the handlers change a table, one message at a time; a reader gets a tuple of the immutable rows. All times are
seconds on the server's monotonic clock, given by the caller.
"""

import bisect
from collections.abc import Callable

from server.batch_sizes import BatchSizes
from server.job_rates import JobRates
from server.max_tree import OUT, MaxTree
from server.row import Row
from server.throughputs import Throughputs
from server.worker import Activity

_NEW: dict[bool, list[Row]] = {True: [], False: []}  # rows before the first message, by `counted`


def _new_rows(num_workers: int, counted: bool) -> list[Row]:
    """One empty row for each rank. Jobs share these immutable rows: making them for a job of 100,000 workers would take
    0.3 s of the loop's time."""
    rows = _NEW[counted]
    rows.extend(Row(rank, counted=counted) for rank in range(len(rows), num_workers))
    return rows[:num_workers]


class Table:
    """The rows of one job."""

    def __init__(
        self,
        num_workers: int,  # N; the ranks are 0 .. N-1
        # The delay by which the job's policy compares workers; OUT where decisions ignore the worker
        delay: Callable[[Row], float],
        epsilon: float = 0.0,  # the preprint's tolerance in seconds
        started: float = 0.0,  # when the job began
        # Whether decisions wait for workers without a message yet. In a new job they do: all are in the first round. In
        # a job that was taken over they must not: a worker may already wait in the aggregation
        counted: bool = True,
        # Samples of each worker's batch at first, where the job's policy decides on batch sizes; else 0
        batch_size: int = 0,
        anchor: int | str = 0,  # local steps that ESync's straggler takes in a round (anchor.py)
        all_aggregate: bool = False,  # no worker enters a round before all have done the one before
    ) -> None:
        self.epsilon = epsilon
        self.anchor = anchor
        self.batches = BatchSizes(num_workers, batch_size, are_known=counted)
        self.started = started
        self.round = 1  # the latest that any worker has entered
        self._entered = started  # by the first one
        self._all_aggregate = all_aggregate
        self.num_ended = 0  # workers that have left in order
        self.num_counted = num_workers if counted else 0
        self.entered: dict[int, list[float]] = {}  # when the counted workers in a round entered it, in order
        self.rates = JobRates(started, resumed=not counted)
        self.rows = _new_rows(num_workers, counted)
        self._delay = delay
        self._delays = MaxTree(num_workers, self._counted_delay(self.rows[0]))
        self._throughputs: Throughputs | None = None
        self._looked_at = 0  # rank of the worker that was checked last

    def put(self, row: Row) -> None:
        before, self.rows[row.rank] = self.rows[row.rank], row
        self.num_ended += (row.doing is Activity.ENDED) - (before.doing is Activity.ENDED)
        self.num_counted += row.counted - before.counted
        self.rates.note(before, row)
        if (row.counted, row.round, row.entered) != (before.counted, before.round, before.entered):
            self._note_entered(before, row)
        if row.round > self.round:
            self.round, self._entered = row.round, row.entered or 0.0
        delay = self._counted_delay(row)
        if self._throughputs is not None:
            self._throughputs.change(self._delays.delays[row.rank], delay)
        self._delays.change(row.rank, delay)

    def _note_entered(self, before: Row, row: Row) -> None:
        if before.counted and before.entered is not None:
            times = self.entered[before.round]
            del times[bisect.bisect_left(times, before.entered)]
            if not times:
                del self.entered[before.round]
        if row.counted and row.entered is not None:
            bisect.insort(self.entered.setdefault(row.round, []), row.entered)

    def _counted_delay(self, row: Row) -> float:
        return self._delay(row) if row.counted else OUT

    @property
    def slowest(self) -> Row:
        """The straggler: the counted worker with the largest delay, the lowest rank among equals."""
        return self.rows[self._delays.slowest]

    @property
    def throughputs(self) -> Throughputs:
        """Of all counted workers, where the policy's delay is in seconds a sample. O(N) at the first call; from then on
        updated in O(1) a row."""
        if self._throughputs is None:
            self._throughputs = Throughputs(self._delays.delays)
        return self._throughputs

    def batch_size_of(self, rank: int) -> int | None:
        """Samples of a worker's batches from the next round on; None where no policy decides on that, or not yet."""
        return self.batches.sizes[rank] if self.batches.sizes else None

    def silence(self, row: Row, now: float) -> float:
        """Seconds since the worker's last message, or since the job began where there was none. Where all aggregate it
        lived when others entered a later round, though its messages may not arrive."""
        since = self.started if row.heard is None else row.heard
        return now - (max(since, self._entered) if self._all_aggregate and row.round < self.round else since)

    def stop_counting_on_the_silent(self, now: float) -> list[Row]:
        """Excludes silent workers from the decisions until their next message; returns their rows.

        Each call checks the slowest, since others wait for it, and one of the others in turn, since each has its part
        in a mean. So a call costs O(1), and each silent worker O(log N) once. Workers that wait for the slowest send
        nothing meanwhile, so none counts as silent before the slowest would.
        """
        silent = []
        while (row := self.slowest).counted and self.silence(row, now) > row.silence_limit:
            silent.append(self.stop_counting_on(row))
        self._looked_at = (self._looked_at + 1) % len(self.rows)
        row = self.rows[self._looked_at]
        counts, silence = self._delays.delays[row.rank] != OUT, self.silence(row, now)
        if counts and silence > row.silence_limit and silence > self.slowest.silence_limit:
            silent.append(self.stop_counting_on(row))
        return silent

    def stop_counting_on(self, row: Row) -> Row:
        """Excludes a worker from the decisions until its next message; returns its row as it was."""
        self.put(row._replace(counted=False))
        return row
