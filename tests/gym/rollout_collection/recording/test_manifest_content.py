"""A run survives a manifest of any content: it was edited, replaced or damaged."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_gym.rollout_collection.recording.manifest import Manifest
from tests.support.scripted_agent import Playground, keys_of

Capture = pytest.CaptureFixture[str]

ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text()
    | st.just("\ud800")
    | st.just("1:0"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("1:0"), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ["started_at", "resumed_at", "servers", "materialized_inputs", "collection", "versions", "ledger"]
MORE_FIELDS = ["state", "aggregate_metrics", "worker_deaths", "accepted_rollouts"]
INPUT_FIELDS = ["sha256", "rollouts", "by_agent", "recipe"]

_SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def finishes(playground: Playground) -> None:
    """The run is resumed, and its new manifest is a good one."""
    rollouts = playground.collect(resume_from_cache=True)
    assert keys_of(rollouts) == ["0:0", "1:0", "2:0"] and playground.played() == []
    manifest = json.loads(playground.manifest.read_bytes(), parse_constant=pytest.fail)
    assert manifest["state"] == "complete" and manifest["ledger"]["succeeded"] == 3
    assert isinstance(manifest["started_at"], str) and isinstance(manifest["resumed_at"][-1], str)
    assert sum(manifest["materialized_inputs"]["by_agent"].values()) == 3
    loaded = Manifest.load(playground.manifest)
    assert loaded is not None and loaded.data == manifest


@settings(max_examples=40, deadline=None, suppress_health_check=_SLOW)
@given(
    entries=st.dictionaries(st.sampled_from(FIELDS + MORE_FIELDS), ANYTHING, max_size=4),
    inputs=st.none() | st.dictionaries(st.sampled_from(INPUT_FIELDS), ANYTHING, max_size=4),
)
def test_entries_of_any_type_are_survived(
    playground: Playground, entries: dict[str, Any], inputs: dict[str, Any] | None
) -> None:
    if not playground.output.exists():
        playground.collect()
        playground.played()
        playground.folder.joinpath("good.json").write_bytes(playground.manifest.read_bytes())
    manifest = json.loads(playground.folder.joinpath("good.json").read_bytes())
    if isinstance(entries.get("servers"), dict):
        del entries["servers"]  # other settings are refused, as they should be
    recipe = (inputs or {}).get("recipe")
    if isinstance(recipe, dict):
        assert inputs is not None
        inputs["recipe"] = manifest["materialized_inputs"]["recipe"] | recipe
    manifest |= entries
    if inputs is not None and "materialized_inputs" not in entries:
        manifest["materialized_inputs"] |= inputs
    playground.manifest.write_text(json.dumps(manifest))
    finishes(playground)


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "binary": b"\x00\xff\xfe" * 1000,
    "a list": b"[1, 2]",
    "a number": b"1",
    "NaN": b"NaN",
    "torn": b'{"started_at": "2026',
    "deep": b"[" * 100_000,
    "deep object": b'{"servers":' * 900 + b"1" + b"}" * 900,
    "deep in an entry": b'{"servers": {"a": ' + b"[" * 150 + b"]" * 150 + b"}}",
    "a long number": b'{"accepted_rollouts": ' + b"9" * 5000 + b"}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "no entries": b"{}",
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_file_that_is_not_a_manifest_is_survived(playground: Playground, kind: str) -> None:
    playground.collect()
    playground.played()
    playground.manifest.write_bytes(CONTENTS[kind])
    finishes(playground)


def test_unusable_manifest_is_kept_and_reported(playground: Playground, capsys: Capture) -> None:
    playground.collect()
    playground.played()
    playground.manifest.write_text("my notes")
    finishes(playground)
    [kept] = playground.output.parent.glob("rollouts_manifest.json.*.bak")
    assert kept.read_text() == "my notes"
    message = "rollouts_manifest.json is not a manifest, so changes of settings are not noticed"
    assert f"{message}; it was renamed to {kept.name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", ["folder", "full folder", "named pipe", "dangling link", "unreadable", "huge"]
)
def test_anything_in_the_place_of_the_manifest_is_survived(playground: Playground, kind: str) -> None:
    playground.collect()
    playground.played()
    put(playground.manifest, kind)
    finishes(playground)


def put(path: Path, kind: str) -> None:
    if kind == "unreadable":
        path.chmod(0)
    elif kind == "huge":
        os.truncate(path, 100 << 20)
    else:
        path.unlink()
        if kind == "named pipe":
            os.mkfifo(path)
        elif kind == "dangling link":
            path.symlink_to("nowhere")
        else:
            path.mkdir()
            if kind == "full folder":
                path.joinpath("file").write_text("text")
