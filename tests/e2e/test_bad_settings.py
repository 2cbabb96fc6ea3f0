"""Invalid settings of a server are reported before a run changes any file."""

from pathlib import Path

import pytest

from tests.support.commands import run_command

MODELS = "responses_api_models"
CASES = {
    "a misspelt setting": ("local_model", "contxt=64", "contxt: unknown; did you mean"),
    "missing weights": ("local_model", "model_path=/nowhere.gguf", "file /nowhere.gguf not found"),
    "an address without http": ("openai_model", "openai_base_url=127.0.0.1:9/v1", "write it like http://"),
    "a vLLM without http": ("vllm_model", "base_url=[127.0.0.1:9/v1]", "write it like http://"),
    "a missing recording": ("replay_model", "rollouts_fpath=/nowhere.jsonl", "/nowhere.jsonl not found"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_dry", [False, True])
def test_bad_setting_is_reported_before_an_earlier_run_is_moved(
    case: str, is_dry: bool, tmp_path: Path
) -> None:
    model, setting, message = CASES[case]
    output = tmp_path / "rollouts.jsonl"
    output.write_text('{"of": "an earlier run"}\n')
    ran = run_command(
        "ng_collect_rollouts",
        f"+config_paths=[resources_servers/calculator/configs/calculator.yaml,{MODELS}/{model}/configs/{model}.yaml]",
        "+agent_name=calculator_simple_agent",
        "+input_jsonl_fpath=resources_servers/calculator/data/example.jsonl",
        f"+output_jsonl_fpath={output}",
        "+policy_base_url=http://127.0.0.1:9/v1",
        "+policy_api_key=none",
        "+policy_model_name=any",
        *(["+replay_rollouts_fpath=/nowhere.jsonl"] if model == "replay_model" else []),
        f"++policy_model.{MODELS}.{model}.{setting}",
        f"+dry_run={str(is_dry).lower()}",
        "+hosting=embedded",
    )
    assert (ran.returncode, message in ran.stderr) == (2, True), ran.stderr
    assert "Traceback" not in ran.stderr
    assert output.read_text() == '{"of": "an earlier run"}\n'
    assert list(tmp_path.glob("*.bak")) == []
