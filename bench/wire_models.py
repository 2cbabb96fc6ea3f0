"""The cost of validating a 1.5 KB response with our model and with that of the openai SDK.

Both alternate in one run, so that other load on the machine affects both. The best round of each counts.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from openai.types.responses import Response

from bench.report import Bar, report
from nemo_gym.openai_utils import NeMoGymResponse

BAR = 1 / 5
"""Largest share of the cost of the openai SDK's model."""
ROUNDS = 30
CALLS = 200

RESPONSE: dict[str, Any] = {
    "id": "resp_68af4030592c81938ec0a5fbab4a3e9f05438e46b5f69a3b",
    "object": "response",
    "created_at": 1756315696,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": 2048,
    "model": "Qwen/Qwen3-8B",
    "output": [
        {
            "id": "rs_68af4030baa48193b0b43b4c2a176a1a05438e46b5f69a3b",
            "type": "reasoning",
            "summary": [],
            "content": [
                {
                    "type": "reasoning_text",
                    "text": "The user asks for the weather in Paris, and whether to take an umbrella. I have "
                    "a tool for the forecast; it wants a city, a unit and a number of days. The user writes "
                    "in metric units, so celsius it is. They ask about tomorrow, so one day is enough. I "
                    "will look the forecast up first, and give advice once I know how likely rain is.",
                }
            ],
        },
        {
            "id": "fc_68af4033e37081939f1e1e3c2d1f3a4e05438e46b5f69a3b",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_hQ1fZpYw0D7sX2r",
            "name": "get_forecast",
            "arguments": '{"city": "Paris", "unit": "celsius", "days": 1}',
        },
    ],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": "medium", "summary": None},
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": {
        "input_tokens": 81,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 135,
        "output_tokens_details": {"reasoning_tokens": 96},
        "total_tokens": 216,
    },
    "user": None,
    "metadata": {},
}


def main() -> bool:
    theirs, ours, ours_written = _best_rounds(
        lambda: Response.model_validate(RESPONSE),
        lambda: NeMoGymResponse.model_validate(RESPONSE),
        lambda: NeMoGymResponse.model_validate(RESPONSE).model_dump_json(),
    )
    size = len(json.dumps(RESPONSE))
    print(f"  validating a response of {size} bytes: ours {ours:.1f} µs, openai {theirs:.1f} µs")
    print(f"  validated and written as JSON: ours {ours_written:.1f} µs")
    return report(
        "wire models", [Bar("validating a response / the same with the openai SDK", ours / theirs, BAR)]
    )


def _best_rounds(*calls: Callable[[], object]) -> list[float]:
    """The CPU time per call in µs, for each of the calls."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for index, call in enumerate(calls):
            best[index] = min(best[index], _round_us(call))
    return best


def _round_us(call: Callable[[], object]) -> float:
    start = time.process_time_ns()
    for _ in range(CALLS):
        call()
    return (time.process_time_ns() - start) / CALLS / 1000


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
