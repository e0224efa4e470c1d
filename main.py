"""ESync on MXNet: runs this process's role. `python main.py --help` lists the flags.

DMLC_ROLE is the role: scheduler, server or worker. Without it this process trains alone (mode local).
Exit codes: 0 ended as asked, 1 an error in the program, 2 wrong flags or set-up, 3 another process was lost, 4 as
0, but a full disk has not taken all logs, 130 stopped at once by a signal.
"""

if __name__ == "__main__":
    import sys

    sys.path.insert(0, __file__.rpartition("/")[0] or ".")  # PYTHONSAFEPATH leaves it out
    import start  # first: what it does is for the other imports too

import contextlib
import errno
import logging
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from config import MPI, Config
from trainer.command_line import check_job, check_step_time, parse
from trainer.jobs.sources import sources
from trainer.rendezvous.cluster import ClusterSpec, allow_files
from trainer.runtime.environment import prepare_environment
from utils import EXIT_BUG, EXIT_OK, EXIT_SETUP, JobError, JobOver, SetupError, fail, missing_package, setup_logging


def run_role(config: Config) -> int:
    """Runs this process's role to its end; returns the exit code. MXNet is imported only here, after the flags were
    checked: the import takes a second, and with DMLC_ROLE=scheduler or server it never returns."""
    from trainer.rendezvous import roles

    cluster = ClusterSpec.from_environment(config.transport)
    with roles.tells_errors(cluster, config):
        check_step_time(config)
        allow_files(cluster.num_processes if cluster else 1)
    if cluster is not None and cluster.role != "worker":
        setup_logging(cluster.role)
        if not cluster.has_hub:
            roles.serve(cluster, config.start_timeout)
        elif cluster.role == "scheduler":
            logging.info("mode %s has no scheduler: its workers meet at the server", config.mode)
        else:
            from trainer.hub import hub

            check_job(config, cluster.num_servers, cluster.num_workers)
            hub.serve(cluster, config)
        return EXIT_OK
    if cluster is None and config.algorithm.is_distributed and config.transport != MPI:
        raise SetupError(
            f"mode {config.mode} needs a cluster: set DMLC_ROLE and the other DMLC_ variables as scripts/worker.sh "
            "does, start a whole one with scripts/local_cluster.sh, or train alone with -m local"
        )
    if cluster is not None and not config.algorithm.is_distributed:
        raise SetupError(f"mode {config.mode} trains alone: unset DMLC_ROLE, or choose another mode with -m")
    with roles.tells_errors(cluster, config):
        if config.job:
            sources(Path(config.job))  # cannot be read, or parsed
        prepare_environment(has_parameter_server=cluster is not None and cluster.has_scheduler)
    from trainer.runtime.stop_signals import SignalWatch

    signals = SignalWatch(on_first="stopping at the end of this round")
    from trainer import worker

    return worker.run(config, cluster, signals)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and runs; every failure becomes one line and an exit code."""
    setup_logging(os.environ.get("DMLC_ROLE") or "local")
    config = parse(arguments, warn=lambda text: logging.warning("warning: %s", text))
    return guarded(lambda: run_role(config))


def guarded(work: Callable[[], int]) -> int:
    """Returns the exit code of the work; its failure ends the process with one line and an exit code. The process exits
    inside the handler: without the traceback the kvstore would be freed, which waits for workers that wait for this
    one."""
    try:
        return work()
    except JobOver as over:
        logging.info("%s", over)
        leave(over.exit_code)
    except JobError as error:
        fail(no_more_files(error) or str(error))
        leave(error.exit_code)
    except Exception as error:
        if told := missing_package(error) or no_more_files(error):
            fail(told)
            leave(EXIT_SETUP)
        logging.exception("an error in the program")
        fail(f"{type(error).__name__}: {error}")
        leave(EXIT_BUG)


def no_more_files(error: BaseException | None) -> str:
    """What is wrong where the error comes from one that no more files can be opened, whose own advice would be wrong;
    empty for others."""
    while error is not None and getattr(error, "errno", None) != errno.EMFILE:
        error = error.__context__
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = f"this process, with a job file's code, has {most} files open, as many as it may (ulimit -n)"
    return what if error is not None else ""


def leave(code: int) -> NoReturn:
    """Ends the process at once, without MXNet's exit handlers."""
    with contextlib.suppress(OSError, ValueError):  # the disk is full; a job file has closed stdout
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    start.run(main)
