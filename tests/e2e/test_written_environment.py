"""`docs/write_an_environment.md` works as written: every block, in order, in an empty folder."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import BIN, ROOT

PAGE = ROOT / "docs" / "write_an_environment.md"
BLOCK = re.compile(r"^```(\w*) ?(?:file=(\S+))?[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of the page: a file, or commands for a shell."""

    language: str
    file: str
    text: str


def blocks() -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]


def run(commands: str, folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"


def test_every_block_of_the_page_is_a_file_or_a_command() -> None:
    assert len(blocks()) > 10
    assert [block for block in blocks() if not block.file and block.language != "bash"] == []
    assert PAGE.read_text(encoding="utf-8").count("```") == 2 * len(blocks())


def test_newcomer_gets_rollouts_by_following_the_page(tmp_path: Path) -> None:
    for block in blocks():
        if block.file:
            path = tmp_path / block.file
            assert path.parent.is_dir(), f"no command has created the folder of {block.file}"
            path.write_text(block.text, encoding="utf-8")
        else:
            run(block.text, tmp_path)
    collected = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "results").glob("*.jsonl")
    }
    assert {name: len(collected[name]) for name in ("capitals", "poems", "guess", "second_thoughts")} == {
        "capitals": 4,
        "poems": 1,
        "guess": 1,
        "second_thoughts": 2,
    }
    for name in ("capitals", "poems", "guess", "second_thoughts"):
        for rollout in collected[name]:
            assert rollout["reward"] in (0.0, 1.0)
            assert rollout["responses_create_params"]["input"] and rollout["response"]["output"]
    assert all("length" in rollout for rollout in collected["capitals"])
    assert collected["poems"][0]["verdict"]
    assert "guesses" in collected["guess"][0]
    assert len(collected["second_thoughts"][0]["response"]["output"]) >= 2
