"""Riddles, scored by a judge model. Written only against the published interface."""

import asyncio
from typing import Any, Dict, List, Optional

from app_models import HintRequest, HintResponse  # a sibling, by its bare name
from fastapi import FastAPI, Request
from pydantic import Field
from utils import normalise  # `utils` exists in more than one component

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.global_config import get_global_config_dict
from nemo_gym.judge import call_judge
from nemo_gym.openai_utils import NeMoGymEasyInputMessage, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import SESSION_ID_KEY


class RiddleJudgeConfig(BaseResourcesServerConfig):
    judge_model_server: ModelServerRef
    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    hints: Dict[str, List[str]] = Field(default_factory=dict)


class RiddleVerifyRequest(BaseVerifyRequest):
    riddle: str
    expected_answer: str


class RiddleVerifyResponse(BaseVerifyResponse):
    expected_answer: str
    extracted_answer: Optional[str] = None
    hints_used: int
    judge_model: str


class RiddleJudgeServer(SimpleResourcesServer):
    config: RiddleJudgeConfig
    session_id_to_riddle: Dict[str, str] = Field(default_factory=dict)
    session_id_to_hints: Dict[str, int] = Field(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        self._lock = asyncio.Lock()

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/get_hint")(self.get_hint)
        app.get("/hints/{riddle}")(self.list_hints)
        return app

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        session_id = request.session[SESSION_ID_KEY]
        self.session_id_to_riddle[session_id] = body.riddle
        request.session["seeded"] = True
        return BaseSeedSessionResponse()

    async def get_hint(self, request: Request, body: HintRequest) -> HintResponse:
        session_id = request.session[SESSION_ID_KEY]
        async with self._lock:
            number = self.session_id_to_hints.get(session_id, 0)
            await asyncio.sleep(0)
            self.session_id_to_hints[session_id] = number + 1
        hints = self.config.hints[self.session_id_to_riddle[session_id]]
        return HintResponse(hint=hints[number % len(hints)], seeded=request.session.get("seeded", False))

    async def list_hints(self, riddle: str, limit: int = 10) -> List[str]:
        return self.config.hints.get(riddle, [])[:limit]

    async def verify(self, request: Request, body: RiddleVerifyRequest) -> RiddleVerifyResponse:
        answer = normalise(body.response.output_text)
        params = self.config.judge_responses_create_params.model_copy(deep=True)
        params.input = [
            NeMoGymEasyInputMessage(
                role="user", content=f"Expected: {body.expected_answer}\nGiven: {answer}\nSay [[yes]] or [[no]]."
            )
        ]
        verdict: NeMoGymResponse = await call_judge(
            self.server_client, self.config.judge_model_server.name, params, NeMoGymResponse
        )
        name = get_global_config_dict()[self.config.judge_model_server.name]["responses_api_models"]
        return RiddleVerifyResponse(
            **body.model_dump(),
            reward=1.0 if "[[yes]]" in verdict.output_text else 0.0,
            extracted_answer=answer,
            hints_used=self.session_id_to_hints.pop(request.session[SESSION_ID_KEY], 0),
            judge_model=name["openai_model"]["openai_model"],
        )


if __name__ == "__main__":
    RiddleJudgeServer.run_webserver()
