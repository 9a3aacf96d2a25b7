import os
import subprocess
import sys

import pytest

from lamina import threads
from lamina.threads import WAIT_POLICY, container_limit, num_cores, settle_threads


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("group", "files", "expected"), [
    ("0::/\n", {}, None),
    ("0::/\n", {"cpu.max": "max 100000\n"}, None),
    ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
    ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
    ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
    ("0::/\n", {"cpu.max": "nonsense\n"}, None),
    ("0::/jobs/7\n", {"jobs/cpu.max": "300000 100000\n", "jobs/7/cpu.max": "max 100000\n"}, 3),
    ("0::/jobs/7\n", {"jobs/cpu.max": "300000 100000\n", "jobs/7/cpu.max": "100000 50000\n"}, 2),
    ("5:cpu,cpuacct:/docker/x\n1:name=systemd:/\n",
     {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    ("5:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
])
def test_cores_of_a_container(tmp_path, group, files, expected):
    write(tmp_path / "own", group)
    for name, text in files.items():
        write(tmp_path / "root" / name, text)
    assert container_limit(tmp_path / "root", tmp_path / "own") == expected


def test_no_control_groups_no_limit(tmp_path):
    assert container_limit(tmp_path, tmp_path / "nothing") is None


@pytest.mark.parametrize(("given", "limit", "expected"), [
    ({}, None, {"OMP_WAIT_POLICY": WAIT_POLICY}),
    ({}, 2, {"OMP_WAIT_POLICY": WAIT_POLICY, "OMP_NUM_THREADS": "2"}),
    ({"OMP_WAIT_POLICY": "ACTIVE"}, 2, {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "2"}),
    ({}, 64, {"OMP_WAIT_POLICY": WAIT_POLICY}),
    ({"OMP_NUM_THREADS": "8"}, 2, {"OMP_WAIT_POLICY": WAIT_POLICY, "OMP_NUM_THREADS": "8"}),
    ({"OMP_WAIT_POLICY": "ACTIVE"}, None, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ({"GOMP_SPINCOUNT": "7"}, None, {"GOMP_SPINCOUNT": "7"}),
])
def test_what_a_person_has_set_stays(monkeypatch, given, limit, expected):
    monkeypatch.setattr(threads, "container_limit", lambda: limit)
    monkeypatch.setattr(threads, "num_cores", lambda: 16)
    environ = dict(given)
    settle_threads(environ)
    assert environ == expected


def test_cores_are_those_that_the_process_may_use():
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


def test_a_command_says_it_before_torch_is_loaded():
    code = ("import os, sys; from lamina.cli import main; main(['--help']); assert 'torch' not in sys.modules; "
            "print(os.environ['OMP_WAIT_POLICY'])")
    environ = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.splitlines()[-1] == WAIT_POLICY
