"""Scripts for a scripted endpoint that solve the tasks of the included and the foreign environments."""

import re
from typing import Any

import orjson

from scripts.scripted_endpoint import Item, function_call, message, tool_outputs, user_text


def play(request: dict[str, Any]) -> list[Item]:
    """The next output in the environment that the tools belong to."""
    if request["model"] == "judge":
        return [message("[[yes]]" if "a piano" in user_text(request) else "[[no]]")]
    names = {tool["name"] for tool in request.get("tools", [])}
    player = next((PLAYERS[name] for name in PLAYERS if name in names), None)
    return player(request) if player is not None else [message("I have no tools.")]


def get_weather(request: dict[str, Any]) -> list[Item]:
    outputs = tool_outputs(request)
    if outputs:
        return [message(orjson.loads(outputs[-1])["weather_description"])]
    return [function_call("get_weather", city=user_text(request).rpartition(" in ")[2].strip("?"))]


def take_stock(request: dict[str, Any]) -> list[Item]:
    outputs = [orjson.loads(output) for output in tool_outputs(request)]
    if not outputs:
        return [function_call("check_shelf", shelf=re.findall(r"[A-F]\d", user_text(request))[-1])]
    if "message" in outputs[-1]:
        return [message("Done.")]
    if outputs[-1]["next_shelf"] is not None:
        return [function_call("check_shelf", shelf=outputs[-1]["next_shelf"])]
    return [function_call("submit_units", units=[output["units"] for output in outputs])]


def count_up(request: dict[str, Any]) -> list[Item]:
    amounts = [int(number) for number in re.findall(r"-?\d+", user_text(request))]
    done = len(tool_outputs(request))
    if done < len(amounts):
        return [function_call("increment_counter", count=amounts[done])]
    if done == len(amounts):
        return [function_call("get_counter_value")]
    return [message(tool_outputs(request)[-1])]


def calculate(request: dict[str, Any]) -> list[Item]:
    outputs = tool_outputs(request)
    if outputs:
        return [message(f"The answer is {orjson.loads(outputs[-1])}.")]
    question = user_text(request).removeprefix("What is ").rstrip("?")
    return [function_call("calculator", expression=question.replace(" of ", " * "))]


def get_hints(request: dict[str, Any]) -> list[Item]:
    return [message("A piano.")] if len(tool_outputs(request)) > 1 else [function_call("get_hint", reason="")]


def book(request: dict[str, Any]) -> list[Item]:
    amounts = re.findall(r"[+-]\d+", user_text(request))
    done = len(tool_outputs(request))
    return [function_call("book", amount=amounts[done])] if done < len(amounts) else [message("Booked.")]


PLAYERS = {
    "get_weather": get_weather,
    "check_shelf": take_stock,
    "increment_counter": count_up,
    "calculator": calculate,
    "get_hint": get_hints,
    "book": book,
}
