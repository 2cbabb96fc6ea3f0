from pydantic import BaseModel

from resources_servers.riddle_judge.utils import normalise  # the same sibling, by its full name


class HintRequest(BaseModel):
    reason: str = ""


class HintResponse(BaseModel):
    hint: str
    seeded: bool


assert normalise(" A  b. ") == "a b"
