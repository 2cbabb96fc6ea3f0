from typing import Any

import pytest

from nemo_gym.config.unresolved import unmet_needs

ROOT: dict[str, Any] = {
    "text": "x",
    "unset": "???",
    "map": {"a": 1, "b": "${nowhere}", "up": "${..text}", "list": [{"c": 2}]},
    "via": "${map}",
    "name": "a",
    "circle": "${circle}",
    "holds_itself": {"self": "${holds_itself}", "other": "${no}"},
    "env": "${oc.env:SURELY_NOT_SET}",
}


@pytest.mark.parametrize(
    ("text", "keys", "variables"),
    [
        ("${text}", [], []),
        ("${no.such}", ["no.such"], []),
        ("p${unset}q", ["unset"], []),
        ("${unset.deeper}", ["unset"], []),
        ("${map.nope} ${text} ${other}", ["map.nope", "other"], []),
        ("${map[a]} ${map[z]}", ["map.z"], []),
        ("${map.list.0.c} ${map.list.1.c}", ["map.list.1.c"], []),
        ("${via.a} ${via.c}", ["via.c"], []),
        ("${via}", ["nowhere"], []),
        ("${map.${name}} ${map.${text}}", ["map.x"], []),
        ("${oc.env:SURELY_NOT_SET}", [], ["SURELY_NOT_SET"]),
        ("${oc.env:SURELY_NOT_SET,default}", [], []),
        ("${oc.env:'SURELY_NOT_SET'} ${oc.env:PATH}", [], ["SURELY_NOT_SET"]),
        ("${oc.decode:${nor.this}}", ["nor.this"], []),
        ("${env}/v1", [], ["SURELY_NOT_SET"]),
        ("${circle}", [], []),
        ("${ no }", ["no"], []),
        (r"\${no} ${no2}", ["no2"], []),
        ("${holds_itself}", ["no"], []),
    ],
)
def test_needs_of_a_text_are_found_in_the_data(text: str, keys: list[str], variables: list[str]) -> None:
    needs = unmet_needs({**ROOT, "key": text}, ("key",), text)
    assert (needs.keys, needs.variables) == (keys, variables)


def test_relative_reference_is_named_by_its_whole_path() -> None:
    root = {"a": {"b": {"key": "${..c} ${.d}", "e": 1}}}
    assert unmet_needs(root, ("a", "b", "key"), "${..c} ${.d}").keys == ["a.c", "a.b.d"]
