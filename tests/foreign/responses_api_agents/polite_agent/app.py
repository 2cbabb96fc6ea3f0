"""An agent in the usual style: it calls itself over its own route and passes cookies on from response to response."""

import json
from typing import List

from fastapi import Request, Response
from pydantic import ConfigDict, ValidationError

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
)
from nemo_gym.server_utils import get_response_json, raise_for_status


class PoliteAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int = 4


class PoliteAgentRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class PoliteAgentVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class PoliteAgentVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class PoliteAgent(SimpleResponsesAPIAgent):
    config: PoliteAgentConfig

    async def responses(
        self,
        request: Request,
        response: Response,
        body: NeMoGymResponseCreateParamsNonStreaming = Body(),
    ) -> NeMoGymResponse:
        body = body.model_copy(deep=True)
        if isinstance(body.input, str):
            body.input = [NeMoGymEasyInputMessage(role="user", content=body.input)]
        new_outputs: List = []
        model_server_cookies = None
        resources_server_cookies = request.cookies
        for _ in range(self.config.max_steps):
            new_body = body.model_copy(update={"input": body.input + new_outputs})
            model_response = await self.server_client.post(
                server_name=self.config.model_server.name,
                url_path="/v1/responses",
                json=new_body,
                cookies=model_server_cookies,
            )
            await raise_for_status(model_response)
            model_server_cookies = model_response.cookies
            try:
                parsed = NeMoGymResponse.model_validate(await get_response_json(model_response))
            except ValidationError as e:
                raise RuntimeError("the response of the model server does not validate") from e
            new_outputs.extend(parsed.output)
            calls: List[NeMoGymResponseFunctionToolCall] = [o for o in parsed.output if o.type == "function_call"]
            if not calls:
                break
            for call in calls:
                tool_response = await self.server_client.post(
                    server_name=self.config.resources_server.name,
                    url_path=f"/{call.name}",
                    json=json.loads(call.arguments),
                    cookies=resources_server_cookies,
                )
                resources_server_cookies = tool_response.cookies
                new_outputs.append(
                    NeMoGymFunctionCallOutput(
                        type="function_call_output",
                        call_id=call.call_id,
                        output=(await tool_response.content.read()).decode(),
                    )
                )
        for name, value in (*resources_server_cookies.items(), *model_server_cookies.items()):
            response.set_cookie(name, value)
        parsed.output = new_outputs
        return parsed

    async def run(self, request: Request, body: PoliteAgentRunRequest) -> PoliteAgentVerifyResponse:
        cookies = request.cookies
        seeded = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/seed_session",
            json=body.model_dump(),
            cookies=cookies,
        )
        await raise_for_status(seeded)
        cookies = seeded.cookies
        played = await self.server_client.post(
            server_name=self.config.name,
            url_path="/v1/responses",
            json=body.responses_create_params,
            cookies=cookies,
        )
        await raise_for_status(played)
        cookies = played.cookies
        verify_request = PoliteAgentVerifyRequest.model_validate(
            body.model_dump() | {"response": await get_response_json(played)}
        )
        verified = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/verify",
            json=verify_request.model_dump(),
            cookies=cookies,
        )
        await raise_for_status(verified)
        return PoliteAgentVerifyResponse.model_validate(await get_response_json(verified))


if __name__ == "__main__":
    PoliteAgent.run_webserver()
