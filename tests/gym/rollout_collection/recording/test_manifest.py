"""The manifest identifies a run, and no file of a run contains a secret."""

import hashlib
import json
import platform
import re
from typing import Any

import pytest
from aiohttp import web

import nemo_gym
from nemo_gym.rollout_collection.recording.manifest import differences
from scripts.scripted_endpoint import Item, ScriptedEndpoint, message, user_text
from tests.support.scripted_agent import MODEL_CONFIG, Playground, records_of, row

SECRET = "sk-this-must-not-be-seen-anywhere"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def manifest_of(playground: Playground) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(playground.manifest.read_text())
    return manifest


def test_manifest_identifies_the_run(playground: Playground) -> None:
    playground.set_response("1:0", "[]")
    playground.collect(limit=2, responses_create_params={"temperature": 0.5})
    manifest = manifest_of(playground)
    inputs = manifest["materialized_inputs"]
    assert inputs["sha256"] == hashlib.sha256(playground.materialized.read_bytes()).hexdigest()
    assert inputs["rollouts"] == 2
    assert manifest["collection"]["limit"] == 2
    assert manifest["collection"]["responses_create_params"] == {"temperature": 0.5}
    model = "policy_model.responses_api_models.openai_model"
    assert manifest["servers"][f"{model}.openai_model"] == "some-model"
    assert manifest["servers"][f"{model}.openai_base_url"] == "http://127.0.0.1:1/v1"
    assert manifest["servers"][f"{model}.openai_api_key"] == "****"
    assert manifest["versions"] == {"nemo_gym": nemo_gym.__version__, "python": platform.python_version()}
    assert TIME.fullmatch(manifest["started_at"]) and manifest["resumed_at"] == []
    assert manifest["state"] == "incomplete"
    ledger = {"planned": 2, "succeeded": 1, "failed": {"data": 1}, "not_run": 0, "cancelled": 0, "retried": 1}
    assert manifest["ledger"] == ledger


def test_manifest_says_when_a_run_was_resumed(playground: Playground) -> None:
    playground.set_response("1:0", "[]")
    playground.collect()
    started = manifest_of(playground)["started_at"]
    playground.reset_responses()
    playground.collect(resume_from_cache=True)
    playground.collect(resume_from_cache=True)
    manifest = manifest_of(playground)
    assert manifest["started_at"] == started
    assert len(manifest["resumed_at"]) == 2 and all(map(TIME.fullmatch, manifest["resumed_at"]))
    assert manifest["state"] == "complete"
    ledger = {"planned": 3, "succeeded": 3, "failed": {}, "not_run": 0, "cancelled": 0, "retried": 0}
    assert manifest["ledger"] == ledger


def test_digest_follows_a_top_up(playground: Playground) -> None:
    playground.collect(limit=1)
    playground.collect(resume_from_cache=True, num_repeats=2)
    inputs = manifest_of(playground)["materialized_inputs"]
    assert inputs["sha256"] == hashlib.sha256(playground.materialized.read_bytes()).hexdigest()
    assert inputs["by_agent"] == {"scripted": 6}


def leak(request: dict[str, Any]) -> list[Item] | web.Response:
    """An endpoint whose errors repeat the API key of the request."""
    status = {"bad": 400, "broken": 500, "too long": 413}.get(user_text(request))
    if status is None:
        return [message("The answer is 1.")]
    text = f"Incorrect API key provided: {SECRET}. Authorization: Bearer {SECRET}"
    return web.json_response({"error": {"message": text}}, status=status)


def test_no_file_holds_a_secret_even_if_the_endpoint_repeats_it(
    playground: Playground, capfd: pytest.CaptureFixture[str]
) -> None:
    with ScriptedEndpoint(leak) as endpoint:
        playground.config_paths = ["resources_servers/calculator/configs/calculator.yaml", MODEL_CONFIG]
        playground.servers = {**endpoint.settings, "policy_api_key": SECRET}
        rows = [row(text, expected_answer="1") for text in ("bad", "broken", "too long", "good")]
        playground.write_input(*rows)
        settings = {
            "agent_name": "calculator_simple_agent",
            "max_attempts": 1,
            "responses_create_params": {"metadata": {"my_token": "tok-never-shown"}},
        }
        for resume in (False, True):
            assert len(playground.collect(**settings, resume_from_cache=resume)) == 1
        headers = {one["Authorization"] for one in endpoint.headers}
    assert headers == {f"Bearer {SECRET}"}
    assert {one["http_status"] for one in records_of(playground.failures)} == {400, 413, 500}
    assert len(playground.names()) == 5
    for path in playground.output.parent.iterdir():
        assert SECRET not in path.read_text(), path
    assert "tok-never-shown" not in playground.manifest.read_text()
    written = capfd.readouterr()
    assert SECRET not in written.out + written.err
    assert "tok-never-shown" not in written.out + written.err


def test_credentials_in_an_address_are_hidden(playground: Playground) -> None:
    playground.servers["policy_base_url"] = "http://user:pass-never-shown@127.0.0.1:1/v1"
    playground.collect()
    for path in playground.output.parent.iterdir():
        assert "pass-never-shown" not in path.read_text(), path


def test_only_the_differing_part_of_long_values_is_shown() -> None:
    same = "the same words again and again " * 10
    [line] = differences({"input": f"{same}then this"}, {"input": f"{same}then that"})
    assert "then this" in line and "then that" in line
    assert len(line) < 200
