"""Both argument styles, and the messages about wrong arguments."""

import json

import pytest

from tests.gym.cli.conftest import Ng


@pytest.mark.parametrize(
    "arguments",
    [
        ("+depth.of.a=5", "+words=[x,y]"),
        ("++depth.of.a=5", "++words=[x,y]"),
        ("depth.of.a=5", "words=[x,y]"),
        ("--depth.of.a=5", "--words=[x,y]"),
        ("--depth.of.a", "5", "--words", "[x,y]"),
        ("--depth.of.a", "5", "+words=[x, y]"),
        ("+depth.of.a=4", "--depth.of.a", "5", "words=[x,y]"),
    ],
)
def test_both_argument_styles_mean_the_same(ng: Ng, config: str, arguments: tuple[str, ...]) -> None:
    plain = ng("dump_config", config, "+depth.of.a=5", "+words=[x,y]")
    assert plain.code == 0
    assert ng("dump_config", config, *arguments) == plain
    assert ng("dump_config", "--config_paths", "[small.yaml]", *arguments) == plain
    assert ng("dump_config", "--config-paths=small.yaml", *arguments) == plain


@pytest.mark.parametrize("arguments", [("+json_output=true",), ("--json_output",), ("--json-output", "true")])
def test_flag_needs_no_value(ng: Ng, arguments: tuple[str, ...]) -> None:
    done = ng("version", *arguments)
    assert done.code == 0
    assert json.loads(done.out)["handspring"]


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("run", ["+startup_timeout=3"], "did you mean +startup_timeout_s=3?"),
        ("version", ["+x=1"], "x: unknown; ng_version has these settings: +json_output="),
        ("run", ["--startup-timeout", "3"], "did you mean +startup_timeout_s=3?"),
        ("run", ["+restart_polcy=off"], "did you mean +restart_policy=off?"),
        ("run", ["+startup_timeout_s=soon"], "startup_timeout_s: soon is not allowed"),
        ("run", ["+startup_timeout_s=0"], "startup_timeout_s: 0 is not allowed"),
        ("run", ["+restart_policy=always"], "'off' or 'on_failure'"),
        ("run", ["+max_restarts=-1"], "max_restarts: -1 is not allowed"),
        ("run", ["+max_restarts=[1]"], "max_restarts: [1] is not allowed"),
        ("run", ["+head_server.port=99999"], "head_server.port: 99999 is not allowed"),
        ("run", ["+policy_model_nam=x"], "did you mean +policy_model_name=x?"),
        ("run", ["--hlp"], "did you mean --help?"),
        ("status", ["+json_outputs=true"], "did you mean +json_output=true?"),
        ("aggregate_rollouts", ["+inputglob=x"], "did you mean +input_glob=x?"),
        ("dump_config", ["+words_of=x"], "declare it in a YAML file of config_paths or in env.yaml"),
        ("compare", ["a.jsonl", "b.jsonl", "+metrc=x"], "did you mean +metric=x?"),
        ("export", ["a.jsonl", "b.jsonl", "+include_jsn=x"], "did you mean +include_json=x?"),
        ("validate", ["+confg_paths=[small.yaml]"], "did you mean +config_paths="),
        ("validate", ["nonsense"], "'nonsense' has no `=`"),
        ("validate", ["+=3"], "has no key"),
        ("status", ["+json_output=perhaps"], "json_output: perhaps is not allowed"),
        ("version", ["+json_outptu=true"], "did you mean +json_output=true?"),
        ("test", [], "entrypoint: required but not set; set it with +entrypoint=<value>"),
        ("init_resources_server", [], "entrypoint: required but not set"),
    ],
)
def test_error_for_a_wrong_argument_names_the_right_one(
    ng: Ng, config: str, command: str, arguments: list[str], expected: str
) -> None:
    ng(command, *([config] if command in ("run", "dump_config") else []), *arguments).assert_complains(
        expected
    )


def test_wrong_secret_is_not_shown(ng: Ng, config: str) -> None:
    done = ng("run", config, "+max_restarts=sk-mine-alone", "+polcy_api_key=sk-mine-too", "+=sk-nameless")
    done.assert_complains("has no key")
    done = ng("run", config, "+max_restarts=x", "+head_server.port=sk", "+policy_api_key=sk-mine")
    done.assert_complains("head_server.port")
    assert "sk-mine" not in done.err
    done = ng("run", config, "+polcy_api_key=sk-mine-too")
    done.assert_complains("did you mean +policy_api_key=****?")
