// Admits of the last minutes by how they ended: a stacked column per step.
import { at, each, h, put, svg } from "./dom.js";
import { count } from "./format.js";

const HEIGHT = 120;
/** Between the bands of a column, in the picture's own units: the card shows through, since neighbours need not contrast. */
const SEAM = 1.2;
const BANDS = [
  ["granted", "granted"],
  ["POOL_BUSY", "pool busy"],
  ["QUOTA", "quota"],
  ["NEVER_FITS", "never fits"],
  ["other", "other refusals and ends"],
];

/** Which band a series is part of; validations and repeats grant nothing new. */
function band({ result, reason }) {
  if (result === "granted") return "granted";
  return BANDS.some(([key]) => key === reason) ? reason : "other";
}

function bands(admits) {
  const steps = Math.max(1, ...admits.series.map((series) => series.counts.length));
  const sums = Object.fromEntries(BANDS.map(([key]) => [key, Array(steps).fill(0)]));
  for (const series of admits.series) {
    series.counts.forEach((counted, step) => { sums[band(series)][step] += counted; });
  }
  return { steps, sums };
}

/** A round number that is at least this. */
function ceiling(number) {
  const ten = 10 ** Math.floor(Math.log10(Math.max(number, 1)));
  return [1, 2, 5, 10].map((factor) => factor * ten).find((round) => round >= number);
}

function build(chart) {
  const picture = svg("svg", { role: "img", viewBox: "0 0 100 122", preserveAspectRatio: "none", "aria-label": "" });
  picture.append(svg("path", { class: "axis", fill: "none", "vector-effect": "non-scaling-stroke" }));
  for (const [key] of BANDS) picture.append(svg("path", { "data-state": key }));
  const legend = h("div", { class: "legend" }, ...BANDS.map(([key, name]) =>
    h("span", {}, h("span", { class: "swatch", "data-state": key, "aria-hidden": "true" }), name)));
  const scale = h("p", { class: "scale muted small" }, h("span"), h("span"), h("span"));
  chart.append(scale, picture, legend);
}

function draw(admits) {
  const chart = at("admits-chart");
  if (!chart.firstElementChild) build(chart);
  const { steps, sums } = bands(admits);
  const [scale, picture] = chart.children;
  const tallest = Math.max(...Array.from({ length: steps }, (_, step) => BANDS.reduce((sum, [key]) => sum + sums[key][step], 0)));
  const most = ceiling(tallest);
  const width = 100 / admits.most_steps;
  const under = Array(steps).fill(0);
  picture.querySelector(".axis").setAttribute("d", `M0 0H100M0 ${HEIGHT / 2}H100M0 ${HEIGHT}H100`);
  BANDS.forEach(([key], place) => {
    let path = "";
    sums[key].forEach((counted, step) => {
      if (counted === 0) return;
      const x = 100 - (steps - step) * width;
      const [lower, top] = [under[step], under[step] + counted].map((sum) => HEIGHT - (sum * HEIGHT) / most);
      const bottom = under[step] > 0 && lower - top > 2 * SEAM ? lower - SEAM : lower;
      under[step] += counted;
      path += `M${x.toFixed(3)} ${bottom.toFixed(2)}V${top.toFixed(2)}h${(width * 0.86).toFixed(3)}V${bottom.toFixed(2)}z`;
    });
    picture.children[place + 1].setAttribute("d", path);
  });
  const minutes = (admits.most_steps * admits.step) / 60;
  put(scale.children[0], `${minutes} min ago`);
  put(scale.children[1], `up to ${count(most)} in ${admits.step} s`);
  put(scale.children[2], "now");
  picture.setAttribute("aria-label", `Admits per ${admits.step} s over ${minutes} minutes, at most ${count(tallest)}; the table below has the sums`);
}

export function showAdmits(admits) {
  const { sums } = bands(admits);
  const all = (key) => sums[key].reduce((sum, counted) => sum + counted, 0);
  const refused = BANDS.slice(1).reduce((sum, [key]) => sum + all(key), 0);
  put(at("admits-lead"), `${count(all("granted"))} granted and ${count(refused)} not in the last ${(admits.most_steps * admits.step) / 60} minutes`);
  draw(admits);
  const sheet = at("admits-table");
  if (!sheet.tHead) {
    const heads = ["how it ended", "lately", "since the start"].map((name, place) => h("th", { scope: "col", class: place ? "n" : null }, name));
    sheet.append(h("thead", {}, h("tr", {}, ...heads)), h("tbody"));
  }
  const make = () => h("tr", {}, h("th", { scope: "row" }), h("td", { class: "n" }), h("td", { class: "n" }));
  each(sheet.tBodies[0], admits.series, make, (row, series) => {
    put(row.children[0], series.reason ? `${series.result}: ${series.reason}` : series.result);
    put(row.children[1], count(series.counts.reduce((sum, counted) => sum + counted, 0)));
    put(row.children[2], count(series.total));
  });
}
