"use strict";

/* Numbers and codes as people read them, and the colour of a turn's credit. */
const words = (() => {
  const MINUS = "\u2212";
  const REASONS = new Map(
    Object.entries({
      weighted: "weights moved",
      "not recorded": "not recorded",
      zero_advantage: "advantage is 0",
      no_other_success: "no other success in the group",
      infrastructure: "ended by infrastructure",
      fewer_than_two_candidates: "fewer than two turns with an action",
      fewer_than_two_scorable_turns: "fewer than two scorable turns",
      fewer_than_two_scorable_tokens: "fewer than two scorable tokens",
      time_budget: "the analyzer was too late",
      no_construction: "no guidance in this run",
      empty_mask: "the action could not be located in the reply",
      no_reply: "no reply",
      no_splice_index: "no place for guidance in the prompt",
      over_window: "longer than the model's window",
      non_finite: "a log-probability is not finite",
      solved: "solved",
      failed: "failed",
      env_truncated: "cut by the environment",
      max_turns: "limit of turns",
      max_episode_tokens: "limit of tokens",
      prompt_too_long: "prompt too long",
      env_error: "environment raised",
      env_timeout: "environment timed out",
      env_died: "environment died",
      generation_error: "generation failed",
      service_error: "service failed",
      reward_error: "no reward",
    }),
  );
  let span = 0.4; // |tilt| at which the colour is full

  /** A reason code as words; what stands behind a colon stays. */
  function reason(code) {
    const [head, ...rest] = code.split(":");
    return [REASONS.get(head) ?? head.replaceAll("_", " "), ...rest].join(":");
  }

  /** A number with a fixed count of digits; a dash for none. */
  function fixed(value, digits) {
    return value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", MINUS);
  }

  function signed(value, digits) {
    if (value === null || value === undefined) return "–";
    const rounded = Number(value.toFixed(digits));
    return rounded > 0 ? `+${fixed(rounded, digits)}` : fixed(rounded, digits).replace(/^\u2212(?=0\.?0*$)/, "");
  }

  /** A number of any size in few characters. */
  function short(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e6))
      return Number(value.toPrecision(3)).toExponential().replaceAll("-", MINUS);
    return (size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)))).replace(
      "-",
      MINUS,
    );
  }

  /** Seconds, to what one can tell apart in a step. */
  const seconds = (value) => fixed(value, Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 1 ? 1 : 2);
  const percent = (value, digits = 1) => (value === null ? "–" : `${fixed(100 * value, digits)} %`);
  /** A share at an axis: as many digits as tell neighbours apart. */
  const percentTick = (value, distance) =>
    percent(value, Number.isInteger(Number((100 * distance).toPrecision(6))) ? 0 : 1);
  const count = (value, name, plural = `${name}s`) => `${value.toLocaleString("en")} ${value === 1 ? name : plural}`;

  /** The tilt that all but a few turns of this run stay below decides what a full colour means. */
  function scaleTo(widest) {
    span = Math.max(0.05, widest);
  }

  /**
   * The background of a turn. Its tilt says by how much its tokens carry more than the outcome's advantage: blue for
   * credit (a success's weight above 1, a failure's below), amber for blame, none at 0.
   */
  function tiltColour(tilt) {
    if (tilt === null || tilt === undefined) return "var(--unknown)";
    const share = Math.min(1, Math.abs(tilt) / span);
    const side = tilt > 0 ? "var(--credit)" : "var(--blame)";
    return `color-mix(in oklab, ${side} ${(share * 100).toFixed(0)}%, var(--neutral))`;
  }

  /** What a tilt means beside an advantage. */
  function tiltWords(tilt, advantage) {
    if (tilt === null || tilt === undefined) return "";
    if (Math.abs(tilt) < 0.005) return "as the outcome says";
    if (advantage > 0) return tilt > 0 ? "more credit" : "less credit";
    if (advantage < 0) return tilt > 0 ? "less blame" : "more blame";
    return tilt > 0 ? "credit" : "blame";
  }

  /** The tilt of a weight. */
  const tiltOf = (weight, advantage) => (weight === null || weight === undefined ? null : (weight - 1) * Math.sign(advantage ?? 0));

  /** A p-value: 0.13, or 7 · 10⁻⁷. */
  function probability(p) {
    if (p >= 0.001) return String(Number(p.toPrecision(2)));
    if (p === 0) return "0";
    const [digits, power] = p.toExponential(0).split("e");
    const raised = [...power].map((one) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(one)] ?? "⁻").join("");
    return `${digits} · 10${raised}`;
  }

  return {
    reason,
    fixed,
    signed,
    short,
    seconds,
    percent,
    percentTick,
    count,
    scaleTo,
    tiltColour,
    tiltWords,
    tiltOf,
    probability,
    get span() {
      return span;
    },
  };
})();
