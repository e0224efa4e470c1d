"""The command line: published flags keep their names, types, defaults and meaning; mistakes are errors."""

from pathlib import Path

import pytest

from algorithms import TABLE, TransportKind
from config import EXCHANGES, FIELDS, HUB, KVSTORE, MODES, MPI, modes_of, names_of, one_of, titles_of, transport_of
from trainer.command_line import check_job, job_setup, parse
from trainer.rendezvous.cluster import ClusterSpec
from utils import SetupError

PUBLISHED = [
    # short, long, a value, field, its parsed value, default
    ("-l", "--learning-rate", "0.5", "learning_rate", 0.5, 0.001),
    ("-ll", "--local-lr", "0.5", "local_lr", 0.5, 0.001),
    ("-gl", "--global-lr", "0.5", "global_lr", 0.5, 1.0),
    ("-b", "--batch-size", "32", "batch_size", 32, 64),
    ("-dd", "--data-dir", "d", "data_dir", "d", "data"),
    ("-g", "--gpu", "1", "gpu", 1, 0),
    ("-c", "--cpu", "1", "cpu", 1, 0),
    ("-n", "--network", "alexnet", "network", "alexnet", "resnet18-v1"),
    ("-ld", "--log-dir", "x", "log_dir", "x", "logs"),
    ("-e", "--eval-duration", "9", "eval_duration", 9, 1),
    ("-m", "--mode", "sync", "mode", "sync", "esync"),
    ("-s", "--split-by-class", "1", "split_by_class", 1, 0),
    ("-ip", "--state-server-ip", "10.0.0.1", "state_server_ip", "10.0.0.1", "127.0.0.1"),
    ("-port", "--state-server-port", "8000", "state_server_port", "8000", "10010"),
]


@pytest.mark.parametrize(("short", "long", "text", "field", "value", "default"), PUBLISHED)
def test_a_published_flag_keeps_names_type_and_default(short, long, text, field, value, default):
    mode = modes_of(field)[0]
    assert parse(["-m", mode]).values_by_name()[field] == default
    for flag in (short, long):
        parsed = parse(["-m", mode, flag, text]).values_by_name()[field]
        assert parsed == value
        assert type(parsed) is type(default)


def in_another_mode(published):
    """Flags given with their own default, in each mode where they do nothing."""
    for name, field in FIELDS.items():
        for mode in sorted(set(MODES) - set(modes_of(name))) if field.published == published else ():
            value = field.default if isinstance(field.default, tuple) else (field.default or 0,)
            yield pytest.param(mode, [names_of(name)[0], *map(str, value)], id=f"{mode} {names_of(name)[0]}")


@pytest.mark.parametrize(("mode", "flag"), in_another_mode(published=False))
def test_a_flag_of_our_own_that_does_nothing_in_the_mode_is_an_error_whatever_its_value(mode, flag, refused):
    told = refused(parse, "-m", mode, *flag)
    assert f"{flag[0]} " in told and f"not to {mode}: leave it out" in told


@pytest.mark.parametrize(("mode", "flag"), in_another_mode(published=True))
def test_a_published_flag_that_does_nothing_in_the_mode_is_one_warning(mode, flag):
    warnings = []
    assert parse(["-m", mode, *flag], warnings.append).mode == mode
    (warning,) = warnings
    assert warning.startswith(f"{flag[0]} {flag[1]} does nothing in mode {mode}: it counts in mode ")


@pytest.mark.parametrize(
    ("mode", "flag", "text", "rather"),
    [
        ("sync", ["-ll", "0.1"], "-ll 0.1", "; in mode sync -l counts"),
        ("esync", ["-l", "0.001"], "-l 0.001", "; in mode esync -ll counts"),
        ("wbsp", ["-gl", "2"], "-gl 2.0", "; in mode wbsp -ll counts"),
        ("sync", ["--use-dcasgd", "1"], "-dcasgd 1", ""),
    ],
)
def test_the_warning_names_the_modes_and_the_flag_that_counts(mode, flag, text, rather):
    [field] = [name for name in FIELDS if flag[0] in names_of(name)]
    warnings = []
    parse(["-m", mode, *flag], warnings.append)
    assert warnings == [f"{text} does nothing in mode {mode}: it counts in mode {one_of(modes_of(field))}{rather}"]


