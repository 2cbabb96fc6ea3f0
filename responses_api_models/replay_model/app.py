"""A model server that replays the model responses of a recorded run, with injected faults if configured."""

import asyncio
from functools import cached_property
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Response

from nemo_gym import PARENT_DIR
from nemo_gym.base_responses_api_model import Body, SimpleResponsesAPIModel
from nemo_gym.config_types import ConfigError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import RequestFormatError, ResponsesConverter
from responses_api_models.replay_model.conversation_digests import encoded
from responses_api_models.replay_model.faults import (
    WITH_RESPONSE,
    Dice,
    Fault,
    fault_response,
    with_fault,
)
from responses_api_models.replay_model.recorded_calls import Call, NotRecordedError, Recording
from responses_api_models.replay_model.replay_model_config import ReplayModelConfig

_TOKEN_FIELDS = {"prompt_token_ids", "generation_token_ids", "generation_log_probs"}
"""Long lists in the history of a request; they are not used to find the recorded call."""


class ReplayModel(SimpleResponsesAPIModel):
    config: ReplayModelConfig

    @classmethod
    def check_config(cls, config: ReplayModelConfig) -> None:
        _found(config.rollouts_fpath)

    # Cached properties, because every request reads them: a pydantic private attribute is 30 times slower.
    @cached_property
    def recording(self) -> Recording:
        return Recording(_found(self.config.rollouts_fpath))

    @cached_property
    def dice(self) -> Dice:
        return Dice(self.config.faults)

    @cached_property
    def converter(self) -> ResponsesConverter:
        return ResponsesConverter(
            uses_reasoning_parser=self.config.uses_reasoning_parser, return_token_id_information=True
        )

    def setup_webserver(self) -> FastAPI:
        untimed = self.recording.index.first_untimed  # reads the file now: a bad line is reported at start-up
        if self.config.recorded_latency and untimed is not None:
            raise ConfigError(
                f"{untimed}: the response has no created_at and completed_at, so no latency is recorded; "
                "remove recorded_latency and set latency_s or tokens_per_s"
            )
        return super().setup_webserver()

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> Response:
        given: Any = body.input
        if not isinstance(given, str):
            given = [item.model_dump(exclude_unset=True, exclude=_TOKEN_FIELDS) for item in given]
        request = {"input": given, "instructions": body.instructions, "seed": body.seed}
        response = await self._replay(request)
        return response if isinstance(response, Response) else _json(response)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> Response:
        try:
            request = self.converter.responses_request(body.model_dump(mode="json", exclude_unset=True))
        except RequestFormatError as error:
            raise HTTPException(400, str(error)) from error
        response = await self._replay(request)
        if isinstance(response, Response):
            return response
        return _json(self.converter.chat_completion(response))

    async def _replay(self, params: dict[str, Any]) -> dict[str, Any] | Response:
        """The recorded model response after its delay, or the HTTP response of a fault."""
        recording, is_lenient = self.recording, self.config.when_unknown == "any"
        try:
            match = recording.find_any(params) if is_lenient else recording.find(params)
        except NotRecordedError as error:
            raise HTTPException(404, str(error)) from error
        place = 0 if match.number is None else match.number - match.group.start
        fault = self.dice.throw(match.digest, place, recording.count_request(match))
        if fault is not None and fault not in WITH_RESPONSE:
            recording.give_back(match)
            return fault_response(fault, self.config.faults, f"{self.config.name}/v1")
        call = recording.take(match)
        if not call.is_recorded and not is_lenient:
            calls, key = len(call.rollout.turns), call.rollout.key
            raise HTTPException(
                404,
                f"rollout {key} was recorded with {calls} model calls, and this is a further one; limit the "
                "agent's steps, or set when_unknown: any",
            )
        response = call.response()
        delay_s = self._latency_s(call, response)
        if fault is Fault.SLOW:
            delay_s += self.config.faults.slow_s
        if delay_s > 0.0:
            await asyncio.sleep(delay_s)
        return with_fault(response, fault)

    def _latency_s(self, call: Call, response: dict[str, Any]) -> float:
        config, latency_s = self.config, self.config.latency_s
        if config.recorded_latency:
            latency_s += (call.rollout.latency_s or 0.0) * config.latency_scale
        if config.tokens_per_s is not None:
            latency_s += ((response.get("usage") or {}).get("output_tokens") or 0) / config.tokens_per_s
        return latency_s


def _found(fpath: str) -> Path:
    path = Path(fpath).expanduser()
    places = [root / path for root in (Path.cwd(), PARENT_DIR)]  # an absolute path stays itself
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConfigError(
            f"rollouts_fpath: {fpath} not found (looked for {', '.join(map(str, dict.fromkeys(places)))}); "
            "set it to a rollouts file of ng_collect_rollouts"
        )
    return found


def _json(content: dict[str, Any]) -> Response:
    """Serialised here, without validation: recorded data already has the form of the route's response."""
    return Response(encoded(content), media_type="application/json")


if __name__ == "__main__":
    ReplayModel.run_webserver()
