"""The settings of vllm_model."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    base_url: str | list[str]
    """Address of the engine, with `/v1`. A list: replicas of one model; a session stays with one of them."""
    api_key: str = Field(repr=False)
    model: str
    """The model to use, even if a request names another."""
    return_token_id_information: bool = False
    """Put the token ids and log-probabilities of each call on its last output item; needed for training."""
    uses_reasoning_parser: bool = False
    """Whether the engine has a --reasoning-parser; otherwise reasoning is in the text, between think tags."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Passed to the chat template; those of a request take precedence."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields of every request that does not have them itself."""
    sampling_overrides: dict[str, Any] = Field(default_factory=dict)
    """Sampling fields that replace those of every request, such as temperature, top_p and top_k."""
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Limit of concurrent calls to the engine, over all replicas; None: no limit."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs"
    """The engine's --logprobs-mode (raw is its default); recorded with the log-probabilities."""
    token_id_replay: Literal["messages", "completions"] = "messages"
    """How the ids of earlier turns are sent. `messages`: on the messages, for servers that accept them there;
    `completions`: in a prompt of token ids that is built here, which an unmodified vLLM accepts."""
    eos_token_id: int | None = None
    """For `completions`: the token that ends a turn."""
    eos_token: str | None = None
    """The same token as text, such as <|im_end|>; its id is requested from the engine."""

    @property
    def base_urls(self) -> list[str]:
        return [self.base_url] if isinstance(self.base_url, str) else self.base_url

    @field_validator("base_url")
    @classmethod
    def _at_least_one(cls, base_url: str | list[str]) -> str | list[str]:
        if not base_url:
            raise ValueError("set at least one address, such as http://127.0.0.1:8000/v1")
        return base_url

    @model_validator(mode="after")
    def _check_replay_settings(self) -> "VLLMModelConfig":
        if self.token_id_replay == "completions":
            if not self.return_token_id_information:
                raise ValueError("token_id_replay: completions needs return_token_id_information: true")
            if self.eos_token_id is None and not self.eos_token:
                raise ValueError("token_id_replay: completions needs eos_token_id or eos_token")
        return self