def test_the_flags_that_count_are_taken_without_a_word():
    published = ["-m", "async", "-l", "0.1", "-dcasgd", "1", "--dcasgd-lambda", "0.1", "-s", "0", "-b", "8"]
    assert parse(published, pytest.fail).settings.dcasgd_lambda == 0.1
    ours = ["-ll", "0.1", "-gl", "2", "--policy", "preprint", "--epsilon", "0.1", "--query-delay", "1", "-ip", "h"]
    assert parse(ours, pytest.fail).settings.epsilon == 0.1


def test_the_help_names_the_algorithms_whose_own_a_flag_is_and_no_former_name(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"--staleness STALENESS {', '.join(titles_of('staleness'))}: steps that" in told
    assert f"--sync-every SYNC_EVERY {', '.join(titles_of('sync_every'))}: local steps a round" in told
    assert "--seed SEED seed of" in told
    assert "0.04 at batch 64 is 2.56 on the mean" in told  # of DC-ASGD's compensation: it acts on the summed loss
    assert "--exchange {auto,kvstore,hub,ring,butterfly,binary-blocks,mpi}" in told and "--collective" not in told


@pytest.mark.parametrize(
    ("preset", "instead"),
    [
        ("alone", "give -m local here on the fastest worker of a cluster"),
        ("without-slow", "give -m sync here on all workers but the slowest of a cluster"),
        ("dcasgd", "give -m async --use-dcasgd 1 here"),
    ],
)
def test_a_preset_of_the_launchers_is_told_from_a_misspelt_mode(preset, instead, refused):
    said = f"{preset} is a preset of the launchers and of simulate.py: {instead}"
    assert refused(parse, "-m", preset).endswith(said)


def test_workers_that_sum_among_themselves_ask_the_state_server_in_every_mode():
    where = ["-ip", "10.0.0.1", "-port", "8000", "--query-delay", "0.1"]
    config = parse(["-m", "sync", "--exchange", "ring", "--job-name", "mine", *where], pytest.fail)
    assert (config.job_name, config.needs_state_server) == ("mine", True)
    assert not parse(["-m", "sync"]).needs_state_server


# ---------------------------------------------------------------------------------------------- what carries arrays


def carried(*words: str) -> str:
    return parse(["-m", *words], pytest.fail).transport


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_without_a_flag_mxnets_kvstore_carries_the_arrays_where_the_mode_has_it_and_else_the_hub(row):
    on_kvstore = row.transport is TransportKind.SUM or row.name == "async"
    expected = (KVSTORE if on_kvstore else HUB) if row.is_distributed else ""
    assert carried(row.name) == transport_of(row.name) == expected
    if row.is_distributed:
        assert carried(row.name, "--exchange", "auto") == expected
        assert carried(row.name, "--exchange", "hub") == HUB


@pytest.mark.parametrize(
    ("flags", "entry"),
    [
        ("--max-delay 16", "ringmaster"),
        ("--table 1", "ringleader"),
        ("--rescale 1", "rescaled"),
        ("-dcasgd 1 --dcasgd-adaptive 1", ""),
        ("-dcasgd 1 --momentum 0.9", ""),  # which MXNet's own fails with
        ("--lr-schedule warmup:100", ""),
    ],
)
def test_a_flag_that_mxnets_server_cannot_have_needs_the_hub(flags, entry, refused):
    assert carried("async", *flags.split()) == carried("async", *flags.split(), "--exchange", "hub") == HUB
    assert not entry or transport_of(entry) == HUB
    flag = " ".join(flags.split()[-2:])
    told = f"--exchange kvstore: MXNet's own server has no {flag}: give --exchange hub, or leave {flag} out"
    assert told in refused(parse, "-m", "async", *flags.split(), "--exchange", "kvstore")


def test_a_flag_with_its_own_default_does_not_need_the_hub():
    assert carried("async", "--momentum", "0.9") == KVSTORE
    assert carried("async", "--max-delay", "0", "--lr-schedule", "constant", "--exchange", "kvstore") == KVSTORE
    assert carried("async", "-dcasgd", "1") == transport_of("dcasgd") == KVSTORE


def test_the_former_names_of_the_flag_and_of_the_kvstore_are_still_taken():
    for exchange in EXCHANGES:
        assert carried("sync", "--collective", exchange) == carried("sync", "--exchange", exchange) == exchange
    assert carried("sync", "--collective", "ps") == carried("sync", "--exchange", "ps") == KVSTORE


@pytest.mark.parametrize("row", [row for row in TABLE if row.transport is TransportKind.HUB], ids=lambda row: row.name)
def test_a_mode_that_does_not_sum_has_an_exchange_through_its_server_alone(row, refused):
    for exchange in ("ring", "butterfly", "binary-blocks", MPI):
        told = f"--exchange {exchange}: mode {row.name} does not sum: it has a server, so leave --exchange out"
        assert told in refused(parse, "-m", row.name, "--exchange", exchange)
    if not row.has_kvstore:
        told = f"--exchange kvstore: mode {row.name} has a server of its own, which is the hub: leave --exchange out"
        assert told in refused(parse, "-m", row.name, "--exchange", "kvstore")


OF_SUMS = "MXNet's kvstore does not go on without a lost worker: also give --exchange hub, or ring, butterfly or "


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("-m esync", f"{OF_SUMS}binary-blocks; or choose restart"),
        ("-m sync --exchange kvstore", f"{OF_SUMS}binary-blocks; or choose restart"),
        (
            "-m async",
            "MXNet's kvstore does not go on without a lost worker: also give --exchange hub; or choose restart",
        ),
        ("-m sync --exchange mpi", "mpiexec ends all processes when one fails: leave it out"),
        ("-m local", ": mode local trains alone: leave it out, or choose restart"),
        *(
            (f"-m lb-bsp --exchange {each}", ": mode lb-bsp cannot; its batch sizes are those of one set of workers")
            for each in ("hub", "ring")
        ),
        ("-m sync --exchange hub --fault-timeout 5", ": --fault-timeout 5.0 does nothing on the hub: leave it out"),
        ("-m ssp --ckpt-frequency 5", " on the hub: lost workers come back with its model, not from a checkpoint: "),
        (
            "-m sync --exchange hub --ckpt-frequency 5",
            " on the hub: lost workers come back with its model, not from a checkpoint: leave --ckpt-frequency out, or "
            "choose restart",
        ),
    ],
)
def test_where_a_job_cannot_go_on_without_a_worker_the_error_says_what_can(flags, complaint, refused):
    told = refused(parse, *flags.split(), "--on-worker-death", "continue")
    assert told.startswith("main.py: error: --on-worker-death continue") and complaint in told


