"""Every method by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property, partial
from typing import Any

from ..credit.agentopsd import AgentOPSD
from ..credit.contrast import ContrastWeights, Form
from ..credit.factor import HTA, TAC
from ..credit.gigpo import GiGPO
from ..credit.graphgpo import GraphGPO
from ..credit.grpo import GRPO
from ..credit.grsd import GRSD
from ..credit.hcapo import HCAPO
from ..credit.hgpo import HGPO
from ..credit.opid import OPID
from ..credit.option_checks import check_choice
from ..credit.oracle import OracleWeights
from ..credit.rloo import RLOO
from ..credit.rlsd import RLSD
from ..credit.serl import SERL
from ..credit.stepopsd import StepOPSD
from ..credit.taspo import TurnWeights
from ..credit.taspo_factor import TASPOFactor
from ..credit.token_level import TokenWeights
from ..credit.triage import Triage
from ..credit.turnsight import TurnSight
from ..errors import ConfigurationError
from ..loss.distillation import OPSD, SDAR, SDPO, SkillSD, grpo_opsd, grpo_opsd_sdar, grpo_sdpo, opd, opsd_sdar
from .method import Method, Part
from .papers import PAPERS
from .recipe import Recipe


FIELDS = {
    "clip": "shift_clip",
    "threshold": "shift_threshold",
    "temperature": "score_temperature",
    "weight_range": "weight_range",
    "step_size": "weight_step_size",
}
"""TASPO's constants -> fields of the configuration."""


SUPPORTS: Mapping[str, Form | None] = {"shift": None, "contrast": "shift", "contrast_probability": "probability"}
"""TASPO's option `support` -> form of [`~taspo_trl.credit.contrast.ContrastWeights`]; None is the paper's E4."""


class TASPO(Method):
    """Its weights are of turns or of tokens: `allocation`. The support of a turn may be ours: `support`."""

    @cached_property
    def options(self) -> dict[str, Any]:
        names = ("alternatives", "samples", "cap_refused")
        own = {one.name: one.default for one in fields(ContrastWeights) if one.name in names}
        return {"support": "shift"} | own

    def parts_for(self, args: Any, options: Mapping[str, Any]) -> tuple[Part, ...]:
        support = options.get("support", "shift")
        check_choice("support", support, SUPPORTS, "'shift' is the paper's; the others are ours.")
        is_by_token = args is not None and args.allocation == "token"
        form = SUPPORTS[support]
        if form is None:
            idle = next((name for name in ("alternatives", "samples") if name in options), None)
            if idle is not None and options[idle] != self.options[idle]:
                raise ConfigurationError(
                    f"`method_options` holds `{idle}`={options[idle]!r}, which support='shift' has no use for. Take "
                    "support='contrast', or leave it out."
                )
            if not is_by_token:
                return self.parts
            if options.get("cap_refused"):
                raise ConfigurationError(
                    "`cap_refused=True` caps the weights of whole actions, and `allocation='token'` weighs tokens. "
                    "Take allocation='action', or leave it out."
                )
            return (Part("weight", TokenWeights),)
        if is_by_token:
            raise ConfigurationError(
                f"`support={support!r}` compares whole actions, and `allocation='token'` weighs tokens. Take "
                "allocation='action', or support='shift'."
            )
        return (Part("weight", partial(ContrastWeights, form=form), hidden=("form",)),)


def _method(name: str, line: str, *parts: Part, cites: str | tuple[str, ...] = (), **more: Any) -> Method:
    names = (cites,) if isinstance(cites, str) else cites
    return Method(name, line, tuple(PAPERS[one] for one in names), parts, **more)


