"""What MXNet, ps-lite and OpenMP read from the environment is checked, compared or removed before MXNet is loaded."""

import logging
import re
import sys
from pathlib import Path

import pytest
from cluster_processes import ROOT, cluster, ran
from few_images import on_few_images

from server.setups import differences
from trainer.rendezvous.cluster import ClusterSpec
from trainer.runtime import environment
from trainer.runtime.environment import OF_PARAMETER_SERVERS, TABLE, compared, prepare_environment
from utils import EXIT_SETUP, SetupError

BOUND = "MXNET_KVSTORE_BIGARRAY_BOUND"
ROWS = {name: row for row in TABLE for name in row.names}


def prepared(has_parameter_server=True, **variables):
    """The environment once it is prepared."""
    prepare_environment(has_parameter_server, variables)
    return variables


def test_no_variable_is_in_two_rows():
    assert len(ROWS) == sum(len(row.names) for row in TABLE)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.allowed])
def test_a_bad_value_of_any_variable_is_named_with_what_is_allowed(name):
    for value in ("-1", "1e6", "abc", "²", "99999999999999999999", "1 2", "0x10"):
        with pytest.raises(SetupError) as caught:
            prepared(**{name: value})
        assert f"{name}={value!r}" in str(caught.value)
        assert ROWS[name].allowed.words in str(caught.value)


@pytest.mark.parametrize("empty", ["", " ", "\t"])
def test_an_empty_value_means_that_the_variable_is_not_set(empty):
    for name in ROWS:
        assert prepared(**{name: empty}) == prepared()
        assert prepared(False, **{name: empty}) == {}


def test_a_value_is_written_in_the_form_that_all_libraries_read():
    written = prepared(**{BOUND: " 0500 ", "OMP_NUM_THREADS": "4, 2", "MXNET_MKLDNN_ENABLED": "True", "PS_RESEND": "0"})
    assert written[BOUND] == "500"
    assert written["OMP_NUM_THREADS"] == "4"  # MXNet aborts at a list
    assert written["MXNET_MKLDNN_ENABLED"] == "1"
    assert written["PS_RESEND"] == "0"


def test_what_is_not_in_the_table_stays_as_it_is():
    others = {"PS_VERBOSE": "2", "DMLC_PS_WATER_MARK": "abc", "DMLC_RANK": "1", "MXNET_HOME": "/a b ", "PATH": ""}
    assert prepared(False, **others) == others


@pytest.mark.parametrize("name", ["MXNET_ENFORCE_CYTHON", "PS_HEARTBEAT_INTERVAL", "PS_HEARTBEAT_TIMEOUT"])
def test_a_variable_that_is_removed_has_a_line_in_the_log(name, caplog):
    with caplog.at_level(logging.WARNING):
        assert prepared(**{name: "60"}) == prepared()
    (line,) = caplog.messages
    assert line.startswith(f"{name}=60 is left out")


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row in OF_PARAMETER_SERVERS])
def test_what_ps_lite_reads_is_no_error_where_there_is_no_parameter_server(name):
    assert prepared(False, **{name: "abc"}) == {name: "abc"}


def cards(*environments):
    """Processes with these variables, as the rendezvous compares them."""
    return [(f"host{number}", compared(prepared(**variables))) for number, variables in enumerate(environments)]


@pytest.mark.parametrize(("name", "value"), [(BOUND, "1000"), ("DMLC_LOCAL", "1")])
def test_a_value_that_one_process_alone_has_is_told_with_the_variable_and_the_process(name, value):
    assert list(differences(cards({}, {name: value}, {}))) == [name]
    assert "host1" in differences(cards({}, {name: value}, {}))[name]


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.default])
def test_a_default_that_is_written_out_is_equal_to_a_variable_that_is_not_set(name):
    assert not differences(cards({name: f" {ROWS[name].default} "}, {}, {name: ""}))


def test_unix_sockets_are_for_the_processes_of_one_host(monkeypatch):
    one = compared(prepared(DMLC_LOCAL="1"))
    assert one == compared(prepared(DMLC_LOCAL="1"))
    monkeypatch.setattr(environment.socket, "gethostname", lambda: "another")
    assert one != compared(prepared(DMLC_LOCAL="1"))


def test_an_empty_role_is_no_role_in_a_job_of_workers_alone():
    assert ClusterSpec.from_environment("ring", {"DMLC_ROLE": "", "DMLC_NUM_WORKER": "2"}).num_workers == 2


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_a_role_that_was_left_in_the_shell_does_not_take_mxnets_import_for_itself(role):
    program = "import os; from trainer.engine import mx; print(mx.nd.ones(2).sum().asscalar(), os.environ['DMLC_ROLE'])"
    finished = ran(sys.executable, "-c", program, DMLC_ROLE=role)
    assert (finished.returncode, finished.stdout.split()) == (0, ["2.0", role])


def test_the_documents_show_what_is_compared_and_what_is_refused():
    page = Path(ROOT, "docs", "hosts.md").read_text()
    for row in OF_PARAMETER_SERVERS:
        if not row.allowed:
            continue  # the line that such a variable gets says all of it
        names = ", ".join(f"`{name}`" for name in row.names)
        cells = (names, row.allowed.words, "the same in all processes" if row.default else "refused")
        assert re.search(r"\| *" + r" *\| *".join(map(re.escape, cells)) + r" *\|", page), f"| {' | '.join(cells)} |"


@pytest.mark.cluster
def test_arrays_that_workers_would_split_in_different_ways_end_every_process_with_one_line(tmp_path):
    with cluster(tmp_path, num_workers=2, num_servers=2) as processes:
        for rank in range(2):
            flags = ["-m", "sync", "-c", "1", "-n", "lenet", "-ld", str(tmp_path), "--device-name", f"cpu{rank}"]
            bound = {BOUND: "1000"} if rank == 1 else {}
            processes.start(f"worker{rank}", "worker", "main.py", *flags, *on_few_images(), **bound)
        codes = processes.exit_codes()
    assert set(codes.values()) == {EXIT_SETUP}
    for name in codes:
        errors = [line for line in processes.log(name).splitlines() if "error: " in line]
        assert len(errors) == 1
        assert "worker (cpu1 on host" in errors[0]
        assert f"has {BOUND} 1000, the others {BOUND} 1000000" in errors[0]
