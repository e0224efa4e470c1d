"""Rescaled ASGD (arXiv:2605.13434): ASGD in which the gradients of worker k are weighed by t_k / mean(t), so that the
data of a slow worker count as much as those of a fast one. t_k is the time of its last step, at first of a test step;
the mean is over the workers that are there."""

from trainer.hub.server_part import ENDED, Answer, Answers, Arrays, Message, ServerPart


class RescaledServer:
    """Weighs the gradients for another server part of ASGD."""

    def __init__(self, of_asgd: ServerPart) -> None:
        self._of_asgd = of_asgd
        self._times_s: dict[int, float] = {}  # t, by rank
        self.state = of_asgd.state

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        if ENDED in message:
            return self.lost(rank)
        if "step_s" in message:
            self._times_s[rank] = message["step_s"]
        mean_s = sum(self._times_s.values()) / max(1, len(self._times_s))
        for array in arrays if mean_s else ():
            array *= message["step_s"] / mean_s
        return self._of_asgd.act(rank, message, arrays)

    def joined(self, rank: int) -> Answer | None:
        return self._of_asgd.joined(rank)

    def lost(self, rank: int) -> Answers:
        self._times_s.pop(rank, None)
        return self._of_asgd.lost(rank)
