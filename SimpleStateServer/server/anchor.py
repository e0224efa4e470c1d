"""The anchor A: local steps that the straggler takes in a round, in place of the papers' one.

Source: the cadence of floDl. With more steps a round the exchange is a smaller part of it. The others take as many
steps as fit into the straggler's A, by ESync's three rules, which take A from here.

`auto` is the smallest A for which the transmission, m_s seconds, is below SHARE of A * c_s + m_s. Both times are the
table's: c_s includes the round trip of a question that does not block, and with a parameter server m_s is the time of
one of an exchange's two ways, as in the journal's rule. Where a step is short beside the exchange, A would have no
bound, and models that drift apart gain nothing from their mean: so it is MOST at most.
"""

from server.row import Row
from server.state import Table

AUTO = "auto"
SHARE = 0.1
MOST = 32


def steps(anchor: int | str, straggler: Row) -> int:
    """A, at least 1. The job's `anchor` is a number of steps, 0 for the papers' one, or AUTO; `straggler` is its
    row."""
    if anchor != AUTO:
        return int(anchor) or 1
    if not straggler.step_time:
        return 1
    return 1 + int(min((1 / SHARE - 1) * straggler.transmission_time / straggler.step_time, MOST - 1))


def left(table: Table, straggler: Row) -> int:
    """Steps that the straggler has to do in this round; 0 or less once it may aggregate."""
    return steps(table.settings.anchor, straggler) - straggler.local_iteration
