"""One conversation of an agent, as it grows."""

from dataclasses import dataclass, field
from typing import Any

from nemo_gym.base_responses_api_agent import STEPS_KEY_NAME, STOPPED_BY_KEY_NAME, TOOLS_KEY_NAME
from nemo_gym.openai_utils import add_usage
from responses_api_agents.simple_agent.tool_counts import ToolCounts

Item = dict[str, Any]


@dataclass
class Episode:
    """One conversation as it grows."""

    params: dict[str, Any]
    cookies: dict[str, Any]
    """Sessions on all servers: the cookies of each response go along with the next call."""
    output: list[Item] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    last: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    """Model calls so far."""
    tools: ToolCounts = field(default_factory=ToolCounts)
    stopped_by: str | None = None
    """The limit that ended it, while the model still called tools."""

    def take_response(self, response: dict[str, Any]) -> list[Item]:
        """Append what the model generated; returns the function calls to make."""
        self.last = response
        self.steps += 1
        self.output += response["output"]
        if response.get("usage"):
            self.usage = add_usage(self.usage, response["usage"])
        if response.get("incomplete_details"):
            return []
        return [item for item in response["output"] if item.get("type") == "function_call"]

    def take_output(self, call: Item, text: str) -> None:
        self.output.append({"type": "function_call_output", "call_id": call.get("call_id"), "output": text})

    def final(self) -> dict[str, Any]:
        return {**self.last, "output": self.output, "usage": self.usage}

    def counts(self) -> dict[str, Any]:
        """The fields of the rollout that say how the episode went."""
        stopped = {} if self.stopped_by is None else {STOPPED_BY_KEY_NAME: self.stopped_by}
        return {STEPS_KEY_NAME: self.steps, TOOLS_KEY_NAME: self.tools, **stopped}
