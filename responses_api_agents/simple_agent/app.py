"""The default agent: model, tools, model, … until the model calls no more tools; then verification."""

import json
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from pydantic import Field

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
    is_reserved_tool_name,
    is_session_ended,
    rollout_record,
)
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, add_usage
from nemo_gym.server_utils import ClientResponse

Item = dict[str, Any]


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of model calls in one rollout; None: until the model calls no more tools."""
    skip_verification: bool = False
    """Give every rollout `skip_verification_reward` instead of calling the verifier."""
    skip_verification_reward: float = 0.0


@dataclass
class Episode:
    """One conversation as it grows."""

    params: dict[str, Any]
    cookies: dict[str, Any]
    """Sessions on all servers: the cookies of each response go along with the next call."""
    output: list[Item] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    last: dict[str, Any] = field(default_factory=dict)

    def take_response(self, response: dict[str, Any]) -> list[Item]:
        """Append what the model generated; returns the function calls to make."""
        self.last = response
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


class SimpleAgent(SimpleResponsesAPIAgent):
    config: SimpleAgentConfig

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        params = body.model_dump(mode="json", exclude_unset=True)
        episode = await self._run_episode(params, dict(request.cookies))
        for name, value in episode.cookies.items():
            response.set_cookie(name, value)
        return NeMoGymResponse.model_validate(episode.final())

    async def run(self, request: Request, body: BaseRunRequest) -> Response:
        row, cookies = body.model_dump(mode="json", exclude_unset=True), dict(request.cookies)
        seeded = await self._post(self.config.resources_server, "/seed_session", row, cookies)
        seeded.raise_for_status()
        episode = await self._run_episode(row["responses_create_params"], cookies)
        verify_request = {**row, "response": episode.final()}
        if self.config.skip_verification:
            skipped = {"reward": self.config.skip_verification_reward, "verification_skipped": True}
            return Response(json.dumps(verify_request | skipped), media_type="application/json")
        verified = await self._post(self.config.resources_server, "/verify", verify_request, episode.cookies)
        verified.raise_for_status()
        record = rollout_record(verify_request, await verified.read())
        return Response(record, media_type="application/json")

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        response = await self._post(self.config.resources_server, "/aggregate_metrics", body, {})
        response.raise_for_status()
        return AggregateMetrics.model_validate(await response.json())

    async def has_own_metrics(self) -> bool:
        response = await self.server_client.get(self.config.resources_server.name, "/aggregate_metrics")
        return not response.ok or (await response.json()).get("own") is not False

    async def _run_episode(self, params: dict[str, Any], cookies: dict[str, Any]) -> Episode:
        episode = Episode(params, cookies)
        prompt = params["input"]
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        steps = 0
        while True:
            steps += 1
            calls = episode.take_response(await self._ask_model(episode, prompt))
            if not calls or steps == self.config.max_steps:
                return episode
            for call in calls:
                episode.take_output(call, await self._call_tool(call, episode.cookies))

    async def _ask_model(self, episode: Episode, prompt: list[Item]) -> dict[str, Any]:
        body = {**episode.params, "input": prompt + episode.output}
        received = await self.server_client.post(
            self.config.model_server.name, "/v1/responses", json=body, cookies=episode.cookies
        )
        episode.cookies.update(received.cookies)
        received.raise_for_status()
        response: dict[str, Any] = await received.json()
        return response

    async def _call_tool(self, call: Item, cookies: dict[str, Any]) -> str:
        """The tool's output for the model to read, whatever its status. Raises if the session has ended."""
        name = call.get("name")
        if not isinstance(name, str) or is_reserved_tool_name(name):
            return f"There is no tool named {name!r}."
        try:
            arguments = json.loads(call.get("arguments") or "")
        except (TypeError, ValueError, RecursionError) as error:
            return f"The arguments of this call are not JSON: {error}"
        response = await self._post(self.config.resources_server, f"/{name}", arguments, cookies)
        if is_session_ended(response):
            response.raise_for_status()
        return await response.text()

    async def _post(
        self, server: ResourcesServerRef, path: str, body: Any, cookies: dict[str, Any]
    ) -> ClientResponse:
        response = await self.server_client.post(server.name, path, json=body, cookies=cookies)
        cookies.update(response.cookies)
        return response


if __name__ == "__main__":
    SimpleAgent.run_webserver()
