"""The environment variables of MXNet, ps-lite and OpenMP that can do harm, in one table.

Each aborts the process, hangs the job or kills it where its value is bad or differs between processes. Every role
checks them before it loads MXNet: an empty value means "not set", as in most shells, and a sound value is written in
the one form that all of these libraries read. Other variables are not checked. `rendezvous/cluster.py` and
`rendezvous/addresses.py` read the job's own (DMLC_ROLE and others).
"""

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass

from utils import SetupError, usable_cores

MOST_THREADS = 1024  # far more kill the process
LARGEST = 2**31 - 1  # these libraries keep whole numbers in 32 bits


@dataclass(frozen=True)
class Values:
    """The allowed values of a variable."""

    words: str
    normal: Callable[[str], str | None]  # the normal form of a value; None where it is not allowed


@dataclass(frozen=True)
class Variables:
    """A row of the table: variables that are treated alike."""

    names: tuple[str, ...]
    allowed: Values | None  # None: they are removed, with a line in the log
    why: str  # the consequence of another value
    default: str = ""  # of what must be the same in all processes: the value where it is not set; empty: it may differ


def whole(least: int, most: int = LARGEST, words: str = "") -> Values:
    """Whole numbers from `least` to `most`."""

    def normal(text: str) -> str | None:
        if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
            return None
        return str(int(text))

    return Values(words or f"a whole number from {least}" + (f" to {most}" if most < LARGEST else " on"), normal)


def one_of(*words: str) -> Values:
    """One of these words."""
    return Values(" or ".join(words), lambda text: text if text in words else None)


THREADS = whole(1, MOST_THREADS)


def _thread_count(text: str) -> str | None:
    """OpenMP takes a list, a number for each level of nesting, at which MXNet, which has one level, aborts."""
    counts = [THREADS.normal(count.strip()) for count in text.split(",")]
    return None if None in counts else counts[0]


SWITCH = Values("0 or 1", lambda text: {"0": "0", "false": "0", "1": "1", "true": "1"}.get(text.lower()))
ABORTS = "MXNet aborts"
OF_PARAMETER_SERVERS = (  # which have no effect in a job without one
    Variables(
        ("MXNET_KVSTORE_BIGARRAY_BOUND",), whole(1),
        "workers split arrays over the servers in different ways, and a server aborts", "1000000",
    ),
    Variables(
        ("DMLC_LOCAL",), whole(0, 1, "0, or 1 (Unix sockets) with all processes on one host"),
        "some listen at TCP ports and others at Unix sockets: the job hangs", "0",
    ),
    Variables(("PS_RESEND",), one_of("0"), "ps-lite aborts each process at the end of the job"),
    Variables(("PS_DROP_MSG",), one_of("0"), "ps-lite drops messages at random, and the job hangs"),
    Variables(("DMLC_PS_VAN_TYPE",), one_of("zmq"), "this MXNet has no other transport"),
    Variables(
        ("PS_HEARTBEAT_INTERVAL", "PS_HEARTBEAT_TIMEOUT"), None,
        "the scheduler notices silent processes without MXNet's heartbeats, which delay the end of each",
    ),
)  # fmt: skip
OF_ALL = (
    Variables(
        ("MXNET_ENGINE_TYPE",), one_of("ThreadedEnginePerDevice", "ThreadedEngine", "NaiveEngine"),
        "MXNet cannot be loaded",
    ),
    Variables(("OMP_NUM_THREADS",), Values(THREADS.words, _thread_count), ABORTS),
    Variables(
        (
            "MXNET_CPU_WORKER_NTHREADS", "MXNET_CPU_PRIORITY_NTHREADS", "MXNET_CPU_PARALLEL_RAND_COPY",
            "MXNET_CPU_TEMP_COPY", "MXNET_GPU_WORKER_NTHREADS", "MXNET_GPU_COPY_NTHREADS",
            "MXNET_GPU_PARALLEL_RAND_COPY", "MXNET_GPU_TEMP_COPY", "MXNET_KVSTORE_REDUCTION_NTHREADS",
            "MXNET_MP_WORKER_NTHREADS", "MXNET_OMP_MAX_THREADS",
        ),
        THREADS, ABORTS,
    ),
    Variables(
        (
            "MXNET_CPU_PARALLEL_SIZE", "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD",
            "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD", "MXNET_EXEC_INPLACE_GRAD_SUM_CAP", "MXNET_KVSTORE_SERIAL_PUSH",
            "MXNET_MKLDNN_CACHE_NUM", "MXNET_PROFILER_AUTOSTART", "MXNET_PROFILER_MODE",
        ),
        whole(0, 10**7), ABORTS,
    ),
    Variables(
        (
            "MXNET_ELIMINATE_COMMON_EXPR", "MXNET_ENGINE_INFO", "MXNET_EXEC_BULK_EXEC_INFERENCE",
            "MXNET_EXEC_BULK_EXEC_TRAIN", "MXNET_INFER_STORAGE_TYPE_VERBOSE_LOGGING",
            "MXNET_KVSTORE_DIST_ROW_SPARSE_VERBOSE", "MXNET_KVSTORE_LOGTREE", "MXNET_MEM_PLAN_VERBOSE_LOGGING",
            "MXNET_MKLDNN_DEBUG", "MXNET_MKLDNN_ENABLED", "MXNET_SAFE_ACCUMULATION",
        ),
        SWITCH, ABORTS,
    ),
    Variables(("MXNET_ENABLE_CYTHON", "MXNET_ENFORCE_CYTHON"), None, "this MXNet has no Cython modules"),
)  # fmt: skip
TABLE = OF_PARAMETER_SERVERS + OF_ALL
_EMPTY_MEANS_UNSET = re.compile("(PS|MXNET|OMP)_|DMLC_(LOCAL|PS_VAN_TYPE)$")


