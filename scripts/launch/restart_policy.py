"""How a job survives lost processes: its checkpoints, its earlier restarts, the processes of the next start.

scripts/launch/restarts.py decides; scripts/launch/supervisor.py asks and acts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from config import AMONG_WORKERS, CONTINUE, RESTART, Config
from scripts.launch.losses import Lost
from scripts.launch.process import Kind, Role
from scripts.launch.restarts import DEFAULT_RESTARTS, Action, Decision, History, Job, Survival, decide
from scripts.launch.roles import Build, JobSpec, Layout, build
from trainer.survival import checkpoint_rounds
from utils import SetupError

RESUME = ("--resume", "1")


@dataclass
class RestartPolicy:
    """What the supervisor asks when processes are lost; by default the job ends."""

    survival: Survival = Survival.NONE
    limit: int = DEFAULT_RESTARTS
    min_workers: int = 1
    # The round from which all would resume without the workers of these names; None: there is none.
    newest: Callable[[Collection[str]], int | None] = lambda left_out: None
    build: Callable[[Sequence[str]], Sequence[Role]] = lambda flags: ()  # with more flags for the workers
    resumes: Callable[[Role], bool] = lambda role: False  # a worker that is started again alone: it has a checkpoint
    job_name: str = ""  # with a number that of each restart; empty: none is needed

    def __post_init__(self) -> None:
        self.left_out = set[str]()  # the names of workers without which all are started again
        self._starts, self._service_was_away = 0, False
        self.look()
        self._first = History(self._checkpoint)
        self._histories: dict[str, History] = {}  # by service; of the others by worker, or of all

    def after(self, lost: Sequence[Lost], **state: Any) -> Decision:
        """What follows from lost processes. The next restart resumes from the checkpoint that is the newest now.
        `state` are fields of restarts.Job."""
        only_services = all(each.kind is Kind.SERVICE and not each.is_host for each in lost)
        key = lost[0].name if self.survival.others_continue or only_services else ""
        if not state.get("is_stopping"):
            self.look()
        job = Job(self.survival, self.limit, self.min_workers, self._checkpoint, self._service_was_away, **state)
        decision = decide(lost, job, self._histories.get(key, self._first))
        self._service_was_away |= decision.action is Action.RESTART_LOST
        self._histories[key] = decision.history
        self.left_out |= {*decision.left_out}
        return decision

    def look(self) -> None:
        """Looks for the newest checkpoint. Hosts that do not answer are lost. Raises SetupError if none does."""
        self._checkpoint = self.newest(self.left_out)

    def roles(self) -> list[Role]:
        """The processes of a restart of all, which append to their logs. Raises SetupError if a host can no longer take
        part."""
        self._starts, self._service_was_away = self._starts + 1, False
        flags = [] if self._checkpoint is None else [*RESUME]
        flags += ["--job-name", f"{self.job_name[:50]}-{self._starts}"] if self.job_name else []
        roles = [role for role in self.build(flags) if role.name not in self.left_out]
        return [self.restarted(role, sum(role.kind is Kind.WORKER for role in roles)) for role in roles]

    def restarted(self, role: Role, num_workers: int = 0) -> Role:
        """The role with which a lost process is started again. `num_workers`: those that are neither done nor left out;
        0: as many as before. If all were lost, they begin once so many are there."""
        resumes = role.kind is Kind.WORKER and RESUME[0] not in role.command and self.resumes(role)
        environment, number = dict(role.environment), "DMLC_NUM_WORKER"
        if number in environment and num_workers and self.survival is not Survival.AT_HUB:  # which keeps it
            environment[number] = str(num_workers)
        command = [*role.command, *RESUME] if resumes else role.command
        return replace(role, command=command, environment=environment, appends=True)


def of_job(
    asked: JobSpec,  # before it was placed
    job: JobSpec,
    layout: Layout,
    worker_config: Config,  # the flags of a worker
    files: Callable[..., Mapping[str, int]],  # names of checkpoints, and when each was written; of all hosts or of one
    there: Callable[[], Collection[str]],  # names of the hosts that are not gone
    place: Callable[[JobSpec], tuple[JobSpec, Layout]],  # places a job again, at ports that are free then
    build: Build = build,
) -> RestartPolicy:
    """Makes the policy that a job's flags ask for."""
    continues = Survival.AT_HUB if worker_config.leaves_out else Survival.AMONG_WORKERS
    survival = {RESTART: Survival.RESTART, CONTINUE: continues}.get(worker_config.on_worker_death, Survival.NONE)
    before = files() if survival in (Survival.RESTART, Survival.AMONG_WORKERS) and not worker_config.resume else {}

    def newest(left_out: Collection[str]) -> int | None:
        if survival is not Survival.RESTART:
            return None
        found, hosts = files(), there()  # in this order: the first finds out which hosts are gone
        workers = {worker.name for worker in layout.workers if worker.node.name in hosts}
        return checkpoint_rounds.newest(found, before, worker_config, len(workers - {*left_out}) or 1)

    def build_again(flags: Sequence[str]) -> Sequence[Role]:
        """Without the hosts that are gone; the state server keeps its port."""
        arguments = (*asked.worker_arguments, *flags)
        again = replace(asked, state_server_port=job.state_server_port, worker_arguments=arguments)
        return build(*place(replace(again, hosts=asked.hosts.only(there()))))

    def resumes(role: Role) -> bool:
        """A worker sets an earlier job's checkpoints aside when it begins: until then those are not its own."""
        if survival is not Survival.AMONG_WORKERS or not worker_config.ckpt_frequency:
            return False
        device = role.command[[*role.command].index("--device-name") + 1]
        try:
            found = files(role.host)
        except SetupError:  # its host does not answer: should it come back, the others hand over the model
            return False
        return {before.get(name) == found[name] for name in checkpoint_rounds.of_device(found, device)} == {False}

    # Under the old name the state server may still expect the lost workers.
    name = worker_config.job_name if job.transport in AMONG_WORKERS else ""
    return RestartPolicy(survival, job.restarts, worker_config.min_workers, newest, build_again, resumes, name)
