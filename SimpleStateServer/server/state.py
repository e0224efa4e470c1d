"""The state table: one immutable row a worker, and indexes, so that a decision need not scan all rows.

Only the handlers change a table, one message at a time; a reader gets a tuple of the immutable rows. All times are
seconds on the server's monotonic clock, given by the caller.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from server.job_rates import JobRates
from server.row import Activity, Row
from server.throughputs import Throughputs

if TYPE_CHECKING:  # the rules need no messages, and import this file
    from server.messages import Settings
    from server.policies import Policy

# The delay of a worker that does not take part: below all others, so it is the slowest only where all are out.
OUT = -1.0
_NEW: dict[bool, list[Row]] = {True: [], False: []}  # rows before the first message, by `counted`


def _new_rows(num_workers: int, counted: bool) -> list[Row]:
    """One empty row for each rank. Jobs share these immutable rows: making them for a job of 100,000 workers would take
    0.3 s of the loop's time."""
    rows = _NEW[counted]
    rows.extend(Row(rank, counted=counted) for rank in range(len(rows), num_workers))
    return rows[:num_workers]


class MaxTree:
    """A tournament over the delays of `number` workers, at first all the same: its top is the slowest one, the lowest
    rank among equals.

    A change costs one comparison for each level of the tree, so O(log N); the top costs nothing.
    """

    def __init__(self, number: int, delay: float) -> None:
        self.delays = [delay] * number  # by rank
        # Node i is the winner of its children 2i and 2i+1; the leaves are the last `number` nodes. Nodes are ranks, not
        # objects, which would cost the garbage collector more time than the comparisons take.
        self._nodes = nodes = [*[0] * number, *range(number)]
        for node in range(number - 1, 0, -1):
            one, other = nodes[2 * node], nodes[2 * node + 1]
            nodes[node] = one if one < other else other

    def change(self, rank: int, delay: float) -> None:
        """Sets the delay of a worker."""
        delays, nodes = self.delays, self._nodes
        if delays[rank] == delay:
            return
        delays[rank] = delay
        node = len(delays) + rank
        while (node := node // 2) > 0:
            one, other = nodes[2 * node], nodes[2 * node + 1]
            is_one = delays[one] > delays[other] or (delays[one] == delays[other] and one < other)
            nodes[node] = one if is_one else other

    @property
    def slowest(self) -> int:
        return self._nodes[1]


class Table:
    """The rows of one job. Decisions of a new one wait for workers without a message yet: all are in the first round.
    Those of one that was taken over (`settings.resumed`) do not: a worker may already wait in the aggregation."""

    def __init__(self, settings: Settings, policy: Policy, started: float = 0.0) -> None:
        """`started`: when the job began, or this server learned of it."""
        num_workers, is_new = settings.num_workers, not settings.resumed
        self.settings, self.started = settings, started
        size = 0 if policy.share_out is None else settings.batch_size or 0
        self.all_samples = num_workers * size  # B, of a round; 0: no policy decides on batch sizes
        # By rank, from the next round on; empty while they are not known, as those of a job that was taken over.
        self.batch_sizes = (size,) * num_workers if size and is_new else ()
        self._shared_out = 0  # round in which the policy decided on them last
        self._questions = num_workers  # since then
        self.round = 1  # the latest that any worker has entered
        self._entered = started  # by the first one
        self.num_ended = 0  # workers that have left in order
        self.num_counted = num_workers if is_new else 0
        self.entered: dict[int, list[float]] = {}  # when the counted workers in a round entered it, in order
        self.rates = JobRates(started, resumed=not is_new)
        self.rows = _new_rows(num_workers, is_new)
        self._policy = policy
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
        return self._policy.delay(row) if row.counted else OUT

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
        return self.batch_sizes[rank] if self.batch_sizes else None

    def share_out(self, round: int) -> None:
        """Lets a policy that decides on batch sizes change them, now that a worker has done its step of `round`: once a
        round at most, when its first worker has, and the round before is complete. They hold for all workers alike.

        It costs O(N), so N questions must have come since its last run: a worker that runs through rounds alone costs
        no more than others.
        """
        if self._policy.share_out is None:
            return
        if round > self._shared_out and self._questions >= len(self.rows):
            self._shared_out, self._questions = round, 0
            self.batch_sizes = self._policy.share_out(self)
        self._questions += 1

    def silence(self, row: Row, now: float) -> float:
        """Seconds since the worker's last message, or since the job began where there was none. Where all aggregate it
        lived when others entered a later round, though its messages may not arrive."""
        since = self.started if row.heard is None else row.heard
        return now - (max(since, self._entered) if self._policy.all_aggregate and row.round < self.round else since)

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
