"use strict";

/* How to read a view: one panel for each, folded until it is asked for. */
const reading = (() => {
  const { h } = dom;
  const chip = (tilt, text) => h("span.chip", { style: { "--weight": words.tiltColour(tilt * words.span) } }, text);
  const CREDIT = () =>
    h(
      "p",
      chip(1, "blue"),
      " is credit: the turn's tokens carry more than the episode's advantage A, because a success's turn weighs above 1 or a failure's below. ",
      chip(-1, "amber"),
      " is blame: less credit in a success, more blame in a failure. ",
      chip(0, "grey"),
      " is plain GRPO.",
    );
  const FLAG = () =>
    h("p", h("b.flag", "⚑"), " marks an action that the environment refused and that yet earns more credit in a success.");

  const TEXTS = {
    overview: () => [
      h(
        "p",
        "The evaluations come first: the same held-out tasks before and after, in pairs. A change counts where its p is small; the bars are 95 % intervals.",
      ),
      h(
        "p",
        "Curves tell how training went, on training tasks. The strong line is the mean of five steps: that one and the four before it; the thin line is each step. Point at one, or use the arrow keys, to read a step off all.",
      ),
      CREDIT(),
      FLAG(),
      h("p", "Bars and numbers of the last section lead to their trajectories; one trajectory leads to its group."),
    ],
    trajectory: () => [
      h(
        "p",
        "A is the outcome's advantage: this episode against its siblings. w deals it to the turns; their mean is one, so that a turn only wins what others lose.",
      ),
      CREDIT(),
      h(
        "p",
        "Below each reply stands why: the statement of the guidance that lies nearest to the action, with the episode it was learned from; how much likelier guidance makes each token of the action (its shift); and the way from these shifts to w, in the numbers of this turn. The block is scored as a whole: the nearest statement is read off the texts, not measured.",
      ),
      FLAG(),
      h("p", "A click on a quote leads to the turn it comes from, and a bar on top leads back."),
    ],
    group: () => [
      h("p", "The attempts of one group at one task stand side by side, turn by turn; a cell leads to its turn."),
      CREDIT(),
      FLAG(),
      h(
        "p",
        "A good method colours the turns that decided: of a failure, those after which nothing helped any more; of a success, those that a sibling's failure lacks.",
      ),
    ],
  };

  function panel(name) {
    return h("details.reading", h("summary", "How to read this"), h("div", TEXTS[name]()));
  }

  return { panel };
})();
