"""Which worker evaluates."""

import pytest
from hypothesis import given, strategies as st

from config import EVALUATE, NO, YES
from trainer.evaluation.evaluating import AS_FAST, Candidate, evaluating_rank


@pytest.mark.parametrize(
    ("candidates", "rank"),
    [
        ([("auto", 3.5), ("auto", 0.03), ("auto", 0.031)], 1),  # the fastest, wherever its rank is
        ([("auto", 0.031), ("auto", 0.03)], 0),  # equal ones differ by noise alone
        ([("auto", 3.5), ("no", 0.03), ("auto", 0.2)], 2),
        ([("yes", 3.5), ("auto", 0.03)], 0),
        ([("yes", 3.5), ("yes", 0.03), ("auto", 0.01)], 1),
        ([("no", 3.5), ("no", 0.03)], None),
    ],
)
def test_the_fastest_of_those_that_may_evaluates(candidates, rank):
    assert evaluating_rank([Candidate(*candidate) for candidate in candidates]) == rank


@given(st.lists(st.builds(Candidate, st.sampled_from(EVALUATE), st.floats(0.001, 100)), min_size=1))
def test_no_worker_evaluates_that_says_no_nor_one_much_slower_than_another_could(candidates):
    rank = evaluating_rank(candidates)
    if rank is None:
        assert {candidate.evaluate for candidate in candidates} == {NO}
        return
    chosen = candidates[rank]
    assert chosen.evaluate != NO
    rivals = [candidate for candidate in candidates if candidate.evaluate in (chosen.evaluate, YES)]
    assert all(chosen.step_s <= AS_FAST * rival.step_s for rival in rivals)
