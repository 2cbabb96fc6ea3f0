"""What lies between the dispatch of a rollout and the socket that carries its model call."""

import asyncio
import asyncio.selector_events
import re
import sys
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import nemo_gym
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from scripts.scripted_endpoint import ScriptedEndpoint
from tests.support.commands import ROOT
from tests.support.players import play

MOST_FRAMES = 16
PUBLISHED = {"run", "responses", "post", "request"}
OURS = ("nemo_gym", "resources_servers", "responses_api_agents", "responses_api_models")
CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"
MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
MODEL_APP = str(ROOT / "responses_api_models/openai_model/app.py")

Stack = list[CodeType]


def stack_of_task(frame: FrameType | None) -> Stack:
    """Our functions on the stack, the innermost first, out to where the event loop runs the task."""
    stack = []
    while frame is not None and Path(frame.f_code.co_filename).name != "events.py":
        if frame.f_code.co_filename.startswith(tuple(f"{ROOT / folder}/" for folder in OURS)):
            stack.append(frame.f_code)
        frame = frame.f_back
    return stack


def stacks_at_the_socket(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Stack]:
    """The stack at every write of a model call, while one task of the calculator is played."""
    stacks: list[Stack] = []
    transport: Any = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    for name in ("write", "writelines"):
        real = getattr(transport, name)

        def write(self: Any, data: Any, real: Any = real) -> None:
            stacks.append(stack_of_task(sys._getframe(1)))
            real(self, data)

        monkeypatch.setattr(transport, name, write)
    config = RolloutCollectionConfig(
        agent_name="calculator_simple_agent",
        input_jsonl_fpath=str(ROOT / "resources_servers/calculator/data/example.jsonl"),
        output_jsonl_fpath=str(folder / "rollouts.jsonl"),
        limit=1,
    )

    async def collect(servers: dict[str, Any]) -> Any:
        async with nemo_gym.open_servers([CALCULATOR, MODEL], servers):
            return await RolloutCollectionHelper().run_from_config(config)

    with ScriptedEndpoint(play) as endpoint:
        [rollout] = asyncio.run(collect({**endpoint.settings, **settings}))
    assert rollout["reward"] == 1.0
    model_calls = [stack for stack in stacks if any(code.co_filename == MODEL_APP for code in stack)]
    assert {stack[-1].co_qualname for stack in model_calls} == {"Attempt.__call__"}  # no task in between
    return model_calls


@pytest.mark.fast_path
@pytest.mark.parametrize("upstream", ["auto", "responses"])
def test_a_model_call_is_few_frames_deep_and_no_two_functions_share_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upstream: str
) -> None:
    settings = {"policy_model.responses_api_models.openai_model.upstream_api": upstream}
    stacks = stacks_at_the_socket(tmp_path, monkeypatch, **settings)
    assert len(stacks) == 2  # the call of the tool, and the final message
    for stack in stacks:
        shown = "\n".join(f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}" for code in stack)
        assert len(stack) <= MOST_FRAMES, f"{len(stack)} frames:\n{shown}"
        functions = defaultdict(set)
        for code in stack:
            functions[code.co_name].add(code)
        twins = {name for name, codes in functions.items() if len(codes) > 1}
        assert not twins - PUBLISHED, f"{sorted(twins)} in:\n{shown}"


def documented_files(text: str) -> list[str]:
    return re.findall(r"`((?:nemo_gym|resources_servers|responses_api_\w+)/[\w/]+\.py)`", text)


@pytest.mark.fast_path
def test_the_documented_walk_of_a_rollout_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("## The walk of one rollout\n")[2].partition("\n## ")[0]
    documented = documented_files(section)
    assert documented and all((ROOT / file).is_file() for file in documented)
    # Steps 1 to 3 are before the task of the attempt begins.
    awaited = set(documented_files(section.partition("\n4. ")[2].partition("\n\n")[0]))
    for stack in stacks_at_the_socket(tmp_path, monkeypatch):
        files = [str(Path(code.co_filename).relative_to(ROOT)) for code in reversed(stack)]
        remaining = iter(documented)
        missing = [file for file, _ in groupby(files) if file not in remaining]
        assert awaited == set(files)
        assert not missing, f"not in the walk, or not in this order: {missing}"