_ADVANTAGES = (
    _method("grpo", "the outcome's advantage on every token", Part("advantage", GRPO), cites="GRPO"),
    _method(
        "rloo",
        "the reward against the mean of the other rewards",
        Part("advantage", RLOO, hidden=("scale",)),
        cites="RLOO",
    ),
    _method(
        "reinforce_pp",
        "the reward against the group's mean, over the batch's deviation",
        Part("advantage", partial(RLOO, scale="batch"), hidden=("scale",)),
        cites="REINFORCE++",
        formulas="A_it = (r_i - mean of the group) / (sample std of the differences over the batch).",
        note="The variant of the paper with a baseline from the group.",
    ),
    _method(
        "gigpo",
        "states that a group visits again are baselines for the actions taken there",
        Part("advantage", GiGPO),
        cites="GiGPO",
        state_keys=True,
    ),
    _method(
        "pace_q",
        "GiGPO with the mean return of the state's action in place of the own return",
        Part("advantage", partial(GiGPO, peers="action"), hidden=("peers",)),
        cites="BiPACE",
        state_keys=True,
        formulas="A_it = A_i + omega * A^S_it with A^S_it = (mean G over the turns of the same state and action - "
        "mean G over those of the state) / F, for the rest as `gigpo`.",
        note="The equation is inferred from the abstract; the paper clusters states by hidden states.",
    ),
    _method(
        "hgpo",
        "turns are compared with those that share ever longer pieces of their history",
        Part("advantage", HGPO),
        cites="HGPO",
        state_keys=True,
        note="A turn whose state nobody shares gets no gradient.",
    ),
    _method(
        "graphgpo",
        "an action is worth how near it leads to the goal in the group's graph of states",
        Part("advantage", GraphGPO),
        cites="GraphGPO",
        state_keys=True,
    ),
    _method(
        "hcapo",
        "actions of a success earn more where the policy finds them likelier, knowing the end",
        Part("advantage", HCAPO),
        cites="HCAPO",
        note="Written from a transcription of the paper; its prompt is not published.",
    ),
    _method(
        "triage",
        "each turn's role in the episode moves its advantage up or down",
        Part("advantage", Triage),
        cites="TRIAGE",
        note="A rule stands in for the paper's judge, a language model; its lambda is ours. `judge='oracle'` "
        "knows the simulator: an oracle.",
    ),
)

_WEIGHTS = (
    TASPO(
        "taspo",
        "turn weights from aligned guidance, mean one",
        (PAPERS["TASPO"],),
        (Part("weight", TurnWeights),),
        fields=FIELDS | {"block": "guidance"},
        formulas="""```text
d_it = mean over M_it of clip(Delta_itk, -c, c)                       support of an action (E4)
q_it = tanh(s (d_it - mean over u of d_iu) / tau),  s = sign(A_i)     relative to its trajectory (E5, E6)
w_it = 1 + eta (q_it - mean over u of q_iu),  |w_it - 1| <= eps_w     mean one over the turns (E7)
A~_it = A_i w_it
```

Without another success, with A_i = 0, or with fewer than two turns that can be scored, all w_it are 1.""",
        note="""`allocation="token"` weighs action tokens instead of turns (the ablation).

`support` is ours and no part of the paper: `"contrast"` takes d_it minus the mean of the same over what else could
have been done, weighted by the policy; `"contrast_probability"` the guided probability of the action among these minus
its mean under the policy. Both are exactly 0 where guidance changes nothing. They score up to `alternatives` actions
of each guided turn behind the same prefix: the admissible ones, or, where a world lists none, those of `samples`
further replies.

`cap_refused` is ours, too: an action that the environment refused gets no better credit than the outcome's, that is a
weight of at most 1 where A_i > 0 and of at least 1 where A_i < 0. The weights are the closest such ones (least
squares) inside the same bounds with mean one.""",
    ),
    _method(
        "rlsd",
        "a privileged second look scales every token",
        Part("weight", RLSD),
        cites="RLSD",
        note="SERL's table: `block='serl_immediate'`, `teacher='stale'`.",
    ),
    _method(
        "serl",
        "environment feedback scales the tokens of the action",
        Part("weight", SERL),
        cites="SERL",
        state_keys=True,
        contexts="serl_",
    ),
    _method(
        "stepopsd",
        "hindsight scales the tokens of failures' actions, then all steps get one mean",
        Part("weight", StepOPSD),
        cites="StepOPSD",
        note="With a teacher that lags, weights are not 1 even without hindsight.",
    ),
    _method(
        "opid",
        "shifts under a digest of the own episode are added to the advantage",
        Part("weight", OPID),
        cites="OPID",
        note="An extractive workflow stands in for the paper's analyst, a language model.",
    ),
    _method(
        "agentopsd",
        "a running belief in success is updated by each turn's evidence",
        Part("weight", AgentOPSD),
        cites="AgentOPSD",
    ),
    _method(
        "grsd",
        "what only successes did, and only failures, scales whole turns",
        Part("weight", GRSD),
        cites="GRSD",
        note="An extractive contrast stands in for the lines that the policy writes in the paper.",
    ),
    _method(
        "turnsight",
        "a turn weighs by how much likelier its own near future makes it",
        Part("weight", TurnSight),
        cites="TurnSight",
    ),
    _method(
        "factor",
        "turns get differences of a potential, tokens share each turn's credit",
        Part("advantage", TAC, renamed={"warmup": "potential_warmup"}),
        Part("weight", HTA),
        cites="FACTOR",
        state_keys=True,
        note="FACTOR-table: values of states are means over siblings, not a learned value head.",
    ),
    _method(
        "taspo_factor",
        "TASPO between the turns, FACTOR between the tokens of each action",
        Part("weight", TASPOFactor),
        cites=("TASPO", "FACTOR"),
        fields=FIELDS,
    ),
)

