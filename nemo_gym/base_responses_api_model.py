"""Model servers: one interface to whatever generates the text."""

from collections.abc import Mapping
from typing import Any

from fastapi import Body, FastAPI

from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.servers.server_base import SimpleServer

__all__ = ["BaseResponsesAPIModelConfig", "Body", "SimpleResponsesAPIModel"]


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """What every model server's block of the configuration has."""


class SimpleResponsesAPIModel(SimpleServer):
    """Base of model servers: override the two routes."""

    config: BaseResponsesAPIModelConfig

    @classmethod
    def is_one_per_run(cls, settings: Mapping[str, Any]) -> bool:
        """A limit of requests at an endpoint holds for a whole run."""
        return settings.get("max_concurrent_requests") is not None

    def setup_webserver(self) -> FastAPI:
        # A subclass may define its start-up and shutdown as `_lifespan`.
        app = FastAPI(lifespan=getattr(self, "_lifespan", None))
        self.setup_session_middleware(app)
        app.post("/v1/responses")(self.responses)
        app.post("/v1/chat/completions")(self.chat_completions)
        return app

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """One call of the Responses API."""
        raise NotImplementedError(f"{type(self).__name__} does not implement the Responses API")

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        """One call of the Chat Completions API."""
        raise NotImplementedError(f"{type(self).__name__} does not implement the Chat Completions API")
