"""Requests find their recorded call."""

import json
import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config_types import ConfigError
from responses_api_models.replay_model.recorded_calls import NotRecordedError, Recording
from responses_api_models.replay_model.tests.rollouts import (
    Item,
    called,
    recorded,
    said,
    thought,
    tokens,
    tool_output,
    user,
    write,
)


def respond(recording: Recording, *items: Item, **params: Any) -> list[Item]:
    """The output items of the response to a request."""
    match = recording.find({"input": list(items), **params})
    output: list[Item] = recording.take(match).response()["output"]
    return output


def test_conversation_is_replayed_call_by_call(tmp_path: Path) -> None:
    first, second, last = [thought("hm"), called("a", x=1)], [called("b")], [said("done")]
    record = recorded("go", *first, tool_output("1"), *second, tool_output("2"), *last)
    recording = Recording(write(tmp_path, [record]))
    history = [user("go")]
    for output in (first, second, last):
        assert respond(recording, *history) == output
        history += [*output, tool_output("other than recorded")]


def test_all_forms_of_a_conversation_find_the_same_call(tmp_path: Path) -> None:
    record = recorded("go", thought("hm"), said(""), called("a", x=1, y=[2]), tool_output("1"), said("done"))
    recording = Recording(write(tmp_path, [record]))
    parts = {
        "role": "user",
        "content": [{"type": "input_text", "text": "g"}, {"type": "input_text", "text": "o"}],
    }
    call = {"type": "function_call", "call_id": "another", "name": "a", "arguments": '{"y": [2], "x": 1}'}
    assert recording.find({"input": "go"}).turn == 0
    assert recording.find({"input": [parts], "seed": 7, "temperature": 0.3}).turn == 0
    assert respond(recording, parts, call, tool_output("1", "another")) == [said("done")]
    with_tokens = [
        user("go"),
        said("", **tokens(3, 1)),
        {**call, "status": "completed", **tokens(9, 9)},
        tool_output("1"),
    ]
    assert respond(recording, *with_tokens) == [said("done")]


def test_instructions_are_part_of_the_prompt(tmp_path: Path) -> None:
    plain, instructed = recorded("go", said("plain")), recorded("go", said("instructed"))
    instructed["responses_create_params"]["instructions"] = "Be brief."
    recording = Recording(write(tmp_path, [plain, instructed]))
    assert respond(recording, user("go")) == [said("plain")]
    assert respond(recording, user("go"), instructions="Be brief.") == [said("instructed")]
    assert respond(recording, {"role": "system", "content": "Be brief."}, user("go")) == [said("instructed")]


def test_prompt_may_be_a_conversation_itself(tmp_path: Path) -> None:
    short = recorded("go", said("hi"), user("and?"), said("short"))
    long = recorded([user("go"), said("hi"), user("and?")], said("long"))
    recording = Recording(write(tmp_path, [short, long]))
    assert respond(recording, user("go")) == [said("hi")]
    assert respond(recording, user("go"), said("hi"), user("and?")) == [said("long")]
    assert respond(recording, user("go"), said("hi"), user("something else")) == [said("short")]


def test_repeats_are_replayed_in_order_and_wrap_around(tmp_path: Path) -> None:
    records = [recorded("go", said(str(repeat)), repeat=repeat) for repeat in range(3)]
    random.Random(1).shuffle(records)  # rollouts are in the file in the order in which they ended
    recording = Recording(write(tmp_path, [recorded("other", said("x")), *records]))
    assert [respond(recording, user("go")) for _ in range(5)] == [[said(text)] for text in "01201"]


def test_conversation_stays_with_its_rollout(tmp_path: Path) -> None:
    records = [
        recorded(
            "go",
            called("a", n=n),
            tool_output("1"),
            called("b", n=n),
            tool_output("2"),
            said(str(n)),
            repeat=n,
        )
        for n in range(4)
    ]
    recording = Recording(write(tmp_path, records))
    histories = [[user("go")] for _ in records]
    for _ in range(3):
        random.Random(2).shuffle(histories)
        for history in histories:
            history += [*respond(recording, *history), tool_output("x")]
    for history in histories:
        n = history[5]["content"][0]["text"]
        assert [call["arguments"] for call in (history[1], history[3])] == [f'{{"n":{n}}}'] * 2