_DISTILLATION = (
    _method(
        "sdar",
        "GRPO, and sampled tokens are pushed up where the teacher agrees",
        Part("distill", SDAR),
        cites="SDAR",
        places=True,
    ),
    _method("opsd", "match a teacher that sees a solution", Part("distill", OPSD), cites="OPSD"),
    _method(
        "opsd_sdar",
        "OPSD as in the SDAR repository: its gated term without the policy gradient",
        Part("distill", opsd_sdar, SDAR, hidden=("policy",)),
        cites=("SDAR", "OPSD"),
        places=True,
    ),
    _method(
        "opd",
        "match another model along the policy's own episodes",
        Part("distill", opd),
        cites="GKD",
    ),
    _method(
        "grpo_opsd",
        "GRPO and OPSD together",
        Part("distill", grpo_opsd, OPSD, hidden=("policy",)),
        cites=("GRPO", "OPSD"),
    ),
    _method(
        "grpo_opsd_sdar",
        "GRPO+OPSD as in the SDAR repository: SDAR with an open gate, whatever the teacher says",
        Part("distill", grpo_opsd_sdar, SDAR, hidden=("slope",)),
        cites=("SDAR", "OPSD"),
        places=True,
    ),
    _method(
        "sdpo",
        "match an averaged teacher that sees a sibling's success or the feedback",
        Part("distill", SDPO),
        cites="SDPO",
    ),
    _method(
        "grpo_sdpo",
        "GRPO and SDPO, mixed",
        Part("distill", grpo_sdpo, SDPO, hidden=("policy", "weight")),
        cites=("GRPO", "SDPO"),
    ),
    _method(
        "skillsd",
        "GRPO, and a reverse KL to the policy that sees a skill text",
        Part("distill", SkillSD),
        cites="Skill-SD",
    ),
)

_CONTROLS = (
    _method(
        "oracle",
        "turns weigh by the progress that the simulator knows of (an oracle, no method)",
        Part("weight", OracleWeights, hidden=("shuffled",), renamed={"weight_range": "range"}),
        note="No method: it sees what only the simulator knows. It tells how much any weights of this range could "
        "gain in a world, before that is asked of a method. Refused where the environment has no `oracle_plan()` "
        'and tells no `info["progress"]`.',
    ),
    _method(
        "placebo",
        "the weights of `oracle`, shuffled inside each trajectory (a placebo, no method)",
        Part(
            "weight",
            partial(OracleWeights, shuffled=True),
            hidden=("shuffled",),
            renamed={"weight_range": "range"},
        ),
        note="No method: the control of `oracle`, with the same weights on random turns.",
    ),
)

GROUPS: Mapping[str, tuple[Method, ...]] = {
    "Advantages": _ADVANTAGES,
    "Weights": _WEIGHTS,
    "Distillation terms": _DISTILLATION,
    "Controls": _CONTROLS,
}
"""Kind -> its methods."""
METHODS: Mapping[str, Method] = {one.name: one for group in GROUPS.values() for one in group}
"""Name -> method."""


def recipe_for(args: Any) -> Recipe:
    """The recipe that a configuration asks for."""
    return METHODS[args.method].make(args, **(args.method_options or {}))