@pytest.mark.parametrize("flags", ["ssp", "async --exchange hub", "async --max-delay 4", "sync --exchange hub"])
def test_the_hub_goes_on_without_lost_workers(flags):
    assert parse(["-m", *flags.split(), "--on-worker-death", "continue"], pytest.fail).leaves_out


def test_workers_with_the_same_exchange_named_or_not_are_of_one_job():
    def setup(*words: str) -> dict[str, str]:
        return job_setup(parse(["-m", *words], pytest.fail))

    assert setup("sync") == setup("sync", "--exchange", "kvstore") == setup("sync", "--collective", "ps")
    assert setup("ssp") == setup("ssp", "--exchange", "hub")
    assert setup("async", "--table", "1") == setup("async", "--table", "1", "--exchange", "hub")
    assert setup("async") != setup("async", "--exchange", "hub")


def test_a_server_is_mxnets_or_the_hub_by_its_mode_and_exchange(monkeypatch):
    for name, value in {**ENVIRONMENT, "DMLC_ROLE": "server", "DMLC_NUM_SERVER": "1"}.items():
        monkeypatch.setenv(name, value)
    for words, has_hub in (
        ("async", False),
        ("async --use-dcasgd 1", False),
        ("esync", False),
        ("async --exchange hub", True),
        ("async --max-delay 16", True),
        ("sync --exchange hub", True),
        ("ssp", True),
        ("wbsp", True),
    ):
        cluster = ClusterSpec.from_environment(parse(["-m", *words.split()], pytest.fail).transport)
        assert (cluster.role, cluster.has_hub, cluster.has_scheduler) == ("server", has_hub, not has_hub), words


