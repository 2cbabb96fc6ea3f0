"""Errors of the Python API speak Python and end where the caller's code begins."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError, HeadServerUnreachableError
from nemo_gym.python_terms import errors_in_python, in_python
from tests.support.scripted_agent import MODEL_CONFIG, Playground, row


@pytest.mark.parametrize(
    ("command_line", "python"),
    [
        ("pass +agent_name=<name>, or", 'pass agent_name="<name>", or'),
        ("continue with +resume_from_cache=true", "continue with resume_from_cache=True"),
        (
            "The same command with +resume_from_cache=true runs",
            "The same call with resume_from_cache=True runs",
        ),
        ("; the same command with +resume_from_cache=true", "; the same call with resume_from_cache=True"),
        ("or '+config_paths=[…]'", "or config_paths=[…]"),
        ("+hosting=embedded.", 'hosting="embedded".'),
        ("choose another +output_jsonl_fpath=", "choose another output_jsonl_fpath"),
        ("+num_repeats._default=1", 'num_repeats={"_default": 1}'),
        ("+responses_create_params.temperature=0.7?", 'responses_create_params={"temperature": 0.7}?'),
        ("+head_server.port=<port>", '"head_server.port": "<port>"'),
        ("1+2=3, a+b=c", "1+2=3, a+b=c"),
        ("nothing to rewrite", "nothing to rewrite"),
        (
            "run ng_aggregate_rollouts '+input_glob=a b' +x=1",
            "run ng_aggregate_rollouts '+input_glob=a b' +x=1",
        ),
    ],
)
def test_settings_are_written_as_in_python(command_line: str, python: str) -> None:
    assert in_python(command_line) == python


def test_error_keeps_its_type_and_loses_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nemo_gym.python_terms")
    with pytest.raises(HeadServerUnreachableError) as caught, errors_in_python():
        try:
            raise OSError("refused")
        except OSError as error:
            raise HeadServerUnreachableError("no head server at x: refused; start one") from error
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert str(caught.value).startswith(
        'no head server at x: refused; use "async with nemo_gym.open_servers(…)'
    )
    assert "OSError: refused" in caplog.text


SCRIPT = """
import asyncio
import nemo_gym
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper

config = RolloutCollectionConfig(input_jsonl_fpath="input.jsonl", output_jsonl_fpath="out.jsonl"{field})

async def main():
    async with nemo_gym.open_servers({paths}, {settings}):
        await RolloutCollectionHelper().run_from_config(config)

asyncio.run({main})
"""
OUTSIDE = "RolloutCollectionHelper().run_from_config(config)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"main": OUTSIDE}, 'use "async with nemo_gym.open_servers(…)"'),
        ({"field": ", agent_nam='x'"}, "did you mean agent_name?"),
        ({"field": ", agent_name='nobody'"}, 'Choose one with agent_name="<name>"'),
        (
            {"settings": {"policy_model_nam": "x"}},
            "policy_model_nam: unknown; did you mean policy_model_name?",
        ),
        ({"settings": {}}, 'pass each in the overrides, policy_base_url="<value>"'),
        ({"paths": ["nowhere.yaml"]}, "config path 'nowhere.yaml', passed to the call: no such file"),
        ({"main": "RolloutCollectionHelper().run_from_config({})"}, "takes a RolloutCollectionConfig"),
        ({"field": ", limit=1, prompt_config='nowhere.yaml'"}, "nowhere.yaml"),
    ],
)
def test_error_of_a_script_is_short_and_speaks_python(
    changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    playground = Playground(tmp_path)
    playground.write_input(row())
    parts = {"main": "main()", "field": "", "paths": playground.config_paths, "settings": playground.servers}
    script = SCRIPT.format(**{**parts, **changes})
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1
    message = ran.stderr.split("Error: ", 1)[1]
    assert expected in message and "+" not in message
    assert "During handling" not in ran.stderr and "direct cause" not in ran.stderr
    assert len(ran.stderr.splitlines()) < 25, ran.stderr


def test_error_inside_open_servers_is_that_of_the_caller(tmp_path: Path) -> None:
    import nemo_gym

    async def run() -> None:
        async with nemo_gym.open_servers([MODEL_CONFIG], Playground(tmp_path).servers):
            raise ConfigError("+mine=true")

    with pytest.raises(ConfigError, match=r"^\+mine=true$"):
        asyncio.run(run())