def test_rollouts_with_the_same_beginning_are_all_replayed_to_their_end(tmp_path: Path) -> None:
    records = [recorded("go", called("a"), tool_output("1"), said(str(n)), repeat=n) for n in range(3)]
    recording = Recording(write(tmp_path, records))
    ends = []
    for _ in range(2):  # one conversation after another
        ends.append(respond(recording, user("go"), *respond(recording, user("go")), tool_output("1")))
    both = [respond(recording, user("go")) for _ in range(4)]  # all at once
    ends += [respond(recording, user("go"), *output, tool_output("1")) for output in both]
    assert ends == [[said(text)] for text in "012012"]


def test_seed_selects_the_rollout(tmp_path: Path) -> None:
    records = [
        recorded("go", called("a"), tool_output("1"), said(str(n)), repeat=n, seed=n)
        for n in range(5)
        if n != 1
    ]
    recording = Recording(write(tmp_path, records))
    for n in (3, 0, 4, 3, 2):
        first = respond(recording, user("go"), seed=n)
        history = [user("go"), *first, tool_output("1")]
        recording.give_back(recording.find({"input": history, "seed": n}))
        assert respond(recording, user("go"), seed=n) == first
        assert respond(recording, *history, seed=n) == [said(str(n))]
    # A seed that was not recorded has no effect.
    ends = [
        respond(recording, user("go"), *respond(recording, user("go"), seed=77), tool_output("1"), seed=77)
    ]
    assert ends == [[said("0")]]


def seeded(folder: Path, seeds: Sequence[int | None]) -> Path:
    """Rollouts of one prompt with the same beginning."""
    records = (
        recorded("go", called("a"), tool_output("1"), said(str(n)), repeat=n, seed=seed)
        for n, seed in enumerate(seeds)
    )
    return write(folder, records)


def keep_one_line(path: Path, kept: int) -> None:
    """Damage all other lines, so that reading one of them fails."""
    lines = path.read_bytes().splitlines(keepends=True)
    spoiled = (line if n == kept else b"x" * (len(line) - 1) + b"\n" for n, line in enumerate(lines))
    path.write_bytes(b"".join(spoiled))


@pytest.mark.parametrize(("seed", "number"), [(77, 0), (-1, 0), (None, 0), (0, 0), (3, 3), (7, 7)])
def test_only_the_line_of_the_replayed_rollout_is_read(tmp_path: Path, seed: int | None, number: int) -> None:
    path = seeded(tmp_path, range(8))
    recording = Recording(path)
    keep_one_line(path, number)
    first = respond(recording, user("go"), seed=seed)
    assert respond(recording, user("go"), *first, tool_output("1"), seed=seed) == [said(str(number))]


def test_only_the_line_with_the_seed_is_read_for_a_conversation_begun_elsewhere(tmp_path: Path) -> None:
    path = seeded(tmp_path, range(8))
    recording = Recording(path)
    keep_one_line(path, 5)
    assert respond(recording, user("go"), called("a"), tool_output("1"), seed=5) == [said("5")]


SEEDS = [None, 0, -1, 2**63, 2**64 - 2**10, 2**64, 2**70 + 1, -(2**90), 10**400]


