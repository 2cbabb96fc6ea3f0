import posixpath
import re

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.trackers.names import MAX_BYTES, allowed_names, spelt_out

NAMES = st.lists(
    st.text(alphabet=st.sampled_from("ab/.@[]☃é ") | st.characters(), max_size=12) | st.text(min_size=240)
)


def test_names_stay_readable() -> None:
    assert spelt_out("pass@1[avg-of-4]/accuracy") == "pass_at_1.avg-of-4/accuracy"
    assert spelt_out("math agent/mean/reward") == "math agent/mean/reward"
    assert spelt_out("solved: 50%") == "solved_ 50_percent"


def test_allowed_name_is_kept_and_a_name_that_becomes_equal_gets_a_digest() -> None:
    names = allowed_names(["pass@1", "pass_at_1"])
    assert names["pass_at_1"] == "pass_at_1"
    assert re.fullmatch(r"pass_at_1-[0-9a-f]{8}", names["pass@1"])


def test_long_names_that_differ_only_at_the_end_stay_different() -> None:
    first, second = allowed_names(["x" * 300 + "1", "x" * 300 + "2"]).values()
    assert first != second
    assert len(first) == len(second) == MAX_BYTES


def test_no_name_is_a_folder_of_another() -> None:
    names = allowed_names(
        ["mean/reward", "mean/reward/std_err", "mean/reward/std_err/more", "mean/x/std_err"]
    )
    assert list(names.values()) == [
        "mean/reward",
        "mean/reward.std_err",
        "mean/reward.std_err.more",
        "mean/x/std_err",
    ]


@given(NAMES)
def test_every_name_becomes_an_allowed_and_unique_name(names: list[str]) -> None:
    renamed = allowed_names(names)
    assert renamed.keys() == set(names)
    assert len(set(renamed.values())) == len(renamed)
    for name in renamed.values():
        assert re.fullmatch(r"[/\w.\- ]+", name)
        assert posixpath.normpath(name) == name
        assert not name.startswith(("/", ".."))
        assert len(name.encode()) <= MAX_BYTES
        assert not any(other.startswith(f"{name}/") for other in renamed.values())
