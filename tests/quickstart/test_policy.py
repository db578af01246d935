"""Where the cached policy is written."""

import pytest

from taspo_trl.quickstart.policy import _aside
from taspo_trl.training.lock import LOCK, only_run_in


def test_what_a_kill_left_beside_a_policy_is_removed_and_what_is_written_stays(tmp_path):
    folder = tmp_path / "tiny-policy-abc"
    dead, alive, other = (
        tmp_path / f"{name}/tiny-policy-abc" for name in (f"{folder.name}.7", f"{folder.name}.8", "9")
    )
    for place in (dead, alive, other):
        place.mkdir(parents=True)
        (place.parent / LOCK).write_text("{}")  # a kill leaves it, with no lock on it
    (tmp_path / f"{folder.name}.10").mkdir()
    with only_run_in(alive.parent):
        with pytest.raises(KeyboardInterrupt), _aside(folder) as partial:
            assert not dead.parent.exists() and alive.exists() and other.exists()
            assert (tmp_path / f"{folder.name}.10").exists(), "nothing says whose it is"
            assert partial.name == folder.name and not partial.exists()
            partial.mkdir()
            raise KeyboardInterrupt
        assert not partial.parent.exists() and alive.exists()