def test_the_hub_is_one_server():
    with pytest.raises(SetupError, match="mode async has one server, the hub, here there are 2: set DMLC_NUM_SERVER=1"):
        check_job(parse(["-m", "async", "--exchange", "hub"]), num_servers=2, num_workers=2)
    check_job(parse(["-m", "async"]), num_servers=2, num_workers=2)


# ------------------------------------------------------------------------------------------ job files, and others


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mine", "'mine' is no Python file; give one that ends in .py (the name of a job at a state server is"),
        ("my job.py", "my job.py: 'my job' cannot name a run; use 1 to 64 letters, digits"),
        ("jobs/lenet.py", "jobs/lenet.py: lenet is a built-in network, or has a meaning of its own in a log tree"),
        ("seed-3.py", "seed-3.py: seed-3 is a built-in network, or has a meaning of its own in a log tree"),
    ],
)
def test_a_job_file_that_cannot_name_its_logs_is_one_line(text, complaint, refused):
    assert parse(["--job", "jobs/my_job.py", "-n", "lenet"]).mode_folder == Path("my_job/esync")
    assert f"argument --job: {complaint}" in refused(parse, "--job", text)


SWITCH = ["-m", "sync-switch"]


def elsewhere(field):
    """What is said of a flag that does nothing in the mode."""
    return f"belongs to mode {one_of(modes_of(field))}, not to"


