// How many more requests of each length fit now, and what stops the next one.
import { at, each, h, put } from "./dom.js";
import { count, poolName, tokens } from "./format.js";

const WHY = {
  POOL_BUSY: (pool) => `${pool} busy`,
  QUOTA: (pool) => `quota of ${pool}`,
  NEVER_FITS: (pool) => `never fits: ${pool}`,
  DRAINING: () => "draining",
  RECOVERING: () => "recovering",
};

/** What the next request of a length meets. */
function meets({ binding, reason }) {
  const why = WHY[reason] ?? ((pool) => `${reason || "a fault"}: ${pool}`);
  return why(poolName(binding));
}

export function showFits({ capacity, fits }) {
  put(at("largest"), count(capacity.largest_grant_tokens));
  const make = () => h("tr", {}, h("th", { scope: "row" }), h("td", { class: "n" }), h("td", { class: "why" }));
  each(at("fits").tBodies[0], fits, make, (row, fit) => {
    const [length, more, why] = row.children;
    row.dataset.tokens = fit.tokens;
    row.dataset.binding = fit.binding;
    put(length, tokens(fit.tokens));
    put(more, count(fit.count));
    more.toggleAttribute("data-none", fit.count === 0);
    row.dataset.reason = fit.reason;
    put(why, meets(fit));
  });
}
