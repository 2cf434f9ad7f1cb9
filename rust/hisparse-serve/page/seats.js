// Seats, one square each while they are few, and where the pool's memory lies.
import { at, each, h, put } from "./dom.js";
import { STATES, bytes, count, percent } from "./format.js";
import { drawBar } from "./pools.js";

const MOST_SQUARES = 512;
const MOST_LARGE = 128;

function squares(pool) {
  return STATES.flatMap(([state]) => Array(pool[state]).fill(state));
}

function showPool(pool) {
  const parts = STATES.filter(([state]) => pool[state] > 0).map(([state, name]) => `${count(pool[state])} ${name}`);
  const few = pool.total <= MOST_SQUARES;
  const part = at("seats");
  if (part.dataset.few !== String(few)) {
    const picture = few ? h("div", { class: "seating", "aria-hidden": "true" }) : h("div", { class: "bar", "aria-hidden": "true" });
    part.replaceChildren(h("p", { class: "lead" }), picture);
    part.dataset.few = String(few);
  }
  const [lead, picture] = part.children;
  put(lead, `${count(pool.total)} hot buffers: ${parts.join(", ")}`);
  if (!few) return drawBar(picture, pool);
  picture.classList.toggle("small", pool.total > MOST_LARGE);
  each(picture, squares(pool), () => h("span", { class: "seat" }), (seat, state) => { seat.dataset.state = state; });
}

function showNodes(node) {
  const all = node.numa.reduce((sum, share) => sum + share.bytes, 0);
  if (node.numa.length === 0) {
    const why = node.backing === "none" ? "an engine owns the pool’s memory" : "the kernel does not tell where the memory lies";
    at("numa").replaceChildren(h("p", { class: "muted small" }, why));
    return;
  }
  if (at("numa").firstElementChild?.tagName === "P") at("numa").replaceChildren();
  const make = () => h("div", { class: "pool" }, h("div", { class: "name" }, h("span"), h("span")),
    h("div", { class: "bar thin", "aria-hidden": "true" },
      h("span", { "data-state": "committed" }), h("span", { "data-state": "free", class: "rest" })));
  each(at("numa"), node.numa, make, (part, share) => {
    const [name, bar] = part.children;
    put(name.children[0], `node ${share.node}`);
    put(name.children[1], `${bytes(share.bytes)}, ${percent(share.bytes, all)}`);
    bar.firstElementChild.style.width = `${(100 * share.bytes) / all}%`;
  });
}

export function showSeats(node) {
  const seats = node.capacity.pools.find((pool) => pool.name === "seats");
  if (seats) showPool(seats);
  showNodes(node);
}