def judged(environment: Mapping[str, str], has_parameter_server: bool) -> dict[str, str | None]:
    """The values to set in place of the present ones; None: to be removed. Raises SetupError if a value is not
    allowed."""
    found: dict[str, str | None] = {}
    for name, text in environment.items():
        if _EMPTY_MEANS_UNSET.match(name) and not text.strip():
            found[name] = None
    for row in TABLE if has_parameter_server else OF_ALL:
        for name in row.names:
            if not (text := environment.get(name, "").strip() or row.default):
                continue
            found[name] = row.allowed.normal(text) if row.allowed else None
            if row.allowed and found[name] is None:
                raise SetupError(f"{name}={text!r:.80} is not {row.allowed.words} ({row.why}): correct it, or unset it")
    return found


def set_unless_given(name: str, value: str) -> bool:
    """Sets a variable that is not set, or empty; returns whether it was so."""
    if os.environ.get(name, "").strip():
        return False
    os.environ[name] = value
    return True


def prepare_environment(has_parameter_server: bool = True, environment: MutableMapping[str, str] = os.environ) -> None:
    """Checks the variables of MXNet, ps-lite and OpenMP and writes them in their normal form, before MXNet's import.
    Raises SetupError if a value is not allowed."""
    if len(cores := usable_cores()) < (os.cpu_count() or 1) and not environment.get("OMP_NUM_THREADS", "").strip():
        environment["OMP_NUM_THREADS"] = str(len(cores))  # OpenMP knows no CPU quota
    for name, value in judged(environment, has_parameter_server).items():
        if value is not None:
            environment[name] = value
        elif text := environment.pop(name, "").strip():
            logging.warning("%s=%s is left out: %s", name, text, next(row.why for row in TABLE if name in row.names))


def compared(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that all processes of a job with a parameter server must share: name -> value or default."""
    equal = {name: environment.get(name, row.default) for row in TABLE if row.default for name in row.names}
    if equal["DMLC_LOCAL"] != "0":
        equal["DMLC_LOCAL"] += f" on host {socket.gethostname()}"  # processes of another host cannot be reached
    return equal


@contextlib.contextmanager
def role_hidden() -> Iterator[None]:
    """Hides DMLC_ROLE during MXNet's import, which would run the scheduler or the server and never return. So a program
    without a role, such as simulate.py, is not affected by a variable that was left in the shell."""
    role = os.environ.pop("DMLC_ROLE", None)
    try:
        yield
    finally:
        if role is not None:
            os.environ["DMLC_ROLE"] = role
