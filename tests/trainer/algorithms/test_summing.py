"""trainer/algorithms/summing.py: what travels beside the arrays of a sum, by hand."""

import pytest
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


@pytest.mark.parametrize(
    ("schedule", "company", "pauses", "seen", "num_numbers"),
    [("constant", Company, False, 0, 4), ("warmup:30", Survives, True, 2, 6)],  # without need, two do not travel
)
def test_numbers_come_back_as_sums_under_their_names(schedule, company, pauses, seen, num_numbers) -> None:
    def build(context):
        context.peers.company = company
        return by_flags("sync", kind=WithNumbers)(context)

    rule = Rule(schedule=parse_schedule(schedule))
    trained = train(TransportKind.SUM, [Worker([batch(0)], samples=3), Worker([batch(1)])], build, 1, rule=rule)
    for its, records in zip(trained.trainers, trained.records, strict=True):
        assert (its.numbers, its.weight_of_all) == ({"one": 1.5, "other": 1.0}, 2.0)
        assert (its.pauses, its.seen.of_all) == (pauses, seen)
        weights = sum(weight.size for weight in its.parameters.weights)
        assert records[0]["bytes_pushed"] == 4 * (weights + num_numbers)
