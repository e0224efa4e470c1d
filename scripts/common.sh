# Sourced by the other scripts: the project's folder, messages, a supported Python, the virtual environment.
# shellcheck shell=bash
set -euo pipefail # in all of them

# The scripts do not hear the caller's shell. Their first line, bash -p, drops its functions, its options and what it runs
# first; here it is for `bash SCRIPT`. Whatever else would change them, or the programs that they start, goes here.
[[ $- == *p* || "${BASH_SOURCE[1]:-}" != "$0" ]] || exec bash "-p${-//[^vx]/}" "$0" "$@"
unset BASH_ENV CDPATH ENV GLOBIGNORE # shells of other programs run a file first, `cd` prints, patterns match less
unset GREP_COLOR GREP_OPTIONS POSIXLY_CORRECT TAR_OPTIONS TMOUT # tools and `read` do something else
unset PYTHONHOME PYTHONPLATLIBDIR PYTHONOPTIMIZE PYTHONSAFEPATH PYTHONWARNINGS # Python, MXNet or `python -m` fails
unset PYTHONINSPECT PYTHONIOENCODING PYTHONVERBOSE # Python asks at its end, cannot print a name, or prints too much
[[ -v HOME ]] || HOME=~ # as the system knows it
[[ -d "${TMPDIR:-/tmp}" && -w "${TMPDIR:-/tmp}" ]] || unset TMPDIR

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$(realpath -ms "${VENV:-$root/.venv}") # VENV=.venv-3.13 makes a second environment beside the first

say() { printf '%s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 2
}

# Prints the comment at the head of the calling script: its help.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# Whether the arguments before `--` ask for help.
is_help() {
    local word
    for word in "$@"; do
        [[ "$word" != -- ]] || return 1
        [[ "$word" != -h && "$word" != --help ]] || return 0
    done
    return 1
}

# Prints the calling script's help and ends, if its arguments ask for help.
answer_help() {
    if is_help "$@"; then
        usage
        exit
    fi
}

