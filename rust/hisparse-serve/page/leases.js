// The leases, of which only the rows in sight are in the document.
//
//   ┌ space: the rows above, as one empty row of their height
//   │ rows in sight, and a few on either side
//   └ space: the rows below
import { at, h, put } from "./dom.js";
import { count, time } from "./format.js";

const ROW_PX = 26;
const MARGIN_ROWS = 8;
const WHOLE_IDS_PX = 540;
const COLUMNS = [
  ["id", "lease", (lease, late, whole) => (whole ? lease.id : lease.id.slice(10).replace(/^0+(?=.)/, ""))],
  ["state", "state", (lease) => NAMES[lease.state] ?? lease.state],
  ["age", "age", (lease, late) => `${lease.older ? "> " : ""}${time(lease.age + late)}`],
  ["tokens", "tokens", (lease) => count(lease.tokens)],
  ["pages", "pages", (lease) => count(lease.pages)],
  ["extent_count", "runs", (lease) => count(lease.extent_count)],
];
const NAMES = {
  LEASE_STATE_RESERVED: "reserved",
  LEASE_STATE_COMMITTED: "in use",
  LEASE_STATE_QUARANTINED: "quarantined",
};
const SWATCHES = {
  LEASE_STATE_RESERVED: "reserved",
  LEASE_STATE_COMMITTED: "committed",
  LEASE_STATE_QUARANTINED: "quarantined",
};

export class Leases {
  constructor(mark) {
    this.mark = mark;
    this.sheet = at("leases");
    this.leases = [];
    this.sort = { by: "age", down: true };
    this.current = null;
    this.selected = null;
    this.build();
    this.sheet.addEventListener("scroll", () => this.later());
    this.sheet.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.later()).observe(this.sheet);
    setInterval(() => this.later(), 1000); // ages go on between two events
  }

  build() {
    const heads = COLUMNS.map(([key, name]) => {
      const button = h("button", { type: "button" }, name);
      button.addEventListener("click", () => this.order(key));
      return h("th", { scope: "col", "data-key": key }, button);
    });
    this.body = h("tbody");
    this.table = h("table", { "aria-label": "Leases" }, h("thead", {}, h("tr", { "aria-rowindex": "1" }, ...heads)), this.body);
    this.sheet.replaceChildren(this.table);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-id]");
      if (row) this.select(row.dataset.id);
    });
    this.heads();
  }

  show(pool) {
    this.came = performance.now();
    this.leases = pool.leases;
    const more = pool.leases_total - pool.leases.length;
    const whole = `${count(pool.leases_total)} held`;
    put(at("leases-lead"), more > 0 ? `${whole}; the oldest ${count(pool.leases.length)} are listed` : whole);
    this.arrange();
    const kept = this.leases.find((lease) => lease.id === this.selected) ?? null;
    if (this.selected !== null && kept === null) this.selected = null;
    this.mark(kept);
  }

  order(key) {
    this.sort = { by: key, down: this.sort.by === key ? !this.sort.down : key !== "id" && key !== "state" };
    this.heads();
    this.sheet.scrollTop = 0;
    this.arrange();
  }

  heads() {
    for (const head of this.table.tHead.rows[0].children) {
      const sorted = head.dataset.key === this.sort.by;
      if (sorted) head.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  arrange() {
    const { by, down } = this.sort;
    const turn = down ? -1 : 1;
    const order = (one, two) => (one[by] < two[by] ? -turn : one[by] > two[by] ? turn : one.id < two.id ? -1 : 1);
    this.leases = [...this.leases].sort(order);
    this.draw();
  }

  later() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  draw() {
    const all = this.leases.length;
    const seen = Math.ceil(this.sheet.clientHeight / ROW_PX) + 2 * MARGIN_ROWS;
    const first = Math.max(0, Math.min(all - seen, Math.floor(this.sheet.scrollTop / ROW_PX) - MARGIN_ROWS));
    const shown = this.leases.slice(first, first + seen);
    const late = (performance.now() - (this.came ?? performance.now())) / 1000;
    // A whole id is what other commands take. Where there is no room, its number within one start has to do:
    // leases of earlier starts may have the same, and are told by the `>` before their age.
    this.whole = this.sheet.clientWidth >= WHOLE_IDS_PX;
    this.sheet.classList.toggle("whole", this.whole);
    this.table.setAttribute("aria-rowcount", String(all + 1));
    this.space(0, first * ROW_PX);
    while (this.body.rows.length > shown.length + 2) this.body.deleteRow(this.body.rows.length - 2);
    while (this.body.rows.length < shown.length + 2) this.body.insertBefore(this.row(), this.body.lastElementChild);
    shown.forEach((lease, place) => this.fill(this.body.rows[place + 1], lease, first + place, late));
    this.space(this.body.rows.length - 1, (all - first - shown.length) * ROW_PX);
  }

  row() {
    const cells = COLUMNS.map((_, place) => h("td", {}, ...(place === 1 ? [h("span", { class: "swatch", "aria-hidden": "true" })] : []), h("span")));
    return h("tr", {}, ...cells);
  }

  space(place, height) {
    const row = this.body.rows[place] ?? this.body.appendChild(h("tr", { class: "space", "aria-hidden": "true" }, h("td")));
    if (this.body.rows.length === 1) this.body.appendChild(row.cloneNode(true));
    row.firstElementChild.style.height = `${height}px`;
  }

  fill(row, lease, place, late) {
    const [selected, current] = [lease.id === this.selected, place === this.current];
    // Attributes are left alone where they are right: to set one costs as much as to change it.
    const now = `${lease.id} ${place} ${selected} ${current}`;
    if (row.dataset.now !== now) {
      row.dataset.now = now;
      row.dataset.id = lease.id;
      row.title = `lease ${lease.id}`;
      row.id = `lease-${place}`;
      row.setAttribute("aria-rowindex", String(place + 2));
      row.setAttribute("aria-selected", String(selected));
      row.classList.toggle("current", current);
    }
    const swatch = row.children[1].firstElementChild;
    const state = SWATCHES[lease.state] ?? "free";
    if (swatch.dataset.state !== state) swatch.dataset.state = state;
    COLUMNS.forEach(([, , shown], column) => put(row.children[column].lastElementChild, shown(lease, late, this.whole)));
  }

  key(event) {
    if (event.target !== this.sheet) return;
    const page = Math.floor(this.sheet.clientHeight / ROW_PX) - 2;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.leases.length, End: this.leases.length };
    if (event.key === "Enter" && this.current !== null) return this.select(this.leases[this.current]?.id);
    if (event.key === "Escape") return this.select(null);
    if (!(event.key in steps) || this.leases.length === 0) return;
    event.preventDefault();
    const from = this.current ?? -1;
    this.current = Math.max(0, Math.min(this.leases.length - 1, from + steps[event.key]));
    const [top, below] = [this.current * ROW_PX, (this.current + 2) * ROW_PX - this.sheet.clientHeight];
    this.sheet.scrollTop = Math.max(below, Math.min(top, this.sheet.scrollTop));
    this.draw();
    this.sheet.setAttribute("aria-activedescendant", `lease-${this.current}`);
  }

  select(id) {
    this.selected = id === this.selected ? null : id ?? null;
    this.mark(this.leases.find((lease) => lease.id === this.selected) ?? null);
    this.draw();
  }
}
