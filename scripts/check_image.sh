#!/usr/bin/env -S bash -p
# usage: scripts/check_image.sh
#
# Builds the Docker image and runs everything in docs/containers.md and compose.yaml, for some seconds each. Needs root
# and docker; where it cannot run it says so in one line and ends with 0. If no engine runs, it starts one for the check,
# in a folder that it removes. If the base image cannot be pulled, it makes one of Debian (debootstrap) and the
# CPython 3.11 at BASE_PYTHON (default: that of .venv).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

answer_help "$@"
no_arguments "$@"

# It was run as root with Debian 12's docker.io and docker-compose, and with such a base image. The command with a job
# file was added later, and has been run with scripts/container.sh alone. PyTorch (TORCH=1), which this does not add, was
# built once by hand on the same base image, and trained examples/torch_table.py.

skip() {
    say "skipped: $*"
    exit 0
}
[[ $(id -u) == 0 ]] || skip "the image is checked as root, and this is $(id -un)"
command -v docker >/dev/null || skip "there is no docker here (Debian: apt-get install docker.io docker-compose)"

scratch=$(mktemp -d "${TMPDIR:-/tmp}/check_image.XXXXXX")
project="esync-check-$$"
image="$project"
engine=""
made_base=""

# Ends what this script started and nothing else.
clean_up() {
    docker ps -aq --filter "label=$project" | xargs -r docker rm -f >/dev/null 2>&1 || true
    docker image rm "$image" >/dev/null 2>&1 || true
    [[ -z "$made_base" ]] || docker image rm "$made_base" >/dev/null 2>&1 || true
    if [[ -n "$engine" ]]; then
        kill "$engine"
        wait "$engine" || true
        umount "$scratch"/exec/netns/* 2>/dev/null || true # the engine leaves its handle of the host's network mounted
    fi
    rm -rf "$scratch"
}
trap clean_up EXIT

# ------------------------------------------------------------------------------------------- an engine, a base image

if ! docker info >/dev/null 2>&1; then
    command -v dockerd >/dev/null || skip "no docker engine runs here, and there is no dockerd to start"
    export DOCKER_HOST="unix://$scratch/docker.sock"
    dockerd --bridge=none --iptables=false --ip-masq=false --ip-forward=false -H "$DOCKER_HOST" \
        --data-root "$scratch/engine" --exec-root "$scratch/exec" --pidfile "$scratch/pid" >"$scratch/dockerd.log" 2>&1 &
    engine=$!
    for _ in {1..100}; do
        ! docker info >/dev/null 2>&1 || break
        kill -0 "$engine" 2>/dev/null || skip "dockerd does not start here: $(tail -n 1 "$scratch/dockerd.log")"
        sleep 0.1
    done
fi

make_base() {
    local name=$1 python=${BASE_PYTHON:-} system="$scratch/system"
    command -v debootstrap >/dev/null || skip "$name cannot be pulled, and there is no debootstrap to make one like it"
    python=${python:-$("$(project_python)" -c 'import sys; print(sys.base_prefix)')}
    if [[ "$python" == /usr ]] || ! runs "$python/bin/python3.11" "$version"; then
        skip "$name cannot be pulled, and $python is no CPython 3.11 to make one like it: name its folder with BASE_PYTHON"
    fi
    say "making $name of Debian and $python"
    debootstrap --variant=minbase \
        --include=ca-certificates,libssl3,libsqlite3-0,libffi8,libreadline8,libncursesw6,libexpat1 \
        bookworm "$system" >"$scratch/debootstrap.log" 2>&1 || skip "debootstrap failed: $(tail -n 1 "$scratch/debootstrap.log")"
    tar -C "$python" --exclude=python3.11/test --exclude='site-packages/*' --exclude=__pycache__ --exclude='config-3.11*' -c \
        bin/python3.11 bin/python3 bin/python lib |
        tar -C "$system/usr/local" -x
    cp /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/certs/" # this machine's network may need its own certificates
    chroot "$system" sh -c 'ldconfig && /usr/local/bin/python3 -m ensurepip --default-pip' >/dev/null 2>&1
    tar -C "$system" -c . | docker import --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' \
        --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' - "$name" >/dev/null
    rm -rf "$system"
}

base=$(sed -n 's/^FROM //p' "$root/Dockerfile")
if ! docker image inspect "$base" >/dev/null 2>&1 && ! docker pull -q "$base" >/dev/null 2>&1; then
    made_base=$base # removed at the end, so that a later build does not take it for the real one
    make_base "$base"
fi

# ------------------------------------------------------------------------------------------------------- the checks

check() { say "== $*"; }
wrong() {
    say "error: $*"
    exit 1
}
# The container's options, the user and the folders of docs/containers.md.
user=4711:4711
logs="$scratch/logs"
data=$(realpath "$root/data")
mkdir "$logs" && chown "$user" "$logs"
options=(--label "$project" --network host)
read -r port state_port < <("$(project_python)" -c '
import socket
free = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in free))')
mounts=(--user "$user" -v "$data:/esync/data:ro" -v "$logs:/esync/logs")

check "docker build"
docker build --network host -t "$image" "$root" >"$scratch/build.log" 2>&1 || wrong "$(tail -n 5 "$scratch/build.log")"

check "the published command trains alone, without root, and Ctrl-C ends it after a round"
name="$project-alone"
docker run --rm --name "$name" "${options[@]}" -v "$data:/esync/data:ro" "$image" >"$scratch/alone.log" 2>&1 &
alone=$!
until grep -q '| round ' "$scratch/alone.log"; do
    kill -0 "$alone" 2>/dev/null || wrong "$(tail -n 3 "$scratch/alone.log")"
    sleep 0.2
done
[[ "$(docker exec "$name" id -u)" == 1000 ]] || wrong "it runs as $(docker exec "$name" id)"
docker stop -t 60 "$name" >/dev/null
wait "$alone" || wrong "$(tail -n 3 "$scratch/alone.log")"
grep -q 'a signal came' "$scratch/alone.log" || wrong "$(tail -n 3 "$scratch/alone.log")"

check "data that is not there"
docker run --rm "${options[@]}" -v "$scratch/nothing:/esync/data" "$image" >"$scratch/nothing.log" 2>&1 && wrong "it trains"
grep 'error: .*mount it' "$scratch/nothing.log" >&2 || wrong "$(tail -n 3 "$scratch/nothing.log")"

check "logs and the network stay, and belong to the user who ran it"
docker run --rm "${options[@]}" "${mounts[@]}" "$image" -m local -c 1 -n lenet -e 1000 --max-rounds 50 >"$scratch/kept.log" 2>&1 ||
    wrong "$(tail -n 3 "$scratch/kept.log")"
[[ "$(stat -c %u:%g "$logs/cpu/final.json")" == "$user" ]] || wrong "$(ls -l "$logs/cpu")"

check "a job file in a mounted folder"
mkdir "$scratch/jobs"
printf 'from layers import Dense\n\n\ndef network():\n    return Dense(10)\n' >"$scratch/jobs/mine.py"
echo 'from mxnet.gluon.nn import Dense' >"$scratch/jobs/layers.py"
chmod -R a+rX "$scratch/jobs"
docker run --rm "${options[@]}" "${mounts[@]}" -v "$scratch/jobs:/jobs:ro" "$image" -m local -c 1 --job /jobs/mine.py \
    -e 1000 --max-rounds 50 >"$scratch/job.log" 2>&1 || wrong "$(tail -n 3 "$scratch/job.log")"

start() { # usage: start name argument...; with more options in $more
    docker run -d --name "$project-$1" "${options[@]}" "${mounts[@]}" -e DMLC_NUM_WORKER=3 -e OMP_NUM_THREADS=1 \
        -e DMLC_PS_ROOT_PORT="$port" -e STATE_SERVER_PORT="$state_port" "$image" "${@:2}" >/dev/null
    roles+=("$project-$1")
}
for mode in esync wbsp; do # wbsp's server is a hub, beside which the scheduler ends at once
    check "a job of one state server, scheduler, server and three workers, by docker run, -m $mode"
    roles=()
    start state-server state-server
    start scheduler scheduler -m "$mode"
    start server server -m "$mode"
    for worker in 0 1 2; do
        start "worker$worker" worker -m "$mode" -c 1 -n lenet -e 1000 --max-seconds 5 -port "$state_port" \
            --device-name "cpu$worker" -ld "logs/lenet/$mode/containers" --min-step-time "0.0$((worker + 2))"
    done
    for role in "${roles[@]:1}"; do
        code=$(timeout 120 docker wait "$role") || wrong "$role does not end: $(docker logs "$role" 2>&1 | tail -n 3)"
        [[ "$code" == 0 ]] || wrong "$role ended with $code: $(docker logs "$role" 2>&1 | tail -n 3)"
    done
    docker rm -f "${roles[@]}" >/dev/null
    for worker in 0 1 2; do
        [[ -e "$logs/lenet/$mode/containers/cpu$worker/iter-1.txt" ]] || wrong "worker $worker left no logs"
    done
done

check "the same by compose.yaml"
if docker compose version >/dev/null 2>&1; then
    compose=(docker compose)
elif command -v docker-compose >/dev/null; then
    compose=(docker-compose)
else
    say "left out: there is no docker compose here (Debian: docker-compose)"
    exit 0
fi
# A copy beside other folders and with another image, and shorter.
sed -e "s/image: esync/image: $image/" -e 's/--max-seconds 60/--max-seconds 5/' -e '/ports:/,+1d' "$root/compose.yaml" \
    >"$scratch/compose.yaml"
ln -s "$data" "$scratch/data"
compose+=(-f "$scratch/compose.yaml" -p "$project")
finished=0
ESYNC_USER=$user timeout 180 "${compose[@]}" up --abort-on-container-exit >"$scratch/compose.log" 2>&1 || finished=$?
"${compose[@]}" down >/dev/null 2>&1
[[ "$finished" == 0 ]] || wrong "$(tail -n 20 "$scratch/compose.log")"
for worker in 0 1 2; do
    grep -q '"ended": "' "$logs/lenet/esync/compose/cpu$worker/run.json" || wrong "worker $worker did not end"
done
say "the image does what its docs say"
