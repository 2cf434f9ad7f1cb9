// Pools as bars by state, and the same as a table.
import { at, each, h, put } from "./dom.js";
import { POOLS, STATES, count, percent, poolName } from "./format.js";

/** A bar: one run of colour per state, as wide as its share. */
export function drawBar(bar, pool) {
  const make = () => h("span");
  each(bar, STATES, make, (run, [state]) => {
    run.dataset.state = state;
    const width = pool.total > 0 ? `${(100 * pool[state]) / pool.total}%` : "0";
    run.hidden = pool[state] === 0;
    if (run.style.width !== width) run.style.width = width;
  });
}

function makePool() {
  const name = h("div", { class: "name" }, h("span"), h("span", {}, h("b"), h("span")));
  return h("div", { class: "pool" }, name, h("div", { class: "bar", "aria-hidden": "true" }));
}

function updatePool(part, pool) {
  const [name, bar] = part.children;
  const [label, figures] = name.children;
  part.dataset.pool = pool.name;
  const place = pool.numa_node === null ? "" : ` on NUMA node ${pool.numa_node}`;
  put(label, `${poolName(pool.name)}${place}`);
  put(figures.children[0], count(pool.free));
  const cached = pool.evictable > 0 ? `, ${count(pool.evictable)} cached` : "";
  put(figures.children[1], ` free${cached} of ${count(pool.total)} (${percent(pool.free + pool.evictable, pool.total)})`);
  drawBar(bar, pool);
}

function legend(pools) {
  const shown = STATES.filter(([state]) => state === "free" || pools.some((pool) => pool[state] > 0));
  const make = () => h("span", {}, h("span", { class: "swatch", "aria-hidden": "true" }), h("span"));
  each(at("legend"), shown, make, (entry, [state, name]) => {
    entry.firstElementChild.dataset.state = state;
    put(entry.lastElementChild, name);
  });
}

function table(pools) {
  const sheet = at("pools-table");
  if (!sheet.tHead) {
    const heads = STATES.map(([, name]) => h("th", { scope: "col", class: "n" }, name));
    const first = [h("th", { scope: "col" }, "pool"), h("th", { scope: "col", class: "n" }, "all")];
    sheet.append(h("thead", {}, h("tr", {}, ...first, ...heads)), h("tbody"));
  }
  const make = () => h("tr", {}, h("th", { scope: "row" }), ...["total", ...STATES].map(() => h("td", { class: "n" })));
  each(sheet.tBodies[0], pools, make, (row, pool) => {
    row.dataset.pool = pool.name;
    put(row.children[0], `${poolName(pool.name)} (${POOLS[pool.name]?.[1] ?? "units"})`);
    put(row.children[1], count(pool.total));
    STATES.forEach(([state], place) => {
      row.children[place + 2].dataset.is = state;
      put(row.children[place + 2], count(pool[state]));
    });
  });
}

export function showPools(pools) {
  each(at("pools"), pools, makePool, updatePool);
  legend(pools);
  table(pools);
}
