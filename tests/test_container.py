"""The image's entry point, and the check of the image where it cannot run. What needs an engine: check_image.sh."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cluster_processes import ROOT, ran


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (["-m", "sync"], {}, "mode sync needs a cluster"),
        (["-m", "local"], {"DMLC_ROLE": "nobody"}, "choose from scheduler, server, worker"),
        (["worker", "-m", "local"], {}, "mode local trains alone"),
        (["-m", "local", "--job", "/jobs/mine.py"], {}, "job file /jobs/mine.py: No such file or directory"),
        (["scheduler"], {"DMLC_NUM_WORKER": "many"}, "DMLC_NUM_WORKER='many'"),
        (["server"], {"DMLC_NUM_SERVER": "none"}, "DMLC_NUM_SERVER='none'"),
        (["state-server", "now"], {}, "unknown argument 'now'; see"),
        (["sh", "-c", "echo another command >&2; exit 2"], {}, "another command"),
    ],
)
def test_the_entry_point_is_one_for_every_role(arguments, environment, text):
    done = ran(ROOT / "scripts" / "container.sh", *arguments, cwd=Path("/"), **environment)
    assert done.returncode == 2
    assert text in done.stderr


def test_where_there_is_no_engine_the_check_of_the_image_says_so_and_ends(tmp_path):
    for tool in ("bash", "id", "dirname", "realpath", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    done = ran(ROOT / "scripts" / "check_image.sh", cwd=Path("/"), PATH=str(tmp_path))
    assert done.returncode == 0
    assert done.stderr.startswith("skipped: ")
