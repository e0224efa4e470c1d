#!/usr/bin/env -S bash -p
# usage: scripts/worker.sh [--run NAME] [FLAG OF main.py]...     such as: scripts/worker.sh -m esync -g 0 -ip 10.1.1.34
#
# A worker of a distributed job: trains on one device. All workers get the same flags, except for the device.
# Of a job file (--job FILE) its name takes NETWORK's place below.
# Its flags are main.py's: python main.py --help. Its logs are in logs/NETWORK/MODE/HOST/DEVICE, unless -ld says
# otherwise; summary.py reads them once those of all hosts are in one place. With --run they are in
# logs/NAME/NETWORK/MODE/HOST/DEVICE. The logs of the previous run are moved to logs/earlier (of that tree).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run_role worker "$@"
