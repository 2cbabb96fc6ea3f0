import logging
from pathlib import Path

import pytest

from nemo_gym.errors import AlmostServerError, ConfigError, ServerRefNotFoundError
from tests.gym.config.conftest import Load, Write


def test_servers_are_found_in_the_order_of_the_files(two_files: str, load: Load) -> None:
    config = load(two_files, "+policy_base_url=http://x", "+policy_api_key=k")
    assert [(server.name, server.kind, server.implementation) for server in config.servers] == [
        ("calc", "resources_servers", "calculator"),
        ("calc_agent", "responses_api_agents", "simple_agent"),
        ("policy_model", "responses_api_models", "openai_model"),
    ]
    model = config.server("policy_model")
    assert (model.entrypoint, model.host, model.port, model.num_workers) == ("app.py", "127.0.0.1", None, 1)
    assert model.settings["openai_base_url"] == "http://x"


def test_two_files_may_define_one_instance_together(two_files: str, write: Write, load: Load) -> None:
    write("more.yaml", "calc: {resources_servers: {calculator: {num_workers: 2, host: localhost, port: 9}}}")
    config = load(two_files.replace("]", ",more.yaml]"), "+policy_base_url=x", "+policy_api_key=k")
    calc = config.server("calc")
    assert (calc.num_workers, calc.host, calc.port) == (2, "localhost", 9)


@pytest.mark.parametrize(
    "second",
    [
        "calc: {resources_servers: {other: {entrypoint: app.py, domain: math}}}",
        "calc: {responses_api_models: {other: {entrypoint: app.py}}}",
    ],
)
def test_two_instances_with_one_name_are_an_error_that_names_both_and_their_files(
    two_files: str, write: Write, load: Load, second: str
) -> None:
    path = write("second.yaml", second)
    with pytest.raises(ConfigError) as caught:
        load(two_files.replace("]", ",second.yaml]"), "+policy_base_url=x", "+policy_api_key=k")
    message = str(caught.value)
    assert "two instances have the same name: 'calc' is resources_servers/calculator, " in message
    assert "/other" in message
    assert "calc.yaml and " in message
    assert str(path) in message
    assert "rename one of them, or remove one with ~calc.resources_servers.calculator" in message


def test_two_instances_with_one_name_in_one_file_are_reported_with_the_line(write: Write, load: Load) -> None:
    write("a.yaml", "calc: {x: 1}\nother: 1\ncalc: {y: 1}\n")
    with pytest.raises(ConfigError, match=r"a\.yaml:3:1: duplicate key 'calc', first in line 1; rename one"):
        load("+config_paths=a.yaml")


BROKEN = """
calc:
  resources_servers:
    calculator: {port: 70000, num_workers: 0}
agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      datasets:
      - {name: a, type: train, jsonl_fpath: x}
      - {name: b, type: exam, num_repeats: 0}
      - {name: c, type: benchmark, jsonl_fpath: x, prompt_config: 3}
hollow: {responses_api_models: {}}
flat: {responses_api_models: {openai_model: app.py}}
near: {resource_servers: {mine: {entrypoint: app.py}}}
responses_api_models: {vllm_model: {entrypoint: app.py}}
not_a_server: {entrypoint: app.py, resource: {mine: 1}}
"""


def test_every_bad_field_of_every_almost_server_is_in_one_error(write: Write, load: Load) -> None:
    path = write("a.yaml", BROKEN)
    with pytest.raises(AlmostServerError) as caught:
        load("+config_paths=a.yaml")
    message = str(caught.value)
    calc = "calc.resources_servers.calculator"
    dataset = "agent.responses_api_agents.simple_agent.datasets"
    for line in (
        f"{calc}.entrypoint: required but not set; set it with +{calc}.entrypoint=<value> (in {path})",
        f"{calc}.port: 70000 is not allowed: should be less than or equal to 65535",
        f"{calc}.num_workers: 0 is not allowed: should be greater than or equal to 1",
        f"{calc}.domain: required but not set; write any text, usually one of math, coding",
        f"{dataset}.0: dataset 'a' of type 'train' needs a `license`",
        f"{dataset}.1.type: exam is not allowed: should be 'train', 'validation', 'example' or 'benchmark'",
        f"{dataset}.1.jsonl_fpath: required",
        f"{dataset}.1.num_repeats: 0 is not allowed",
        f"{dataset}.2.prompt_config: 3 is not allowed: should be a valid string",
        "hollow.responses_api_models: has no implementation; write responses_api_models: {<implementation>",
        "flat.responses_api_models.openai_model: 'app.py' is not a mapping",
        "near.resource_servers: not a kind of server; did you mean resources_servers?",
        "responses_api_models: not allowed at the top level; put it under an instance name",
    ):
        assert f"\n  {line}" in message
    assert "not_a_server" not in message
    assert message.endswith("ignore such entries with +error_on_almost_servers=false")