def test_the_phases_of_sync_switch_are_read():
    config = parse([*SWITCH, "--switch-order", "101", "--train-steps", "5", "6", "7"])
    assert (config.settings.switch_order, config.settings.train_steps) == ("101", (5, 6, 7))
    assert parse(SWITCH).settings.train_steps == (400, 7600)  # as published
    saving = [*SWITCH, "--ckpt-frequency", "5"]
    assert parse([*saving, "--resume"]).resume == parse([*saving, "--resume", "1"]).resume == 1
    assert parse([*saving, "--resume", "auto"]).resume == "auto"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--train-steps", "5"], "--switch-order 10 has 2 phase(s), --train-steps 1 number(s)"),
        (["--phase-lr", "1", "2", "3"], "--switch-order 10 has 2 phase(s), --phase-lr 3 number(s)"),
        (["--phase-batch-size", "1", "2", "3"], "has 2 phase(s), --phase-batch-size 3 number(s)"),
        (["--phase-momentum", "0.9", "1"], "'1' is no momentum; give a number from 0 to below 1"),
        (["--phase-lr-schedule", "slow"], "'slow' is no schedule of step sizes"),
        (["-l", "0.1", "--phase-lr", "0.1", "0.2"], "-l 0.1 does nothing where --phase-lr says it for every phase"),
        (["--momentum", "0.9", "--phase-momentum", "0"], "--momentum 0.9 does nothing where --phase-momentum says it"),
        (["--train-steps", "5", "0"], "0 is out of range"),
        (["--switch-order", "12"], "'12' is no order of phases"),
        (["--switch-order", ""], "'' is no order of phases"),
        (["--straggler-policy", "lazy"], "invalid choice: 'lazy' (choose from"),
        (["--straggler-policy", "greedy", "--switch-order", "01"], "each BSP phase needs one after it"),
        (["--straggler-policy", "elastic", "--switch-order", "0", "--train-steps", "9"], "has no BSP phase"),
        (["--resume"], "--resume needs checkpoints"),
        (["--resume", "auto"], "--resume needs checkpoints"),
        (["--ckpt-frequency", "5", "--resume", "2"], "'2' is not 0, 1 or auto"),
        (["-m", "sync", "--leave", "1"], "--leave 1 does nothing without --on-worker-death continue"),
        (["-m", "sync", "--min-workers", "0"], "0 is out of range"),
        (["--checkpoint", "kept", "--ckpt-frequency", "0"], "--checkpoint needs checkpoints"),
        (["--ckpt-frequency", "-1"], "-1 is out of range"),
        (["--momentum", "1"], "give a number from 0 to below 1"),
        (["--momentum", "-0.1"], "-0.1 is out of range; give a number from 0 to below 1"),
        (
            ["-m", "sync", "--momentum", "0", "--optimizer", "adam"],
            "--momentum 0.0 does nothing without --optimizer sgd",
        ),
        (["--optimizer", "adam"], f"--optimizer adam {elsewhere('optimizer')} sync-switch"),
        (["-m", "ssp", "--optimizer", "sgd"], f"--optimizer sgd {elsewhere('optimizer')} ssp"),
        (["--weight-decay", "-1"], "-1 is out of range; give 0 or more"),
        (["--lr-schedule", "cosine"], "'cosine': '' is no number of samples; give constant, or warmup:SAMPLES"),
        (["-m", "local-sgd", "--dylu", "0"], f"--dylu 0 {elsewhere('dylu')} local-sgd"),
        (["-m", "async", "--wbsp-overlap", "1"], f"--wbsp-overlap 1 {elsewhere('wbsp_overlap')} async"),
        (["-m", "async", "--dcasgd-lambda", "0.04"], "--dcasgd-lambda 0.04 does nothing without -dcasgd 1"),
        (["-m", "async", "--dcasgd-adaptive", "1"], "--dcasgd-adaptive 1 does nothing without -dcasgd 1"),
        (["-m", "esync", "--outer-nesterov", "1"], "--outer-nesterov 1 does nothing without momentum: also give"),
        (["-m", "local-sgd", "--outer-nesterov", "1"], "--outer-nesterov 1 does nothing without momentum: also give"),
        (["-m", "esync", "--outer-momentum", "1"], "1 is out of range; give a number from 0 to below 1"),
        (["-m", "sync", "--outer-momentum", "0.5"], f"--outer-momentum 0.5 {elsewhere('outer_momentum')} sync"),
        *(
            (["-m", "esync", "--normalise", "1", "--optimizer", each], f"not for --optimizer {each}, which divides")
            for each in ("rmsprop", "adam")
        ),
        (["-m", "local-sgd", "--normalise", "1"], f"--normalise 1 {elsewhere('normalise')} local-sgd"),
        (["--compression", "fp16"], f"--compression fp16 {elsewhere('compression')} sync-switch"),
        (["-m", "async", "--compression", "fp16"], f"--compression fp16 {elsewhere('compression')} async"),
        (
            ["-m", "sync", "--exchange", "mpi", "--compression", "fp16"],
            "--compression fp16 does not go with --exchange mpi: MPI and the hub add up numbers of one kind; "
            "leave it out, or take --exchange kvstore, ring, butterfly or binary-blocks",
        ),
        (["-m", "esync", "--compression", "2bit"], "invalid choice: '2bit' (choose from"),
        (["-m", "esync", "--epsilon", "0.5"], "--epsilon 0.5 does nothing without --policy preprint"),
        (["-m", "wbsp", "--anchor", "2"], "--anchor 2 belongs to mode esync, not to wbsp"),
        (["-m", "async", "-dcasgd", "1", "--max-delay", "4"], "--max-delay 4 are different algorithms: leave one"),
        (["-m", "async", "-dcasgd", "1", "--table", "1"], "--use-dcasgd 1 and --table 1 are"),
        (["-m", "async", "-dcasgd", "1", "--rescale", "1"], "--use-dcasgd 1 and --rescale 1 are"),
        (["-m", "async", "--max-delay", "4", "--table", "1"], "--max-delay 4 and --table 1 are"),
        (["-m", "async", "--max-delay", "-1"], "argument --max-delay: -1 is out of range; give 0 or more"),
        (["-m", "async", "--table", "2"], "argument --table: '2' is not 0 or 1"),
        (
            ["-m", "sync", "--job-name", "mine"],
            "--job-name mine does nothing without --exchange ring, butterfly or binary-blocks: leave it out, or give",
        ),
        (["-n", "resnet19"], "inception-v3"),
        *((["-m", "esync", "--anchor", text], f"{text!r} is not 0 to 9999 or auto") for text in ("-1", "1.5", "Auto")),
    ],
)
def test_flags_that_do_not_fit_together_are_an_error(arguments, complaint, refused):
    assert complaint in refused(parse, *SWITCH, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--batch-sizes", "3"],  # misspelt
        ["--batch", "3"],  # abbreviated
        ["-b", "0"],
        ["-b", "many"],
        ["-l", "-1"],
        ["-l", "nan"],
        ["-l", "inf"],
        ["--max-seconds", "nan"],
        ["-m", "magic"],
        ["-c", "2"],
        ["-port", "0"],
        ["-port", "65536"],
        ["--device-name", "../up"],
        ["--target-accuracy", "80"],
        ["--seed", "-1"],
        ["stray"],
    ],
)
def test_a_mistake_on_the_command_line_is_an_error(arguments, refused):
    assert arguments[0] in refused(parse, *arguments)