no_arguments() { [[ $# == 0 ]] || die "unknown argument '$1'; see $0 --help"; }

# --------------------------------------------------------------------------------------------------- Debian packages

# Installs Debian packages as root with apt-get; otherwise prints the command that does.
# usage: need_packages "what they are for" package...
need_packages() {
    local purpose=$1
    shift
    if ! command -v apt-get >/dev/null; then
        die "$purpose: install what your system calls the Debian packages $*"
    elif [[ $(id -u) != 0 ]]; then
        die "$purpose: run 'sudo apt-get install $*', then this again"
    fi
    say "$purpose: installing $* with apt-get"
    apt-get update -qq </dev/null || say "apt-get update failed; trying with the package lists that are there"
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" </dev/null >/dev/null ||
        die "$purpose: 'apt-get install $*' failed; what it said is above"
}

# -------------------------------------------------------------------------------------------------------- the Python

versions=(3.14 3.13 3.12 3.11 3.10) # that the project supports
version='import sys; print("%d.%d" % sys.version_info[:2])'
is_supported="import sys; sys.exit('%d.%d' % sys.version_info[:2] not in '${versions[*]}'.split())"

# Each candidate is run, not only looked up: version managers have shims that fail.
runs() { "$1" -c "$2" >/dev/null 2>&1; }

# Prints where Pythons may be, one a line: $PYTHON if it is set; else the path, pyenv and uv, the newest first.
python_candidates() {
    local number candidates=(python3 "${versions[@]/#/python}")
    for number in "${versions[@]}"; do
        candidates+=(
            "${PYENV_ROOT:-$HOME/.pyenv}/versions/$number".*/bin/python3
            "${XDG_DATA_HOME:-$HOME/.local/share}/uv/python/cpython-$number".*/bin/python3
        )
    done
    [[ -z "${PYTHON:-}" ]] || candidates=("$PYTHON")
    printf '%s\n' "${candidates[@]}"
}

# Prints the first supported Python.
find_python() {
    local candidate candidates found=""
    mapfile -t candidates < <(python_candidates)
    for candidate in "${candidates[@]}"; do
        if runs "$candidate" "$is_supported"; then
            command -v "$candidate"
            return
        elif runs "$candidate" "$version"; then
            found+=" $candidate is $("$candidate" -c "$version");"
        elif [[ -n "${PYTHON:-}" ]]; then
            found+=" PYTHON=$PYTHON does not run;"
        fi
    done
    die "no supported Python here:${found:- none found;} this project runs on ${versions[-1]} to ${versions[0]}. Get" \
        "one with 'apt-get install python3 python3-venv' (Debian from 12 on, Ubuntu from 22.04 on), 'pyenv install 3.13'" \
        "or 'uv python install 3.13', or name one: PYTHON=/path/to/python3.13 $0"
}

# The Python that runs the project: the environment's, else python3 (in a container or a conda environment).
project_python() {
    if [[ -x "$venv/bin/python" ]]; then
        echo "$venv/bin/python"
    else
        command -v python3 || die "there is no python3; scripts/setup.sh says how to get one"
    fi
}

# --------------------------------------------------------------------------------------------- the virtual environment

# Installs the pins of a requirements file into $venv, unless they are there: then this takes no time and no network.
# $venv/.installed/FILE is the fingerprint of the installed pins; $venv/.unfinished is there after an interruption.
# usage: ensure_venv requirements.txt|requirements-test.txt
ensure_venv() {
    unless_fresh make_venv "$1"
    ensure_mxnet_hook
    need_libraries
}

# usage: unless_fresh make_venv|add_extra FILE
unless_fresh() {
    ! is_fresh "$2" || return 0
    # Of two scripts at once the second waits, and finds the work done. The lock is on the project's folder.
    (
        flock 9
        is_fresh "$2" || "$1" "$2"
    ) 9<"$root"
}

# All other lists come with requirements.txt, so both go into each fingerprint.
fingerprint() {
    (cd "$root" && cat requirements.txt "$1" | sha256sum)
}

is_fresh() {
    same_python && [[ ! -e "$venv/.unfinished" ]] &&
        [[ "$(cat "$venv/.installed/$1" 2>/dev/null)" == "$(fingerprint "$1")" ]]
}

# Whether $venv works, with the Python that $PYTHON asks for. An environment whose Python was moved is broken, too.
same_python() {
    runs "$venv/bin/python" "$is_supported" || return
    [[ -z "${PYTHON:-}" || "$("$PYTHON" -c "$version" 2>&1)" == "$("$venv/bin/python" -c "$version")" ]]
}

make_venv() {
    local requirements=$1 file
    if [[ -e "$venv/.unfinished" ]] || ! same_python; then
        new_venv
    fi
    touch "$venv/.unfinished"
    say "installing $requirements into $venv: some 300 MB, a minute or two"
    install_pins "$root/$requirements" || pins_missing "$requirements"
    mkdir -p "$venv/.installed"
    # The test requirements include the others, so both are fresh now.
    for file in requirements.txt "$requirements"; do
        fingerprint "$file" >"$venv/.installed/$file"
    done
    rm "$venv/.unfinished"
}

# Adds an extra's pins to $venv. Those of requirements.txt stay, also where the extra is not to be had. An interruption
# leaves an environment without it, and pip then does it again: nothing is unfinished. usage: add_extra FILE
add_extra() {
    rm -f "$venv/.installed/$1"
    say "installing $1 into $venv: some 200 MB, and 900 MB on the disk"
    # First from the index or a folder (PIP_FIND_LINKS). pip asks the list's own page for each package anew, which takes
    # ten seconds each where the page cannot be reached.
    install_pins <(grep -v '^--find-links' "$root/$1") 2>/dev/null || install_pins "$root/$1" || pins_missing "$1"
    fingerprint "$1" >"$venv/.installed/$1"
}

# The lists are complete. Without --no-deps pip would refuse numpy 2 beside MXNet, whose metadata says numpy<2.
# Variables of pip that put packages elsewhere do not count. usage: install_pins FILE
install_pins() {
    env -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT -u PIP_PYTHON -u PIP_DRY_RUN PIP_USER=0 \
        "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps -r "$1" </dev/null
}

# Names the variables of pip that are set, since pip does not.
pins_missing() {
    local names
    names=$(compgen -e PIP_ | xargs) || true # where none is set
    die "pip could not install $1; what it said is above${names:+; of pip are set $names: unset what you do not need}"
}

new_venv() {
    local python
    python=$(find_python)
    # An unfinished or broken environment is removed, a working one is not.
    if [[ ! -e "$venv/.unfinished" ]] && runs "$venv/bin/python" "$version"; then
        die "$venv has Python $("$venv/bin/python" -c "$version"), and $("$python" -c "$version") is wanted: remove it" \
            "(rm -r $venv), or keep it and name another folder: VENV=$root/.venv-$("$python" -c "$version") $0"
    fi
    # All at once, so that root is needed once.
    local library packages=()
    runs "$python" 'import ensurepip, venv' || packages+=("python$("$python" -c "$version")-venv") # of Debian and Ubuntu
    for library in "${!mxnet_needs[@]}"; do
        [[ $(uname -m) != x86_64 ]] || runs "$python" "import ctypes; ctypes.CDLL('$library')" ||
            packages+=("${mxnet_needs[$library]}")
    done
    [[ ${#packages[@]} == 0 ]] || need_packages "$python cannot make an environment with MXNet yet" "${packages[@]}"
    say "making $venv with $("$python" --version)"
    rm -rf "$venv"
    mkdir -p "$venv"
    touch "$venv/.unfinished"
    "$python" -m venv "$venv"
}

# Lets `import mxnet` work in every program of $venv, where that can be written (trainer/runtime/numpy_names.py).
ensure_mxnet_hook() {
    local packages=("$venv"/lib/python3.*/site-packages) source="$root/trainer/runtime/numpy_names.py"
    local hook="${packages[0]}/esync_numpy_names"
    [[ -w "${packages[0]}" ]] || return 0
    if [[ ! -e "$hook.pth" || "$(cat "$source")" != "$(cat "$hook.py" 2>/dev/null)" ]]; then
        echo 'import esync_numpy_names; esync_numpy_names.install()' >"$hook.pth.$$"
        cp "$source" "$hook.py.$$"
        mv "$hook.py.$$" "$hook.py" # a program that starts now sees a whole file
        mv "$hook.pth.$$" "$hook.pth"
    fi
}

# MXNet's wheel contains OpenBLAS and libgfortran, and needs these libraries of the system. Slim images lack them.
declare -A mxnet_needs=([libgomp.so.1]=libgomp1 [libquadmath.so.0]=libquadmath0 [libstdc++.so.6]=libstdc++6)

# An environment that was copied, or made where these were, may be without them.
need_libraries() {
    local library missing=() mxnet=("$venv"/lib/python3.*/site-packages/mxnet/libmxnet.so)
    [[ -e "${mxnet[0]}" ]] || return 0
    for library in $(LC_ALL=C ldd "${mxnet[0]}" | awk '/not found/ {print $1}' | sort -u); do
        missing+=("${mxnet_needs[$library]:-$library}")
    done
    [[ ${#missing[@]} == 0 ]] || need_packages "MXNet lacks shared libraries" "${missing[@]}"
}

# --------------------------------------------------------------------------------------------------------- the programs

# Runs a Python program of the project with the project in PYTHONPATH. usage: run_script scripts/demo.py argument...
run_script() {
    PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" run_python "$root/$1" "${@:2}"
}

# Becomes a Python program. Ctrl-C waits until its first lines let it through (start.py): in Python's own start it would
# be a traceback.
run_python() {
    local python held=(env --block-signal=INT)
    python=$(project_python)
    "${held[@]}" true 2>/dev/null || held=() # GNU coreutils before 8.31
    exec "${held[@]}" "$python" "$@"
}

# Describes the environment variables of every process of a distributed job.
role_variables() {
    cat <<'END'
environment variables (defaults in brackets), the same in every process of the job; with --exchange ring, butterfly or
binary-blocks the workers are all processes, and the first three do not count:
  DMLC_PS_ROOT_URI    address of the scheduler's host (127.0.0.1); of the server's where it is a hub: with
                      --exchange hub, and in ssp, wbsp, async-local, decoupled, backup and sync-switch
  DMLC_PS_ROOT_PORT   port of the scheduler, or of the hub (9091)
  DMLC_NUM_SERVER     number of servers (1); 1 with a hub
  DMLC_NUM_WORKER     number of workers (2)
and for this process:
  DMLC_INTERFACE      network interface to the other hosts, such as eth0 (lo where DMLC_PS_ROOT_URI is 127.0.0.1, else
                      the one that leads to it); of no use with a hub
  OMP_NUM_THREADS     CPU threads; set it to 1 where several processes share a host (as many as cores)
  PORT                port at which MXNet listens (a free one); fix it, a different one for each process of a host, if
                      a firewall has to open it. With a hub nothing listens there; it orders a host's workers
  PS_VERBOSE          1 or 2: MXNet logs connections (0)
END
}

# Becomes one process of a distributed job: main.py in the project's folder, so that -dd and -ld are taken from there.
# usage: run_role scheduler|server|worker argument...
run_role() {
    local program=(main.py)
    if is_help "${@:2}"; then
        usage && role_variables && exit
    fi
    [[ $1 != worker ]] || program=(-m scripts.launch.worker) # files the logs, and becomes main.py
    export DMLC_ROLE=$1
    export DMLC_PS_ROOT_URI="${DMLC_PS_ROOT_URI:-127.0.0.1}"
    export DMLC_PS_ROOT_PORT="${DMLC_PS_ROOT_PORT:-9091}"
    export DMLC_NUM_SERVER="${DMLC_NUM_SERVER:-1}"
    export DMLC_NUM_WORKER="${DMLC_NUM_WORKER:-2}"
    if [[ -z "${DMLC_INTERFACE:-}" && "$DMLC_PS_ROOT_URI" == 127.0.0.1 ]]; then
        export DMLC_INTERFACE=lo
    fi
    cd "$root" || exit
    run_python "${program[@]}" "${@:2}"
}
