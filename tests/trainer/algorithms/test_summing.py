"""trainer/algorithms/summing.py: what travels beside the arrays of a sum, by hand."""

from contexts import by_flags
from memory_cluster import Worker, batch, train

from algorithms import TransportKind
from flag_values import parse_schedule
from trainer.algorithms.sync import SyncTrainer
from trainer.membership import Company
from trainer.steps import Rule


class Survives(Company):
    wants_pause = True


class WithNumbers(SyncTrainer):
    """Rank r adds 1/4 + r and 1/2."""

    def synchronize(self, wants_stop):
        self.numbers = {"one": 0.25 + self.membership.rank, "other": 0.5}
        return super().synchronize(wants_stop)


def sums(rule, company):
    """What each of two workers, with 3 and 1 of 4 samples, has after a round, and the bytes that it sent."""

    def build(context):
        context.peers.company = company
        return by_flags("sync", kind=WithNumbers)(context)

    trained = train(TransportKind.SUM, [Worker([batch(0)], samples=3), Worker([batch(1)])], build, 1, rule=rule)
    had = ((its.numbers, its.weight_of_all, its.pauses, its.seen.of_all) for its in trained.trainers)
    return list(zip(had, (records[0]["bytes_pushed"] for records in trained.records), strict=True))


def test_numbers_come_back_as_sums_under_their_names():
    of_all = {"one": 1.5, "other": 1.0}
    ((first, size), second), ((less, smaller), _) = (
        sums(Rule(schedule=parse_schedule("warmup:30")), Survives),
        sums(Rule(), Company),
    )
    assert (first, size) == second == ((of_all, 2.0, True, 2), size)
    assert less == (of_all, 2.0, False, 0)
    assert size - smaller == 2 * 4  # where nothing asks for samples and pauses they do not travel
