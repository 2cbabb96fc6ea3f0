import asyncio
from unittest.mock import AsyncMock, MagicMock

from resources_servers.riddle_judge.app import RiddleJudgeConfig, RiddleJudgeServer, RiddleVerifyRequest

from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient


def _response(text: str) -> NeMoGymResponse:
    return NeMoGymResponse(
        id="r",
        created_at=0,
        model="m",
        object="response",
        output=[
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        ],
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )


def test_verify_calls_the_judge(monkeypatch):
    client = MagicMock(spec=ServerClient)
    response = AsyncMock()
    response.raise_for_status = MagicMock()
    response.json.return_value = _response("[[yes]]").model_dump()
    client.post.return_value = response
    config = RiddleJudgeConfig(
        host="0.0.0.0",
        port=8080,
        entrypoint="",
        name="riddle_judge",
        judge_model_server=ModelServerRef(type="responses_api_models", name="judge_model"),
        judge_responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input=[]),
    )
    server = RiddleJudgeServer(config=config, server_client=client)
    monkeypatch.setattr(
        "resources_servers.riddle_judge.app.get_global_config_dict",
        lambda: {"judge_model": {"responses_api_models": {"openai_model": {"openai_model": "j"}}}},
    )
    request = MagicMock()
    request.session = {"session_id": "s"}
    body = RiddleVerifyRequest(
        responses_create_params={"input": "?"}, response=_response("A piano."), riddle="piano", expected_answer="a piano"
    )
    verified = asyncio.run(server.verify(request, body))
    assert verified.reward == 1.0
    assert client.post.call_args.kwargs["server_name"] == "judge_model"
