"use strict";
/* Charts on a canvas: lines with bands, and histograms. Text and colours follow the page's style. */

const Chart = (() => {
  const MARGIN = { left: 64, right: 30, top: 12, bottom: 44 };
  const DASHES = { line: [], dashed: [6, 4], dotted: [2, 3] };

  function style(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  /** Numbers as people read them: 12,000, 0.35, 1e-7. */
  function number(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e9 || size < 1e-4) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
    return value.toLocaleString("en", { maximumSignificantDigits: 4, useGrouping: size >= 1000 });
  }

  /** The ends of an axis that has all values; a logarithmic one leaves out what is not positive. */
  function extent(lists, log) {
    let low = Infinity;
    let high = -Infinity;
    for (const list of lists) {
      for (const value of list) {
        if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (low > high) return log ? [1, 10] : [0, 1];
    if (low === 0 && high === 0) return [0, 1];
    const same = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)); /* ticks between would be equal */
    if (same) return log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    return [low, high];
  }

  function ticks([low, high], log, count) {
    if (log) {
      const first = Math.floor(Math.log10(low));
      const last = Math.ceil(Math.log10(high));
      const factors = last - first <= 2 ? [1, 2, 5] : [1];
      const every = Math.max(1, Math.ceil((last - first) / count));
      const places = [];
      for (let power = first; power <= last; power += every)
        for (const factor of factors) places.push(factor * 10 ** power);
      return places.filter((place) => place >= low * 0.999 && place <= high * 1.001);
    }
    const rough = (high - low) / count;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * unit).find((k) => k >= rough);
    const places = [];
    for (let place = Math.ceil(low / step) * step; place <= high + step / 1e6; place += step)
      places.push(Math.abs(place) < step / 1e6 ? 0 : place);
    return places;
  }

  /** A canvas of the size of its element, scaled to the screen, and its context. */
  function prepare(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(240, canvas.clientWidth);
    const height = Math.max(160, canvas.clientHeight);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = style("--panel");
    context.fillRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    return { context, width, height };
  }

  function axes(canvas, options, xs, ys) {
    const { context, width, height } = prepare(canvas);
    const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const scale = (range, log, from, to) => {
      const at = log ? Math.log10 : (value) => value;
      const [low, high] = range.map(at);
      return (value) => from + ((at(value) - low) / (high - low)) * (to - from);
    };
    const x = scale(xs, options.xlog, box.left, box.right);
    const y = scale(ys, options.ylog, box.bottom, box.top);
    context.lineWidth = 1;
    context.strokeStyle = style("--grid");
    context.fillStyle = style("--muted");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const place of ticks(ys, options.ylog, 5)) {
      line(context, [[box.left, y(place)], [box.right, y(place)]]);
      context.fillText(number(place), box.left - 6, y(place));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const place of ticks(xs, options.xlog, Math.max(2, Math.floor((box.right - box.left) / 90)))) {
      line(context, [[x(place), box.top], [x(place), box.bottom]]);
      context.fillText(number(place), x(place), box.bottom + 6);
    }
    context.fillStyle = style("--text");
    context.fillText(options.xlabel, (box.left + box.right) / 2, box.bottom + 24);
    context.save();
    context.translate(12, (box.top + box.bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(options.ylabel, 0, -6);
    context.restore();
    return { context, box, x, y };
  }

  function line(context, places) {
    context.beginPath();
    places.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
  }

  /** The mean of several curves and its standard deviation, at the places of the first one that all reach. */
  function band(runs) {
    if (runs.length === 1) return { x: runs[0].x, mean: runs[0].y, low: null, high: null };
    const end = Math.min(...runs.map((run) => run.x[run.x.length - 1]));
    const places = runs[0].x.filter((place) => place <= end);
    const values = runs.map((run) => interpolate(run, places));
    const mean = [];
    const low = [];
    const high = [];
    places.forEach((_, k) => {
      const here = values.map((list) => list[k]).filter((value) => value !== null && Number.isFinite(value));
      const middle = here.length ? here.reduce((a, b) => a + b, 0) / here.length : null;
      const spread = here.length > 1 ? Math.sqrt(here.reduce((a, b) => a + (b - middle) ** 2, 0) / (here.length - 1)) : 0;
      mean.push(middle);
      low.push(middle === null ? null : middle - spread);
      high.push(middle === null ? null : middle + spread);
    });
    return { x: places, mean, low, high };
  }

  function interpolate({ x, y }, places) {
    let k = 0;
    return places.map((place) => {
      while (k < x.length - 2 && x[k + 1] < place) k += 1;
      if (x.length === 1 || y[k] === null || y[k + 1] === null) return y[k];
      const part = x[k + 1] === x[k] ? 0 : (place - x[k]) / (x[k + 1] - x[k]);
      return y[k] + Math.min(1, Math.max(0, part)) * (y[k + 1] - y[k]);
    });
  }

  /** Lines: options.series is [{name, colour, dash, runs: [{x, y}]}]. Returns what it drew, for the CSV file. */
  function lines(canvas, options) {
    const drawn = options.series.map((one) => ({ ...one, ...band(one.runs) })).filter((one) => one.x.length);
    const xs = extent(drawn.map((one) => one.x), options.xlog);
    const ys = extent(drawn.flatMap((one) => [one.mean, one.low || [], one.high || []]), options.ylog);
    const { context, box, x, y } = axes(canvas, options, xs, ys);
    context.save();
    context.beginPath();
    context.rect(box.left, box.top - 2, box.right - box.left, box.bottom - box.top + 4);
    context.clip();
    const shown = (place, value) =>
      value !== null && Number.isFinite(value) && (!options.ylog || value > 0) && (!options.xlog || place > 0);
    for (const one of drawn) {
      if (one.low) {
        const floor = options.ylog ? ys[0] : -Infinity;
        const places = one.x.map((place, k) => [place, Math.max(floor, one.low[k] ?? NaN), one.high[k]]).filter(([place, low, high]) => shown(place, low) && shown(place, high));
        context.beginPath();
        places.forEach(([place, , high], k) => (k ? context.lineTo(x(place), y(high)) : context.moveTo(x(place), y(high))));
        places.reverse().forEach(([place, low]) => context.lineTo(x(place), y(low)));
        context.globalAlpha = 0.18;
        context.fillStyle = one.colour;
        context.fill();
        context.globalAlpha = 1;
      }
      context.strokeStyle = one.colour;
      context.lineWidth = 1.8;
      context.setLineDash(DASHES[one.dash || "line"]);
      const places = one.x.map((place, k) => [place, one.mean[k]]).filter(([place, value]) => shown(place, value));
      line(context, places.map(([place, value]) => [x(place), y(value)]));
      context.setLineDash([]);
    }
    context.restore();
    point(canvas, drawn, { x, y, box, options });
    return drawn;
  }

  /** Show the values under the pointer: the nearest place of every line. */
  function point(canvas, drawn, { x, y, box, options }) {
    const tip = canvas.parentElement.querySelector(".tip");
    if (!tip) return;
    canvas.onpointerleave = () => (tip.hidden = true);
    canvas.onpointermove = (event) => {
      const here = event.offsetX;
      tip.hidden = here < box.left - 4 || here > box.right + 4 || !drawn.length;
      if (tip.hidden) return;
      const rows = drawn.map((one) => {
        let best = 0;
        one.x.forEach((place, k) => { if (Math.abs(x(place) - here) < Math.abs(x(one.x[best]) - here)) best = k; });
        return [one, best];
      });
      const first = rows[0][0].x[rows[0][1]];
      tip.replaceChildren(...[`${options.xlabel} ${number(first)}`, ...rows.slice(0, 12).map(([one, k]) => `${one.name}: ${one.mean[k] === null ? "–" : number(one.mean[k])}`)].map((text, k) => {
        const row = document.createElement("div");
        row.textContent = text;
        if (k) row.style.borderLeft = `4px solid ${rows[k - 1][0].colour}`;
        return row;
      }));
      const beyond = here > (box.left + box.right) / 2;
      tip.style.left = beyond ? "auto" : `${canvas.offsetLeft + here + 14}px`;
      tip.style.right = beyond ? `${canvas.parentElement.clientWidth - canvas.offsetLeft - here + 14}px` : "auto";
      tip.style.top = `${canvas.offsetTop + 16}px`;
    };
  }

  /** Bars beside each other: options.series is [{name, colour, counts: {place: count}}], drawn as shares. */
  function histogram(canvas, options) {
    const last = Math.max(1, ...options.series.flatMap((one) => Object.keys(one.counts).map(Number)));
    const shares = options.series.map((one) => {
      const total = Object.values(one.counts).reduce((a, b) => a + b, 0) || 1;
      return { ...one, x: Object.keys(one.counts).map(Number), mean: Object.values(one.counts).map((count) => count / total) };
    });
    const top = Math.max(1e-9, ...shares.flatMap((one) => one.mean));
    const { context, x, y, box } = axes(canvas, options, [-0.5, last + 0.5], [0, top * 1.05]);
    const width = Math.max(1, ((x(1) - x(0)) * 0.9) / Math.max(1, shares.length));
    shares.forEach((one, k) => {
      context.fillStyle = one.colour;
      one.x.forEach((place, j) => {
        const left = x(place) - (width * shares.length) / 2 + k * width;
        context.fillRect(left, y(one.mean[j]), width, box.bottom - y(one.mean[j]));
      });
    });
    return shares;
  }

  return { lines, histogram, prepare, style, number };
})();