@pytest.mark.parametrize("number", range(1, len(SEEDS)))
def test_seed_may_be_any_whole_number(tmp_path: Path, number: int) -> None:
    path = tmp_path / "recorded.jsonl"
    records = [recorded("go", said(str(n)), repeat=n, seed=seed) for n, seed in enumerate(SEEDS)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    recording = Recording(path)
    assert respond(recording, user("go"), seed=SEEDS[number]) == [said(str(number))]


@pytest.mark.parametrize("seed", [0, -1, 2**64 - 1, 2**64 - 2])
def test_rollout_without_a_seed_does_not_match_any_seed(tmp_path: Path, seed: int) -> None:
    recording = Recording(seeded(tmp_path, [None, 5, None]))
    ends = [
        respond(
            recording, user("go"), *respond(recording, user("go"), seed=seed), tool_output("1"), seed=seed
        )
        for _ in range(3)
    ]
    assert ends == [[said(text)] for text in "012"]  # all in turn
    assert respond(recording, user("go"), called("a"), tool_output("1"), seed=5) == [said("1")]


@pytest.mark.parametrize("odd", ["5", [5], 5.5, True])
def test_recorded_seed_that_is_not_a_whole_number_is_ignored(tmp_path: Path, odd: Any) -> None:
    record = recorded("go", said("0"))
    record["responses_create_params"]["seed"] = odd
    recording = Recording(write(tmp_path, [record, recorded("go", said("1"), repeat=1)]))
    assert [respond(recording, user("go"), seed=seed) for seed in (1, 5)] == [[said("0")], [said("1")]]


def test_recorded_request_is_found_by_its_history_only(tmp_path: Path) -> None:
    records = [recorded("go", called("a", n=n), tool_output("1"), said(str(n)), repeat=n) for n in range(3)]
    recording = Recording(
        write(tmp_path, records)
    )  # this recording has not served the start of the conversation
    assert respond(recording, user("go"), called("a", n=2), tool_output("1")) == [said("2")]
    assert respond(recording, user("go"), called("a", n=0), tool_output("1")) == [said("0")]


def test_order_of_parallel_calls_and_their_outputs_does_not_matter(tmp_path: Path) -> None:
    a, b = called("a", "call_1"), called("b", "call_2")
    record = recorded("go", a, b, tool_output("1", "call_1"), tool_output("2", "call_2"), said("done"))
    recording = Recording(write(tmp_path, [record]))
    assert respond(recording, user("go"), b, tool_output("2", "call_2"), a, tool_output("1", "call_1")) == [
        said("done")
    ]


def test_identical_calls_count_each_time(tmp_path: Path) -> None:
    poll = called("poll")
    record = recorded(
        "go", poll, tool_output("wait"), poll, tool_output("wait"), poll, tool_output("ready"), said("done")
    )
    recording = Recording(write(tmp_path, [record]))
    history = [user("go")]
    outputs = []
    for _ in range(4):
        outputs.append(respond(recording, *history))
        history += [*outputs[-1], tool_output("x")]
    assert outputs == [[poll], [poll], [poll], [said("done")]]


def test_empty_call_is_not_replayed_forever(tmp_path: Path) -> None:
    record = recorded("go", said(""), user("Well?"), thought("hm"), user("Well?"), said("done"))
    recording = Recording(write(tmp_path, [record]))
    history = [user("go")]
    outputs = []
    for _ in range(3):
        outputs.append(respond(recording, *history))
        history += [*outputs[-1], user("Well?")]
    assert outputs == [[said("")], [thought("hm")], [said("done")]]


def test_rollout_ended_by_a_fault_is_replayed_again_before_complete_ones(tmp_path: Path) -> None:
    records = [recorded("go", called("a"), tool_output("1"), said(str(n)), repeat=n) for n in range(3)]
    recording = Recording(write(tmp_path, records))
    first = respond(recording, user("go"))
    failed = recording.find({"input": [user("go"), *first, tool_output("1")]})
    recording.give_back(failed)
    ends = [
        respond(recording, user("go"), *respond(recording, user("go")), tool_output("1")) for _ in range(5)
    ]
    assert ends == [[said(text)] for text in "12001"]


def test_request_retried_after_a_fault_continues_its_rollout(tmp_path: Path) -> None:
    records = [recorded("go", called("a"), tool_output("1"), said(str(n)), repeat=n) for n in range(2)]
    recording = Recording(write(tmp_path, records))
    history = [user("go"), *respond(recording, user("go")), tool_output("1")]
    recording.give_back(recording.find({"input": history}))
    assert respond(recording, *history) == [said("0")]
    assert respond(recording, user("go"), *respond(recording, user("go")), tool_output("1")) == [said("1")]


def test_unknown_prompt_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    recording = Recording(write(tmp_path, [recorded("go", said("hi"))]))
    with pytest.raises(NotRecordedError, match=r"recorded.jsonl has the prompt 'stop'; .* when_unknown: any"):
        recording.find({"input": "stop"})
    with pytest.raises(
        NotRecordedError, match="none of the 1 recorded rollouts of the prompt 'go' begins with"
    ):
        recording.find({"input": [user("go"), said("ho")]})
    with pytest.raises(NotRecordedError, match="the prompt without a user message"):
        recording.find({"input": []})


def test_empty_prompt_can_be_recorded(tmp_path: Path) -> None:
    recording = Recording(write(tmp_path, [recorded([], called("a"), tool_output("1"), said("hi"))]))
    assert respond(recording, *respond(recording), tool_output("1")) == [said("hi")]


def test_unknown_prompts_get_the_calls_of_one_rollout_with_when_unknown_any(tmp_path: Path) -> None:
    records = [recorded(f"go {n}", called("a", n=n), tool_output("1"), said(str(n))) for n in range(5)]
    recording = Recording(write(tmp_path, records))
    numbers = set()
    for text in map(str, range(20)):
        first = recording.take(recording.find_any({"input": text}))
        history = [user(text), *first.response()["output"], tool_output("1")]
        second = recording.take(recording.find_any({"input": history}))
        assert first.rollout is second.rollout
        history += [*second.response()["output"], user("more")]
        beyond = recording.take(recording.find_any({"input": history})).response()
        assert (beyond["status"], beyond["output"][0]["content"][0]["text"]) == ("incomplete", "")
        numbers.add(first.rollout.digests[0])
    assert len(numbers) > 1
    known = recording.find_any({"input": "go 3"})
    assert known.is_known


GOOD = b'{"responses_create_params": {"input": "x"}, "response": {"output": []}}\n'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{nonsense}\n", "not JSON"),
        (b'{"responses_create_params": {"inp', "the last line is incomplete; finish the recorded run"),
        (b"[1]\n", "not a rollout: it is not a JSON object"),
        (
            b'{"responses_create_params": {}, "response": {"output": []}}\n',
            "`responses_create_params.input` must",
        ),
        (
            b'{"responses_create_params": {"input": [1]}, "response": {"output": []}}\n',
            "a string or a list of items",
        ),
        (
            b'{"responses_create_params": {"input": [{"type": 1}]}, "response": {"output": []}}\n',
            "a string or a list of items",
        ),
        (
            b'{"responses_create_params": {"input": "x"}, "response": null}\n',
            "`response.output` must be a list",
        ),
        (
            b'{"responses_create_params": {"input": "x"}, "response": {"output": [1]}}\n',
            "`response.output` must",
        ),
    ],
)
def test_bad_line_is_an_error_with_its_number(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "recorded.jsonl"
    path.write_bytes(GOOD + b"\n" + line)
    with pytest.raises(ConfigError, match=f"recorded.jsonl:3: .*{problem}"):
        Recording(path)


def test_json_that_orjson_rejects_is_replayed(tmp_path: Path) -> None:
    odd = [{"type": "custom", "half": "\ud800", "big": 2**70, "nan": 1.5}, said("half \ud800")]
    path = tmp_path / "recorded.jsonl"
    path.write_text(json.dumps(recorded("go \ud800", *odd, tool_output("1"), said("end"))) + "\n")
    recording = Recording(path)
    assert respond(recording, user("go \ud800")) == odd
    assert respond(recording, user("go \ud800"), *odd, tool_output("1")) == [said("end")]


def test_file_without_rollouts_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recorded.jsonl: contains no rollouts; set rollouts_fpath to"):
        Recording(write(tmp_path, []))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Recording(tmp_path)


def test_file_that_changes_during_the_replay_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, [recorded("go", said("hi"))])
    recording = Recording(path)
    path.write_bytes(b"x")
    with pytest.raises(RuntimeError, match="the file changed during the replay"):
        respond(recording, user("go"))


def test_file_is_not_kept_in_memory(tmp_path: Path) -> None:
    text, count = "x" * 100_000, 120
    path = write(tmp_path, (recorded(f"go {n}", said(f"{n}{text}")) for n in range(count)))
    tracemalloc.start()
    recording = Recording(path, cache_bytes=1_000_000)
    held, _ = tracemalloc.get_traced_memory()
    for n in range(count):
        assert respond(recording, user(f"go {n}")) == [said(f"{n}{text}")]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 12e6
    assert held < 5e5
    assert most < 5e6
