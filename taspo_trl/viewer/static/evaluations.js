"use strict";

/* Held-out success with its intervals: a chart over steps and a table, for each evaluation name. */
const evaluations = (() => {
  const { h, svg } = dom;
  /** A section for all evaluations; null without any. */
  function section(all, linked) {
    if (all.length === 0) return null;
    const names = [...new Set(all.map((one) => one.name))];
    const rows = (name) => all.filter((one) => one.name === name);
    return h(
      "section.block",
      { id: "evaluations" },
      h("h2", "Evaluations"),
      h(
        "p.hint",
        "Played without guidance. Rates stand with their 95 % Wilson intervals, means over families with a bootstrap interval; each result is compared in pairs with the first of its name (McNemar, exact).",
      ),
      h(
        "div.charts",
        names.map((name) => plot(name, rows(name), linked)),
      ),
      names.map((name) => h("div.evaluation", h("h3", name), table(name, rows(name)))),
    );
  }

  function plot(name, rows, linked) {
    const points = rows.filter((row) => row.step !== null && row.overall[0] !== null);
    return (
      points.length > 1 &&
      charts.chart({
        title: name,
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

  function table(name, rows) {
    const families = [...new Set(rows.flatMap((row) => row.families.map(([family]) => family)))];
    const body = rows.map((row) =>
      h(
        "tr",
        h("th", { scope: "row" }, row.step === null ? "–" : String(row.step)),
        rateCell(row.overall),
        h("td.interval", interval(row.overall)),
        h("td", row.macro ? macro(row.macro) : "–"),
        h("td", words.short(row.score)),
        h("td", words.fixed(row.turns, 1)),
        h("td", String(row.num_plays)),
        h("td", { class: row.num_failed > 0 ? "warn" : "" }, String(row.num_failed)),
        h("td", paired(row.since_first)),
      ),
    );
    const heads = [
      "step",
      "success",
      "95 % interval",
      "mean over families",
      "score",
      "turns",
      "plays",
      "failed plays",
      "since the first",
    ];
    return [
      h(
        "div.table-frame",
        h(
          "table",
          { "aria-label": `Evaluations ${name}` },
          h(
            "thead",
            h(
              "tr",
              heads.map((head) => h("th", { scope: "col" }, head)),
            ),
          ),
          h("tbody", body),
        ),
      ),
      families.length > 1 && familyTable(rows, families),
    ];
  }

  function familyTable(rows, families) {
    return h(
      "details",
      h("summary", "By family"),
      h(
        "div.table-frame",
        h(
          "table",
          h(
            "thead",
            h(
              "tr",
              h("th", { scope: "col" }, "family"),
              rows.map((row) => h("th", { scope: "col", colspan: 2 }, row.step === null ? "–" : `step ${row.step}`)),
            ),
          ),
          h(
            "tbody",
            families.map((family) =>
              h(
                "tr",
                h("th", { scope: "row" }, family),
                rows.map((row) => {
                  const rate = row.families.find(([one]) => one === family)?.[1];
                  return rate ? [rateCell(rate), h("td.interval", interval(rate))] : h("td", { colspan: 2 }, "–");
                }),
              ),
            ),
          ),
        ),
      ),
    );
  }

  function rateCell([value, , , successes, plays]) {
    return h("td", h("b", words.percent(value)), h("span.quiet", ` ${successes}/${plays}`));
  }

  function macro([value, low, high]) {
    return `${words.percent(value)} [${words.percent(low, 0)} – ${words.percent(high, 0)}]`;
  }

  function paired(test) {
    if (!test) return "–";
    const points = words.signed(100 * test.difference, 1);
    return h(
      "span",
      {
        title: `${test.num_pairs} pairs: ${test.only_first} solved only in the first, ${test.only_later} only in this one`,
      },
      `${points} points, p = ${test.p_value < 0.001 ? test.p_value.toExponential(0).replace("-", "\u2212") : Number(test.p_value.toPrecision(2))}`,
    );
  }

  /** A rate and its interval on a line from 0 to 1. */
  function interval([value, low, high]) {
    if (value === null) return "–";
    const x = (share) => (4 + share * 112).toFixed(1);
    return h(
      "span.interval-line",
      svg(
        "svg",
        { width: 120, height: 14, "aria-hidden": "true" },
        svg("line.base", { x1: x(0), x2: x(1), y1: 7, y2: 7 }),
        svg("line.range", { x1: x(low), x2: x(high), y1: 7, y2: 7 }),
        svg("circle", { cx: x(value), cy: 7, r: 3.5 }),
      ),
      h("span.quiet", `${words.percent(low, 0)} – ${words.percent(high, 0)}`),
    );
  }

  return { section };
})();
