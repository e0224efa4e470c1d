"""The lists that are installed: complete, and for every supported Python what requirements*.in pins."""

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def pins(file: str, python: str) -> list[tuple[str, str]]:
    """(name, version) of the lines of a file that hold for a Python on Linux."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    lines = (line.removesuffix("\\").strip() for line in (ROOT / file).read_text().splitlines())
    found = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    assert all(str(pin.specifier).startswith("==") for pin in found)
    chosen = [pin for pin in found if not pin.marker or pin.marker.evaluate(environment)]
    return [(canonicalize_name(pin.name), str(pin.specifier).removeprefix("==")) for pin in chosen]


@pytest.mark.parametrize("python", PYTHONS)
def test_a_python_gets_one_version_of_each_package_and_the_pinned_ones(python):
    run, *others = (pins(f"requirements{name}.txt", python) for name in ("", "-test", "-torch"))
    for pinned in (run, *others, set(run).union(*others)):
        assert len({name for name, _ in pinned}) == len(pinned)
    advice = "a pin was changed: run scripts/lock.sh"
    for name, found in zip(("", "-test", "-torch"), (run, *others), strict=True):
        assert set(pins(f"requirements{name}.in", python)) <= set(found), advice


def test_numpy_2_is_for_the_pythons_that_have_no_numpy_1():
    assert [dict(pins("requirements.txt", python))["numpy"][0] for python in PYTHONS] == ["1", "1", "1", "2", "2"]


def test_nothing_that_is_installed_lacks_what_it_needs():
    check = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    lines = subprocess.run(check, capture_output=True, text=True, check=False).stdout.splitlines()
    assert lines, "there is no pip in this environment"
    known = "mxnet 1.9.1 has requirement numpy<2.0.0"  # trainer/runtime/numpy_names.py makes it run with numpy 2
    assert [line for line in lines if not line.startswith(known)] in ([], ["No broken requirements found."])


def test_the_checksums_of_torch_are_those_that_stand_beside_its_pin():
    by_hand, locked = ((ROOT / f"requirements-torch.{end}").read_text() for end in ("in", "txt"))
    pin = by_hand[by_hand.index("torch==") :]
    assert pin in locked and pin.count("--hash=sha256:") == 2 * len(PYTHONS), "run scripts/lock.sh"
