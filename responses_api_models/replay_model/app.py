"""A model server that answers what a model answered in a recorded run, with faults if wanted."""

import asyncio
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Response
from pydantic import Field

from nemo_gym import PARENT_DIR
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.config_types import ConfigError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import RequestFormatError, ResponsesConverter
from responses_api_models.replay_model.conversations import encoded
from responses_api_models.replay_model.faults import ANSWERED, Dice, Fault, FaultsConfig, refusal, spoiled
from responses_api_models.replay_model.recording import Call, NotRecordedError, Recording

_TOKEN_FIELDS = {"prompt_token_ids", "generation_token_ids", "generation_log_probs"}
"""Long lists that a request brings back, and that nothing is found by."""


class ReplayModelConfig(BaseResponsesAPIModelConfig):
    rollouts_fpath: str
    """The recorded rollouts, as ng_collect_rollouts writes them. A relative path is looked for in the working
    directory, then in the install root."""
    when_unknown: Literal["error", "any"] = "error"
    """What a request gets that is not recorded: an error, or the answers of another rollout."""
    latency_s: float = Field(default=0.0, ge=0.0)
    """Before every answer, in seconds."""
    tokens_per_s: float | None = Field(default=None, gt=0.0)
    """How fast the recorded output tokens are generated, in tokens a second and request. None: at once."""
    recorded_latency: bool = False
    """Take as long as the endpoint said its call took (`created_at` to `completed_at` of the response)."""
    latency_scale: float = Field(default=1.0, ge=0.0)
    """What the recorded latency is multiplied with."""
    uses_reasoning_parser: bool = True
    """In Chat Completions, reasoning is a field of its own; else it stands in the text between think tags."""
    faults: FaultsConfig = Field(default_factory=FaultsConfig)
    """What goes wrong on purpose, and how often."""


class ReplayModel(SimpleResponsesAPIModel):
    config: ReplayModelConfig

    @classmethod
    def check_config(cls, config: ReplayModelConfig) -> None:
        _found(config.rollouts_fpath)

    # What every request reads is a cached property: pydantic finds a private attribute thirty times slower.
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
        untimed = self.recording.index.first_untimed  # reads the file now: a bad line is found at start-up
        if self.config.recorded_latency and untimed is not None:
            raise ConfigError(
                f"{untimed}: the response has no created_at and completed_at, so no latency is recorded; "
                "leave recorded_latency out, and set latency_s or tokens_per_s"
            )
        return super().setup_webserver()

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> Response:
        given: Any = body.input
        if not isinstance(given, str):
            given = [item.model_dump(exclude_unset=True, exclude=_TOKEN_FIELDS) for item in given]
        request = {"input": given, "instructions": body.instructions, "seed": body.seed}
        answer = await self._answer(request)
        return answer if isinstance(answer, Response) else _json(answer)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> Response:
        try:
            request = self.converter.responses_request(body.model_dump(mode="json", exclude_unset=True))
        except RequestFormatError as error:
            raise HTTPException(400, str(error)) from error
        answer = await self._answer(request)
        return answer if isinstance(answer, Response) else _json(self.converter.chat_completion(answer))

    async def _answer(self, params: dict[str, Any]) -> dict[str, Any] | Response:
        """The recorded answer after its time, or what a fault makes of the request."""
        recording, is_lenient = self.recording, self.config.when_unknown == "any"
        try:
            match = recording.find_any(params) if is_lenient else recording.find(params)
        except NotRecordedError as error:
            raise HTTPException(404, str(error)) from error
        place = 0 if match.number is None else match.number - match.group.start
        fault = self.dice.throw(match.key, place, recording.ask(match))
        if fault is not None and fault not in ANSWERED:
            recording.give_back(match)
            return refusal(fault, self.config.faults, f"{self.config.name}/v1")
        call = recording.take(match)
        if not call.is_recorded and not is_lenient:
            calls, name = len(call.rollout.turns), call.rollout.name
            raise HTTPException(
                404, f"rollout {name} was recorded with {calls} model calls; this is one more"
            )
        answer = call.answer()
        delay_s = self._latency_s(call, answer) + (self.config.faults.slow_s if fault is Fault.SLOW else 0.0)
        if delay_s > 0.0:
            await asyncio.sleep(delay_s)
        return spoiled(answer, fault)

    def _latency_s(self, call: Call, answer: dict[str, Any]) -> float:
        config, latency_s = self.config, self.config.latency_s
        if config.recorded_latency:
            latency_s += (call.rollout.latency_s or 0.0) * config.latency_scale
        if config.tokens_per_s is not None:
            latency_s += ((answer.get("usage") or {}).get("output_tokens") or 0) / config.tokens_per_s
        return latency_s


def _found(fpath: str) -> Path:
    path = Path(fpath).expanduser()
    places = [root / path for root in (Path.cwd(), PARENT_DIR)]  # an absolute path is itself in both
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConfigError(
            f"rollouts_fpath: {fpath} is not there (looked at {', '.join(map(str, dict.fromkeys(places)))}); "
            "name a file that ng_collect_rollouts wrote"
        )
    return found


def _json(answer: dict[str, Any]) -> Response:
    """Written here once: the recorded answer has the form of the route already."""
    return Response(encoded(answer), media_type="application/json")


if __name__ == "__main__":
    ReplayModel.run_webserver()
