"use strict";

/* Which trajectories the list shows, in which order: the filters of the address applied to the index. */
const selection = (() => {
  /** Filters by exact value: address name -> column of the index. */
  const EXACT = { family: "family", environment: "environment", outcome: "outcome", stop: "stop", credit: "credit" };
  const FILTERS = ["q", "steps", "rollout", "group", "guided", "flagged", ...Object.keys(EXACT)];
  const GUIDED = new Map([
    ["yes", true],
    ["no", false],
    ["unknown", null],
  ]);
  const OUTCOMES = ["success", "failure", "infrastructure", "unknown"];

  /** What a row is sorted by. */
  const ORDERS = {
    step: (row) => store.rows.step[row],
    rollout: (row) => store.rows.rollout[row],
    group: (row) => store.rows.group[row],
    member: (row) => store.rows.member[row],
    family: (row) => store.rows.family[row],
    outcome: (row) => OUTCOMES.indexOf(store.rows.outcome[row]),
    stop: (row) => store.rows.stop[row],
    turns: (row) => store.rows.turns[row],
    invalid: (row) => store.rows.invalid[row],
    reward: (row) => store.rows.reward[row],
    advantage: (row) => store.rows.advantage[row],
    guided: (row) => store.rows.credit[row],
    spread: (row) => spread(store.rows.weights[row]),
  };

  /** Row numbers that pass the filters of `state`, in its order. */
  async function apply(state) {
    const { rows, groups } = store.index;
    const tests = [];
    for (const [name, column] of Object.entries(EXACT)) {
      if (state.has(name)) tests.push((row) => rows[column][row] === state.get(name));
    }
    if (state.has("guided")) tests.push((row) => rows.guided[row] === GUIDED.get(state.get("guided")));
    if (state.has("flagged")) tests.push((row) => rows.flagged[row] > 0);
    if (state.has("steps")) tests.push(within(rows.step, state.get("steps")));
    if (state.has("rollout")) tests.push(within(rows.rollout, state.get("rollout")));
    if (state.has("group")) tests.push((row) => groups.key[rows.group[row]].startsWith(state.get("group")));
    if (state.has("q")) {
      const texts = await store.searchable();
      const terms = termsOf(state.get("q").toLowerCase());
      tests.push((row) => terms.every((term) => texts[row].includes(term)));
    }
    const found = rows.key.map((_, row) => row).filter((row) => tests.every((test) => test(row)));
    return sorted(found, state.get("sort") ?? "");
  }

  /** Words and "phrases in quotes"; a row must hold all of them. */
  function termsOf(text) {
    return (text.match(/"[^"]+"|\S+/g) ?? []).map((term) => term.replace(/^"(.+)"$/, "$1"));
  }

  /** `12` or `10-20`, open at either side. */
  function within(column, text) {
    const match = /^\s*(\d*)\s*(?:(-|–)\s*(\d*))?\s*$/.exec(text);
    if (!match) return () => false;
    const low = match[1] === "" ? -Infinity : Number(match[1]);
    const high = match[2] === undefined ? low : match[3] === "" ? Infinity : Number(match[3]);
    return (row) => column[row] !== null && column[row] >= low && column[row] <= high;
  }

  /** `name` upwards, `-name` downwards; rows without a value come last, equal ones keep the order of the run. */
  function sorted(found, sort) {
    const name = sort.replace(/^-/, "");
    if (!Object.hasOwn(ORDERS, name)) return found;
    const value = ORDERS[name];
    const sign = sort.startsWith("-") ? -1 : 1;
    return found
      .map((row) => [value(row), row])
      .sort(([a, first], [b, second]) => {
        if (a === b) return first - second;
        if (a === null || b === null) return a === null ? 1 : -1;
        return sign * (a < b ? -1 : 1);
      })
      .map(([, row]) => row);
  }

  const spread = (weights) => (weights.length === 0 ? 0 : Math.max(...weights) - Math.min(...weights));

  /** How many filters are set. */
  const count = (state) => FILTERS.filter((name) => state.has(name)).length;

  return { apply, count, spread, FILTERS, OUTCOMES };
})();
