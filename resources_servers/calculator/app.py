"""Arithmetic questions with a calculator as a tool. The verifier reads the last number of the answer."""

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from resources_servers.calculator.answers import is_same_number, last_message_text, last_number
from resources_servers.calculator.arithmetic import ExpressionError, evaluate, format_number


class CalculatorConfig(BaseResourcesServerConfig):
    pass


class CalculatorRequest(BaseModel):
    expression: str


class CalculatorVerifyRequest(BaseVerifyRequest):
    expected_answer: str


class CalculatorVerifyResponse(BaseVerifyResponse):
    expected_answer: str
    extracted_answer: str | None
    """The last number of the last message, without separators; None if it has none."""
    used_calculator: bool


class CalculatorServer(SimpleResourcesServer):
    config: CalculatorConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/calculator")(self.calculator)
        return app

    async def calculator(self, body: CalculatorRequest) -> str:
        """The value as a JSON string, such as "36", or an error message for the model."""
        try:
            return format_number(evaluate(body.expression))
        except ExpressionError as error:
            return f"error: {error}"

    async def verify(self, body: CalculatorVerifyRequest) -> CalculatorVerifyResponse:
        extracted = last_number(last_message_text(body.response))
        score = {
            "reward": float(is_same_number(extracted, body.expected_answer)),
            "extracted_answer": extracted,
            "used_calculator": used_calculator(body.response),
        }
        return CalculatorVerifyResponse.model_validate(dict(body) | score)


def used_calculator(response: NeMoGymResponse) -> bool:
    return any(
        isinstance(item, NeMoGymResponseFunctionToolCall) and item.name == "calculator"
        for item in response.output
    )


if __name__ == "__main__":
    CalculatorServer.run_webserver()
