"""The default agent: model, tools, model, … until the model calls no more tools; then verification."""

import json
from typing import Any

from fastapi import Request, Response
from pydantic import Field

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import (
    STOPPED_BY_KEY_NAME,
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
    is_reserved_tool_name,
    is_session_ended,
    is_unknown_tool,
    rollout_record,
)
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ClientResponse
from responses_api_agents.simple_agent.episode import Episode, Item
from responses_api_agents.simple_agent.tool_counts import Problem


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=100, ge=1)
    """Maximum number of model calls in one rollout; None: until the model calls no more tools."""
    skip_verification: bool = False
    """Give every rollout `skip_verification_reward` instead of calling the verifier."""
    skip_verification_reward: float = 0.0


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
        row.pop(STOPPED_BY_KEY_NAME, None)  # of an earlier run
        verify_request = {**row, "response": episode.final(), **episode.counts()}
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
        while calls := episode.take_response(await self._ask_model(episode, prompt)):
            if episode.steps == self.config.max_steps:
                episode.stopped_by = "max_steps"
                break
            for call in calls:
                episode.take_output(call, await self._call_tool(call, episode))
        return episode

    async def _ask_model(self, episode: Episode, prompt: list[Item]) -> dict[str, Any]:
        body = {**episode.params, "input": prompt + episode.output}
        received = await self.server_client.post(
            self.config.model_server.name, "/v1/responses", json=body, cookies=episode.cookies
        )
        episode.cookies.update(received.cookies)
        received.raise_for_status()
        response: dict[str, Any] = await received.json()
        return response

    async def _call_tool(self, call: Item, episode: Episode) -> str:
        """The tool's output for the model to read, whatever its status. Raises if the session has ended."""
        name = call.get("name")
        if not isinstance(name, str) or is_reserved_tool_name(name):
            episode.tools.add(name, "unknown")
            return f"There is no tool named {name!r}."
        try:
            arguments = json.loads(call.get("arguments") or "")
        except (TypeError, ValueError, RecursionError) as error:
            episode.tools.add(name, "invalid")
            return f"The arguments of this call are not JSON: {error}"
        response = await self._post(self.config.resources_server, f"/{name}", arguments, episode.cookies)
        if is_session_ended(response):
            response.raise_for_status()
        episode.tools.add(name, _problem(response, arguments))
        return await response.text()

    async def _post(
        self, server: ResourcesServerRef, path: str, body: Any, cookies: dict[str, Any]
    ) -> ClientResponse:
        response = await self.server_client.post(server.name, path, json=body, cookies=cookies)
        cookies.update(response.cookies)
        return response


def _problem(response: ClientResponse, arguments: object) -> Problem | None:
    if is_unknown_tool(response):
        return "unknown"
    if response.status == 422 or not isinstance(arguments, dict):
        return "invalid"
    return None if response.ok else "failed"


if __name__ == "__main__":
    SimpleAgent.run_webserver()