def test_no_two_flags_share_a_name():
    names = [name for field in FIELDS for name in names_of(field)]
    assert len(names) == len(set(names))


def test_the_log_folder_is_named_after_the_device():
    assert parse(["-c", "1"]).device == "cpu"
    assert parse(["-g", "1"]).device == "gpu1"
    assert parse(["-c", "1", "--device-name", "cpu-left"]).device == "cpu-left"


def test_the_rounds_of_mode_local_are_lines_and_of_the_others_files_unless_asked_for_otherwise():
    assert {mode: parse(["-m", mode]).logs_lines for mode in MODES} == {mode: mode == "local" for mode in MODES}
    assert not parse(["-m", "local", "--log-form", "files"]).logs_lines
    assert parse(["-m", "sync", "--log-form", "lines"]).logs_lines


ENVIRONMENT = {
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "10.1.1.1",
    "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_NUM_SERVER": "2",
    "DMLC_NUM_WORKER": "6",
}


def test_a_cluster_is_read_from_the_environment():
    assert ClusterSpec.from_environment("kvstore", ENVIRONMENT) == ClusterSpec("worker", "10.1.1.1", 9091, 2, 6)


def test_without_a_role_there_is_no_cluster():
    assert ClusterSpec.from_environment("kvstore", {}) is None
    with pytest.raises(SetupError, match="DMLC_ROLE='server': a job that sums among the workers has no other"):
        ClusterSpec.from_environment("ring", {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "2"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DMLC_ROLE", "boss"),
        ("DMLC_PS_ROOT_URI", ""),
        ("DMLC_PS_ROOT_PORT", "99999"),
        ("DMLC_PS_ROOT_PORT", "http"),
        ("DMLC_NUM_SERVER", "0"),
        ("DMLC_NUM_WORKER", "-1"),
        ("DMLC_NUM_WORKER", ""),
    ],
)
def test_a_bad_cluster_variable_is_named(name, value):
    with pytest.raises(SetupError, match=name):
        ClusterSpec.from_environment("kvstore", ENVIRONMENT | {name: value})
