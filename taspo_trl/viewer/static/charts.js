"use strict";

/*
 * Small line charts as inline SVG, drawn for the width they have, so that lines and letters stay crisp.
 *
 * Charts that share a `Linked` show the same step: hovering one reads the values off all. With the focus on a chart the
 * arrow keys move along its steps.
 */
const charts = (() => {
  const { h, svg } = dom;
  const HEIGHT = 150;
  const MARGIN = { top: 8, right: 10, bottom: 22, left: 46 };

  /** Charts that are read at the same step. */
  class Linked {
    members = new Set();
    at(x) {
      for (const member of this.members) member.at(x);
    }
  }

  /**
   * A chart of one or more lines.
   *
   * @param {object} spec
   *   title, format (value -> text), tick (value, distance of ticks -> text), linked, low (the axis reaches down to it),
   *   series: [{ name, className, points: [[x, y], ...], bounds: [[low, high], ...] }], the last one on top;
   *   isStacked: each series starts where the one before it ends, and the values stand in a legend.
   */
  function chart(spec) {
    const series = spec.isStacked ? stacked(spec.series) : spec.series;
    const xs = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
    const scale = scaleOf(spec, series);
    const readout = h("span.chart-readout");
    const canvas = h("div.chart-canvas");
    const legend = spec.isStacked && h("div.legend");
    const figure = h(
      "figure",
      { class: `chart ${spec.className ?? ""}` },
      h("figcaption", h("span.chart-title", spec.title), readout),
      canvas,
      legend,
    );
    let width = 0;
    let place = null; // functions of the drawing that is on the page
    let current = null;

    function draw() {
      width = canvas.clientWidth;
      if (width < 80) return;
      const x = along(xs[0], xs.at(-1), MARGIN.left, width - MARGIN.right);
      const y = along(scale.low, scale.high, HEIGHT - MARGIN.bottom, MARGIN.top);
      const cursor = svg("g.cursor");
      place = { x, y, cursor };
      dom.show(
        canvas,
        svg(
          "svg",
          {
            width,
            height: HEIGHT,
            tabindex: 0,
            role: "img",
            "aria-label": summary(spec, series),
            onpointermove: (event) => tell(nearest(event)),
            onpointerleave: () => tell(null),
            onkeydown: walk,
          },
          grid(scale, xs, x, y, width, spec.tick ?? spec.format),
          series.map((one) => shape(one, x, y)),
          cursor,
        ),
      );
      at(current);
    }

    function nearest(event) {
      const left = canvas.getBoundingClientRect().left;
      const position = event.clientX - left;
      return xs.reduce((best, x) => (Math.abs(place.x(x) - position) < Math.abs(place.x(best) - position) ? x : best));
    }

    function walk(event) {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const now = current === null ? (step > 0 ? -1 : xs.length) : xs.indexOf(current);
      tell(xs[Math.max(0, Math.min(xs.length - 1, now + step))]);
    }

    function tell(x) {
      if (spec.linked) spec.linked.at(x);
      else at(x);
    }

    /** Shows the values at x, or the last ones. */
    function at(x) {
      current = x;
      const shown = x ?? xs.at(-1);
      dom.show(readout, h("span.at", `step ${shown}`), (legend ? total : values)(spec, series, shown));
      if (legend) dom.show(legend, keys(spec, shown));
      if (!place) return;
      const points =
        x === null ? [] : series.map((one) => [one, valueAt(one, x)]).filter(([, value]) => value !== undefined);
      dom.show(
        place.cursor,
        points.length > 0 && [
          svg("line", { x1: place.x(x), x2: place.x(x), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
          points.map(([one, value]) =>
            svg("circle", { class: one.className, cx: place.x(x), cy: place.y(value), r: 3 }),
          ),
        ],
      );
    }

    new ResizeObserver(() => {
      if (canvas.clientWidth !== width) draw();
    }).observe(canvas);
    spec.linked?.members.add({ at });
    at(null);
    return figure;
  }

  // ---- parts of a drawing ----------------------------------------------------------------------------------------

  function grid(scale, xs, x, y, width, format) {
    const distance = Math.max(1, roundStep((xs.at(-1) - xs[0]) / Math.floor(width / 80) || 1));
    const steps = multiples(xs[0], xs.at(-1), distance).filter(Number.isInteger);
    return svg(
      "g.grid",
      scale.ticks.map((value) => [
        svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
        svg("text", { x: MARGIN.left - 6, y: y(value) + 3.5, "text-anchor": "end" }, format(value, scale.distance)),
      ]),
      steps.map((step) => svg("text", { x: x(step), y: HEIGHT - 6, "text-anchor": "middle" }, String(step))),
    );
  }

  function shape(one, x, y) {
    const line = one.points
      .map(([step, value], k) => `${k ? "L" : "M"}${x(step).toFixed(1)},${y(value).toFixed(1)}`)
      .join("");
    const group = svg("g", { class: one.className });
    if (one.isArea) {
      const back = one.points
        .map(([step], k) => `L${x(step).toFixed(1)},${y(one.floor[k]).toFixed(1)}`)
        .reverse()
        .join("");
      group.append(svg("path.area", { d: `${line}${back}Z` }));
    } else if (one.points.length > 1) {
      group.append(svg("path.line", { d: line }));
    }
    (one.bounds ?? []).forEach(([low, high], k) => {
      const at = x(one.points[k][0]);
      group.append(
        svg("path.whisker", { d: `M${at},${y(low)}V${y(high)}M${at - 3},${y(low)}h6M${at - 3},${y(high)}h6` }),
      );
    });
    if (one.points.length === 1 || one.bounds) {
      for (const [step, value] of one.points) group.append(svg("circle.dot", { cx: x(step), cy: y(value), r: 3 }));
    }
    return group;
  }

  /** The lines' values at x, as text. */
  function values(spec, series, x) {
    return series.map((one) => {
      const value = valueAt(one, x);
      if (value === undefined) return null;
      const bounds = one.bounds?.[one.points.findIndex(([at]) => at === x)];
      const range = bounds ? ` [${bounds.map((bound) => spec.format(bound)).join(" – ")}]` : "";
      return [" · ", h("span.value", `${one.name ? `${one.name} ` : ""}${spec.format(value)}${range}`)];
    });
  }

  function total(spec, series, x) {
    const value = Math.max(...series.map((one) => valueAt(one, x) ?? 0));
    return [" · ", h("span.value", spec.format(value))];
  }

  /** The legend of a stack, with the values at x. */
  function keys(spec, x) {
    return spec.series.map((one) => {
      const value = valueAt(one, x);
      return h(
        "span",
        { class: `key ${one.className}` },
        one.name,
        " ",
        h("span.value", value === undefined ? "–" : spec.format(value)),
      );
    });
  }

  function summary(spec, series) {
    const parts = series.map((one) => {
      const last = one.points.at(-1);
      const value = one.floor ? last[1] - one.floor.at(-1) : last[1];
      return `${one.name || spec.title}: ${spec.format(value)} at step ${last[0]}, ${words.count(one.points.length, "value")}`;
    });
    return `${spec.title}. ${parts.join("; ")}. Arrow keys read single steps.`;
  }

  // ---- numbers ---------------------------------------------------------------------------------------------------

  function stacked(series) {
    const floor = new Map();
    return series.map((one) => {
      const low = one.points.map(([x]) => floor.get(x) ?? 0);
      const points = one.points.map(([x, y], k) => [x, y + low[k]]);
      points.forEach(([x, y]) => floor.set(x, y));
      return { ...one, points, floor: low, isArea: true };
    });
  }

  /** An axis from round number to round number. */
  function scaleOf(spec, series) {
    const all = series.flatMap((one) => [...one.points.map(([, y]) => y), ...(one.bounds ?? []).flat()]);
    let low = all.reduce((least, y) => Math.min(least, y), spec.low ?? Infinity);
    let high = all.reduce((most, y) => Math.max(most, y), -Infinity);
    if (low === high)
      [low, high] = [low === spec.low ? low : low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
    const distance = roundStep((high - low) / 4);
    low = Math.floor(low / distance + 1e-9) * distance;
    high = Math.ceil(high / distance - 1e-9) * distance;
    return { low, high, distance, ticks: multiples(low, high, distance) };
  }

  /** The round number from `raw` upwards: 1, 2, 2.5 or 5 times a power of ten. */
  function roundStep(raw) {
    const power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
  }

  function multiples(low, high, distance) {
    const first = Math.ceil(low / distance - 1e-9);
    const last = Math.floor(high / distance + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * distance).toPrecision(12)));
  }

  /** A linear function that takes a to c and b to d. */
  function along(a, b, c, d) {
    return a === b ? () => (c + d) / 2 : (value) => c + ((value - a) / (b - a)) * (d - c);
  }

  function valueAt(one, x) {
    return one.points.find(([at]) => at === x)?.[1];
  }

  /** The mean of each point and the ones before it, as many as `window` in all. */
  function averaged(points, window = 5) {
    return points.map(([x], end) => {
      const part = points.slice(Math.max(0, end - window + 1), end + 1);
      return [x, part.reduce((sum, [, y]) => sum + y, 0) / part.length];
    });
  }

  return { chart, averaged, Linked };
})();
