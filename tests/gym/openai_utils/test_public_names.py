import subprocess
import sys

import nemo_gym.openai_utils as openai_utils

PUBLISHED = [
    "NeMoGymResponseCreateParamsNonStreaming",
    "NeMoGymResponse",
    "NeMoGymResponseInput",
    "NeMoGymResponseInputItem",
    "NeMoGymResponseOutputItem",
    "NeMoGymEasyInputMessage",
    "NeMoGymMessage",
    "NeMoGymResponseOutputMessage",
    "NeMoGymResponseOutputText",
    "NeMoGymResponseOutputRefusal",
    "NeMoGymResponseReasoningItem",
    "NeMoGymSummary",
    "NeMoGymResponseFunctionToolCall",
    "NeMoGymFunctionCallOutput",
    "NeMoGymResponseInputText",
    "NeMoGymFunctionToolParam",
    "NeMoGymResponseUsage",
    "NeMoGymResponseInputTokensDetails",
    "NeMoGymResponseOutputTokensDetails",
    "accumulate_response_usage",
    "NeMoGymEasyInputMessageForTraining",
    "NeMoGymMessageForTraining",
    "NeMoGymResponseOutputMessageForTraining",
    "NeMoGymResponseReasoningItemForTraining",
    "NeMoGymResponseFunctionToolCallForTraining",
    "TokenIDLogProbMixin",
    "TokenIDLogProbTypedDictMixin",
    "NeMoGymChatCompletion",
    "NeMoGymChoice",
    "NeMoGymChatCompletionMessage",
    "NeMoGymChatCompletionMessageForTraining",
    "NeMoGymChatCompletionMessageToolCall",
    "NeMoGymFunction",
    "NeMoGymChatCompletionCreateParamsNonStreaming",
    "NeMoGymChatCompletionUserMessageParam",
    "NeMoGymChatCompletionSystemMessageParam",
    "NeMoGymChatCompletionDeveloperMessageParam",
    "NeMoGymChatCompletionAssistantMessageParam",
    "NeMoGymChatCompletionToolMessageParam",
    "NeMoGymChatCompletionAssistantMessageForTrainingParam",
    "NeMoGymChatCompletionContentPartTextParam",
    "NeMoGymChatCompletionMessageParam",
    "NeMoGymChatCompletionMessageToolCallParam",
    "NeMoGymChatCompletionMessageToolCallFunctionParam",
    "NeMoGymChatCompletionToolParam",
    "NeMoGymFunctionDefinition",
]


def test_every_published_name_is_exported() -> None:
    assert set(PUBLISHED) <= set(openai_utils.__all__)
    assert all(hasattr(openai_utils, name) for name in openai_utils.__all__)


def test_the_sdk_is_not_imported() -> None:
    program = "import sys, nemo_gym.openai_utils; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
