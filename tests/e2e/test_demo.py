"""`make demo`, once installed: the first impression of a new user."""

import json
import re
import socket
from pathlib import Path
from statistics import mean

import pytest

from scripts.demo import COMMAND
from tests.support.commands import ROOT, run_command

OUTPUT = "results/demo/calculator.jsonl"


def test_demo_plays_its_rollouts_and_shows_results_and_paths(tmp_path: Path) -> None:
    # In another folder, because it writes below its working directory.
    paths = {"PYTHONPATH": str(ROOT)}
    ran = run_command("python", "-m", "scripts.demo", cwd=tmp_path, env=paths, timeout_s=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with (tmp_path / OUTPUT).open() as lines:
        rewards = [json.loads(line)["reward"] for line in lines]
    assert len(rewards) == 32
    assert 0.2 <= mean(rewards) <= 0.9  # a small model: some rollouts succeed, some fail
    assert re.search(r"reward 0\.\d+ ± 0\.\d+ \(95 % CI, 8 tasks × 4\), 100 % complete", ran.stdout)
    named = re.findall(r"^[A-Z][a-z ]+: (results/demo/\S+)$", ran.stdout, re.M)
    assert OUTPUT in named
    assert sorted(named) == sorted(
        str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()
    )
    assert "model calls calculator(" in ran.stdout
    assert "All tokens can be used for training." in ran.stdout


def test_demo_does_not_ask_what_listens_on_the_port_of_the_head_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        head = f"+head_server.port={foreign.getsockname()[1]}"
        ran = run_command(*COMMAND, head, "+dry_run=true", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
        assert (ran.returncode, ran.stderr) == (0, "")
        foreign.settimeout(0)
        with pytest.raises(BlockingIOError):  # no connection is waiting
            foreign.accept()
