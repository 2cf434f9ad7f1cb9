// Swap-in as engines report it: hits and misses of each layer group since the service started.
import { at, each, h, put } from "./dom.js";
import { count } from "./format.js";

function make() {
  const bar = h("div", { class: "bar", "aria-hidden": "true" }, h("span", { "data-state": "hit" }), h("span", { "data-state": "miss" }));
  return h("div", { class: "pool" }, h("div", { class: "name" }, h("span"), h("span")), bar);
}

export function showSwapIn(groups) {
  const seen = groups.filter((group) => group.hit_rows + group.miss_rows > 0);
  const part = at("swap");
  if (seen.length === 0) {
    if (part.firstElementChild?.tagName !== "P") part.replaceChildren(h("p", { class: "muted" }, "no engine reports yet"));
    return;
  }
  if (part.firstElementChild?.tagName === "P") part.replaceChildren();
  each(part, seen, make, (row, group) => {
    const all = group.hit_rows + group.miss_rows;
    const [name, bar] = row.children;
    put(name.children[0], group.layer_group === "all" ? "all layers" : `layer group ${group.layer_group}`);
    put(name.children[1], `${((100 * group.hit_rows) / all).toFixed(1)} % of ${count(all)} rows were hits`);
    bar.children[0].style.width = `${(100 * group.hit_rows) / all}%`;
    bar.children[1].style.width = `${(100 * group.miss_rows) / all}%`;
    row.dataset.group = group.layer_group;
  });
}
