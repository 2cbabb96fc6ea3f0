import json
from pathlib import Path

import pytest

from tests.gym.cli.conftest import Ng
from tests.support.components import write_files

ARGUMENTS = (
    "+input_jsonl_fpath=in.jsonl",
    "+output_jsonl_fpath=made/out.jsonl",
    "+prompt_config=prompt.yaml",
)


@pytest.fixture(autouse=True)
def valid_files(tmp_path: Path) -> None:
    rows = '{"question": "a"}\n\n{"question": "b", "responses_create_params": {"temperature": 0}}\n'
    write_files(tmp_path, {"in.jsonl": rows, "prompt.yaml": "system: Be brief.\nuser: 'Q: {question}'"})


def test_rows_are_written_with_their_prompts_and_counted(ng: Ng, tmp_path: Path) -> None:
    done = ng("materialize_prompts", *ARGUMENTS)
    assert (done.code, done.err) == (0, "")
    assert done.out == "Wrote 2 rows from in.jsonl to made/out.jsonl.\n"
    lines = (tmp_path / "made/out.jsonl").read_text().splitlines()
    system = {"role": "system", "content": "Be brief."}
    assert [json.loads(line) for line in lines] == [
        {
            "question": "a",
            "responses_create_params": {"input": [system, {"role": "user", "content": "Q: a"}]},
        },
        {
            "question": "b",
            "responses_create_params": {
                "temperature": 0,
                "input": [system, {"role": "user", "content": "Q: b"}],
            },
        },
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"prompt.yaml": "system: x"}, ["prompt.yaml: 'user' is missing"]),
        ({"prompt.yaml": "user: '{a.b}'"}, ["prompt.yaml: 'user': line 1", "'{a.b}'"]),
        ({"prompt.yaml": "user: '{answer}'"}, ["in.jsonl:1: ", "'answer'", "it has question"]),
        ({"in.jsonl": '{"question": "a"}\n{"question": '}, ["in.jsonl:2: not JSON"]),
        ({"in.jsonl": '{"responses_create_params": {"input": []}}\n' * 3}, ["in.jsonl: ", "rows 0, 1, 2 "]),
    ],
)
def test_files_that_do_not_match_are_one_error_and_nothing_is_written(
    ng: Ng, tmp_path: Path, files: dict[str, str], expected: list[str]
) -> None:
    write_files(tmp_path, files)
    ng("materialize_prompts", *ARGUMENTS).assert_complains(*expected)
    assert [path for path in tmp_path.rglob("*") if "out.jsonl" in path.name] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["input_jsonl_fpath", "output_jsonl_fpath", "prompt_config"]),
        ((*ARGUMENTS, "+output_jsonl_fpath=./in.jsonl"), ["./in.jsonl", "same file"]),
        ((*ARGUMENTS, "+input_jsonl_fpath=gone.jsonl"), ["'gone.jsonl'", "no such file"]),
        ((*ARGUMENTS, "+prompt_config=gone.yaml"), ["'gone.yaml'", "no such file"]),
        ((*ARGUMENTS, "+promt_config=x"), ["did you mean +prompt_config=x?"]),
        ((*ARGUMENTS, "+limit=3"), ["limit: unknown; ng_materialize_prompts has these settings: +"]),
    ],
)
def test_wrong_arguments_are_one_error(ng: Ng, arguments: tuple[str, ...], expected: list[str]) -> None:
    ng("materialize_prompts", *arguments).assert_complains(*expected)
