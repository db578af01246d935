"""Random groups of toy episodes, for properties: few states, so that they meet again; odd cases included."""

from hypothesis import strategies as st

from taspo_trl.credit.base import Batch
from tests.credit import toy


STATES, ACTIONS = ("s0", "s1", "s2", "s3"), ("A", "B", "C")
rewards = st.one_of(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0, -0.1, 0.5]), st.floats(-5, 5, width=32))


@st.composite
def paths(draw, max_turns=5):
    """State, action, state, ...; no turn at all now and then."""
    num_turns = draw(st.integers(0, max_turns))
    path = [draw(st.sampled_from(STATES))]
    for _ in range(num_turns):
        path += [draw(st.sampled_from(ACTIONS)), draw(st.sampled_from(STATES))]
    return path


@st.composite
def groups(draw, group_id="g", max_members=5, values=rewards):
    """A group with successes, failures, episodes that ended through infrastructure and episodes without a turn."""
    members = []
    for idx in range(draw(st.integers(0, max_members))):
        reward = draw(values)
        usable = draw(st.sampled_from([True, True, True, False]))
        masks = []
        path = draw(paths())
        for _ in range(len(path) // 2):
            masks.append(draw(st.sampled_from([toy.MASK, toy.MASK, (False, False), ()])))
        uid = f"{group_id}-{idx}"
        members.append(toy.play(uid, path, reward, masks=masks, usable=usable, success=usable and reward >= 0.5))
    return toy.group(*members, group_id=group_id)


def hindsight(batch: Batch, block: str = "outcome") -> Batch:
    """The batch with scores of one block that hang on nothing but the turn, and a few turns without any."""
    scores = {}
    for member in batch.trajectories:
        for t, turn in enumerate(member.turns):
            seed = sum(map(ord, f"{member.uid}{turn.observation}{turn.action}{t}"))
            if seed % 5:
                shifts = {block: [0.1 * (seed % 7 - 3)] * sum(turn.action_mask)}
                scores[member.uid, t] = toy.score(turn, **shifts)
    return toy.batch(*batch.groups, outcome=batch.outcome, scores=scores)
