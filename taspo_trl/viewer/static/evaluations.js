"use strict";

/* Held-out success: before and after with the paired test, then a chart over steps and a table, for each name. */
const evaluations = (() => {
  const { h, svg } = dom;

  const title = (name) => name.replace(/^eval_(?=.)/, "");
  const step = (row) => (row.step === null ? "–" : `step ${row.step}`);
  /** How replies were drawn, as a word; empty where the file does not say. */
  const decoding = ({ temperature }) =>
    temperature === null ? "" : temperature === 0 ? "greedy" : `sampled, temperature ${words.short(temperature)}`;

  /** A section for all evaluations; null without any. */
  function section(all, linked) {
    if (all.length === 0) return null;
    const names = [...new Set(all.map((one) => one.name))];
    const rows = (name) => all.filter((one) => one.name === name);
    const series = names.map((name) => plot(name, rows(name), linked)).filter(Boolean);
    return h(
      "section.block",
      { id: "evaluations" },
      h("h2", "Evaluations, before and after"),
      h(
        "p.hint",
        "Held-out tasks, played without guidance. Bars are 95 % Wilson intervals; each result is compared with the first of its name on the tasks that both have (McNemar, exact).",
      ),
      h(
        "div.results",
        names.map((name) => result(name, rows(name))),
      ),
      series.length > 0 && h("div.charts", series),
      h(
        "details",
        h("summary", "All numbers"),
        names.map((name) => h("div.evaluation", h("h3", title(name)), table(name, rows(name)))),
      ),
    );
  }

  // ---- before and after ------------------------------------------------------------------------------------------

  function result(name, rows) {
    const [first, last] = [rows[0], rows.at(-1)];
    const isPair = rows.length > 1;
    return h(
      "article.result",
      h("h3", title(name), " ", decoding(first) && h("span.tag", decoding(first))),
      h(
        "p.change",
        isPair && [h("span.from", words.percent(first.overall[0])), h("span.arrow", { "aria-label": "to" }, "→")],
        h("span.to", words.percent(last.overall[0])),
        isPair && last.since_first && difference(last.since_first),
      ),
      h(
        "div.ranges",
        (isPair ? [first, last] : [first]).map((row, k) => [
          h("span.quiet", isPair ? (k === 0 ? "before" : "after") : ""),
          range(row.overall, k === 1 || !isPair),
        ]),
      ),
      h("p.quiet", verdict(first, last)),
    );
  }

  function difference(test) {
    const side = test.p_value < 0.05 ? (test.difference > 0 ? "yes" : "bad") : "";
    return h("span", { class: `tag ${side}` }, `${words.signed(100 * test.difference, 1)} points`);
  }

  function verdict(first, last) {
    const test = last.since_first;
    if (!test)
      return first === last
        ? `${step(first)}, ${words.count(first.num_plays, "play")}; nothing to compare with yet`
        : `${step(first)} to ${step(last)}; not one task in common`;
    return [
      `${step(first)} to ${step(last)}, ${words.count(test.num_pairs, "task")} in pairs: `,
      h("b", String(test.only_later)),
      " solved only after, ",
      h("b", String(test.only_first)),
      ` only before, p = ${words.probability(test.p_value)}`,
      test.p_value >= 0.05 && " (may be chance)",
    ];
  }

  /** A rate and its interval on a line from 0 to 1 that is as wide as its box. */
  function range([value, low, high], isLast) {
    if (value === null) return h("span.quiet", "nothing usable");
    const at = (share) => `${(2 + 96 * share).toFixed(2)}%`;
    return h(
      "span.range",
      {
        role: "img",
        "aria-label": `${words.percent(value)}, interval ${words.percent(low)} to ${words.percent(high)}`,
        title: `95 % interval ${words.percent(low)} – ${words.percent(high)}`,
      },
      svg(
        "svg",
        { width: "100%", height: 16, class: isLast ? "last" : "" },
        svg("line.base", { x1: at(0), x2: at(1), y1: 8, y2: 8 }),
        svg("line.range-line", { x1: at(low), x2: at(high), y1: 8, y2: 8 }),
        svg("circle", { cx: at(value), cy: 8, r: 4.5 }),
      ),
    );
  }

  // ---- over steps ------------------------------------------------------------------------------------------------

  function plot(name, rows, linked) {
    const points = rows.filter((row) => row.step !== null && row.overall[0] !== null);
    return (
      points.length > 2 &&
      charts.chart({
        title: title(name),
        format: (value) => words.percent(value),
        tick: words.percentTick,
        low: 0,
        linked,
        series: [
          {
            name: "",
            className: "main",
            points: points.map((row) => [row.step, row.overall[0]]),
            bounds: points.map((row) => row.overall.slice(1, 3)),
          },
        ],
      })
    );
  }

  // ---- tables ----------------------------------------------------------------------------------------------------

  function table(name, rows) {
    const families = [...new Set(rows.flatMap((row) => row.families.map(([family]) => family)))];
    const body = rows.map((row) =>
      h(
        "tr",
        h("th", { scope: "row" }, row.step === null ? "–" : String(row.step)),
        rateCell(row.overall),
        h("td", interval(row.overall)),
        h("td", paired(row.since_first)),
        h("td", row.macro ? macro(row.macro) : "–"),
        h("td", words.short(row.score)),
        h("td", words.fixed(row.turns, 1)),
        h("td", String(row.num_plays)),
        h("td", { class: row.num_failed > 0 ? "warn" : "" }, String(row.num_failed)),
      ),
    );
    const heads = [
      "step",
      "success",
      "95 % interval",
      "since the first",
      "mean over families",
      "score",
      "turns",
      "plays",
      "failed plays",
    ];
    return [frame(`Evaluations ${title(name)}`, heads, body), families.length > 1 && familyTable(name, rows, families)];
  }

  /** By family, each with its change from the first to the last. */
  function familyTable(name, rows, families) {
    const rate = (row, family) => row.families.find(([one]) => one === family)?.[1];
    const body = families.map((family) => {
      const [first, last] = [rate(rows[0], family), rate(rows.at(-1), family)];
      const isPair = rows.length > 1 && first && last && first[0] !== null && last[0] !== null;
      return h(
        "tr",
        h("th", { scope: "row" }, family),
        rows.map((row) => {
          const found = rate(row, family);
          return found ? rateCell(found, interval(found)) : h("td", "–");
        }),
        rows.length > 1 && h("td", isPair ? words.signed(100 * (last[0] - first[0]), 1) : "–"),
      );
    });
    const heads = ["family", ...rows.map(step), ...(rows.length > 1 ? ["points"] : [])];
    return frame(`Success by family, ${title(name)}`, heads, body);
  }

  /** A table in a box of its own, inside which it scrolls. */
  function frame(label, heads, body) {
    return h(
      "div.table-frame",
      { tabindex: 0, role: "region", "aria-label": label },
      h(
        "table",
        { "aria-label": label },
        h(
          "thead",
          h(
            "tr",
            heads.map((head) => h("th", { scope: "col" }, head)),
          ),
        ),
        h("tbody", body),
      ),
    );
  }

  function rateCell([value, , , successes, plays], title) {
    return h("td", { title }, h("b", words.percent(value)), h("span.quiet", ` ${successes}/${plays}`));
  }

  const interval = ([value, low, high]) =>
    value === null ? "–" : `${words.percent(low)} – ${words.percent(high)}`;

  function macro([value, low, high]) {
    return `${words.percent(value)} [${words.percent(low, 0)} – ${words.percent(high, 0)}]`;
  }

  function paired(test) {
    if (!test) return "–";
    return h(
      "span",
      {
        title: `${test.num_pairs} pairs: ${test.only_first} solved only in the first, ${test.only_later} only in this one`,
      },
      `${words.signed(100 * test.difference, 1)} points, p = ${words.probability(test.p_value)}`,
    );
  }

  /** What curves of rollouts and these evaluations have to do with each other, as one sentence. */
  function beside(all) {
    const kinds = (test) => [...new Set(all.filter(test).map((one) => title(one.name)))];
    const greedy = kinds((one) => one.temperature === 0);
    const sampled = kinds((one) => one.temperature > 0);
    const start = "Rollouts are sampled at the training temperature, on training tasks";
    if (greedy.length === 0 && sampled.length === 0) return `${start}.`;
    if (greedy.length === 0) return `${start}; ${sampled.join(", ")} are sampled too, on held-out ones.`;
    return `${start}, while ${greedy.join(", ")} are played greedily: the two need not meet, and greedy success also rises when a policy only becomes surer${sampled.length > 0 ? `, which ${sampled.join(", ")} tell apart` : ""}.`;
  }

  return { section, beside };
})();