def test_almost_servers_can_be_left_out_with_a_warning(
    write: Write, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        "a.yaml",
        "good: {responses_api_models: {m: {entrypoint: app.py}}}\nbad: {responses_api_models: {m: {}}}",
    )
    with caplog.at_level(logging.WARNING):
        config = load("+config_paths=a.yaml", "+error_on_almost_servers=false")
    assert [server.name for server in config.servers] == ["good"]
    assert "bad.responses_api_models.m.entrypoint: required" in caplog.text


def test_any_domain_except_an_empty_one_is_accepted(write: Write, load: Load) -> None:
    write("a.yaml", "a: {resources_servers: {m: {entrypoint: app.py, domain: astrology}}}")
    assert load("+config_paths=a.yaml").server("a").settings["domain"] == "astrology"
    with pytest.raises(AlmostServerError, match=r"domain: required"):
        load("+config_paths=a.yaml", "+a.resources_servers.m.domain=''")


def test_broken_references_are_in_one_error_with_field_name_and_close_matches(
    two_files: str, write: Write, load: Load
) -> None:
    agent = "calc_agent.responses_api_agents.simple_agent"
    with pytest.raises(ServerRefNotFoundError) as caught:
        load(
            two_files,
            "+policy_base_url=x",
            "+policy_api_key=k",
            f"+{agent}.model_server.name=polcy_model",
            f"+{agent}.resources_server.name=policy_model",
            f"+{agent}.judges=[{{type: resources_servers, name: zzz}}]",
            "+calc.resources_servers.calculator.solver={type: responses_api_agents, name: nobody}",
            "~calc_agent.responses_api_agents.simple_agent.datasets",
        )
    message = str(caught.value)
    where = f" (in {Path.cwd() / 'calc.yaml'} and the command line)"
    kind = "no server 'polcy_model' of kind responses_api_models; did you mean policy_model?"
    assert f"\n  {agent}.model_server{where}: {kind}" in message
    assert (
        f"\n  {agent}.resources_server{where}: no server 'policy_model' of kind resources_servers; "
        in message
    )
    assert "'policy_model' exists, but its kind is responses_api_models; correct the `type`" in message
    assert f"\n  {agent}.judges.0{where}: no server 'zzz' of kind resources_servers; known: calc" in message
    assert (
        f"calculator.solver{where}: no server 'nobody' of kind responses_api_agents; known: calc_agent"
        in message
    )
    assert "add the config file that defines the server to config_paths" in message


def test_reference_to_a_kind_without_instances_says_so(write: Write, load: Load) -> None:
    write(
        "a.yaml",
        "a: {responses_api_agents: {m: {entrypoint: app.py, x: {type: responses_api_models, name: p}}}}",
    )
    with pytest.raises(
        ServerRefNotFoundError, match="'p' of kind responses_api_models; none of that kind is defined"
    ):
        load("+config_paths=a.yaml")


def test_inherited_instance_replaces_its_source(two_files: str, write: Write, load: Load) -> None:
    write("mine.yaml", "my_agent: {_inherit_from: calc_agent}\nmy_copy: {_copy: calc}")
    config = load(
        two_files.replace("]", ",mine.yaml]"),
        "+policy_base_url=x",
        "+policy_api_key=k",
        "+my_agent.responses_api_agents.simple_agent.max_steps=3",
    )
    assert {server.name for server in config.servers} == {"calc", "my_copy", "my_agent", "policy_model"}
    assert config.server("my_agent").settings["max_steps"] == 3
    assert config.server("my_agent").settings["model_server"]["name"] == "policy_model"
