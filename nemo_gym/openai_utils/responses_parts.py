"""The parts of an item's content. A part of an unknown type keeps all its fields."""

from typing import Annotated, Any, Literal

from pydantic import Field

from .wire_model import Picked, WireModel, WireObject, member_of_instance, text_or_list


class NeMoGymResponsePart(WireModel):
    """A part of a type without its own model, such as `input_image` or `input_file`."""

    type: str | None = None


class NeMoGymResponseInputText(WireModel):
    text: str
    type: Literal["input_text"] = "input_text"


class NeMoGymResponseOutputText(WireModel):
    annotations: list[WireObject] | None = Field(default_factory=list)
    text: str
    type: Literal["output_text"] = "output_text"

    _rare = frozenset({"logprobs"})


class NeMoGymResponseOutputRefusal(WireModel):
    refusal: str
    type: Literal["refusal"] = "refusal"


class NeMoGymSummary(WireModel):
    """A part of the summary of the model's reasoning."""

    text: str
    type: str = "summary_text"


class NeMoGymReasoningText(WireModel):
    """A part of the model's reasoning."""

    text: str
    type: str = "reasoning_text"


_MEMBERS: dict[str, type[WireModel]] = {
    "output_text": NeMoGymResponseOutputText,
    "input_text": NeMoGymResponseInputText,
    "refusal": NeMoGymResponseOutputRefusal,
    "part": NeMoGymResponsePart,
}
_NAMES: dict[type, str] = {cls: name for name, cls in _MEMBERS.items()}


def _pick_part(part: object) -> str | None:
    if not isinstance(part, dict):
        return member_of_instance(part, _NAMES)
    kind: Any = part.get("type")
    return kind if kind in ("output_text", "input_text", "refusal") else "part"


_Part = (
    NeMoGymResponseOutputText | NeMoGymResponseInputText | NeMoGymResponseOutputRefusal | NeMoGymResponsePart
)
Part = Annotated[_Part, Picked(_pick_part, _MEMBERS, "a part")]
TextOrParts = Annotated[
    str | list[Part], Picked(text_or_list, {"text": str, "list": list[Part]}, "a string or a list of parts")
]
