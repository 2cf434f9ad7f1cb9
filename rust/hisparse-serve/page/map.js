// The page map: one cell per bucket of pages, filled from the bottom by state; runs of one lease share a shade.
import { at, put } from "./dom.js";
import { STATES, count } from "./format.js";

const GAP = 1;
/** Between the parts of a cell, and inside an outline: the card shows through, since neighbours need not contrast. */
const SEAM = 1;

/** Cells of a map of so many buckets in a frame of this width: columns, rows and their size. */
function plan(buckets, width) {
  const size = Math.max(7, Math.min(18, Math.floor(Math.sqrt((width * 250) / Math.max(buckets, 1)))));
  const columns = Math.max(1, Math.min(buckets, Math.floor((width + GAP) / (size + GAP))));
  return { size, columns, rows: Math.ceil(buckets / columns) };
}

export class PageMap {
  constructor() {
    this.canvas = at("map");
    this.frame = at("map-frame");
    this.pool = null;
    this.marked = null;
    this.cursor = null;
    new ResizeObserver(() => this.draw()).observe(this.frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.move(null));
    this.frame.addEventListener("keydown", (event) => this.key(event));
  }

  show(pool) {
    this.pool = pool;
    this.draw();
    const { map } = pool;
    const buckets = map.free.length;
    const one = map.pages_per_bucket;
    put(at("map-scale"), `${count(this.total())} pages in order of their numbers, ${one === 1 ? "one" : count(one)} per cell`);
    const said = STATES.map(([state, name]) => [map[state].reduce((sum, part) => sum + part, 0), name])
      .filter(([amount]) => amount > 0).map(([amount, name]) => `${count(amount)} ${name}`);
    const label = `${buckets} cells: ${said.join(", ")}`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
    if (this.cursor !== null) this.read(false);
  }

  /** Outlines a lease's pages; `null` for none. */
  mark(lease) {
    this.marked = lease;
    this.draw();
  }

  total() {
    const { map } = this.pool;
    return STATES.reduce((sum, [state]) => sum + map[state].reduce((all, part) => all + part, 0), 0);
  }

  draw() {
    if (!this.pool) return;
    const { map } = this.pool;
    const buckets = map.free.length;
    const width = this.frame.clientWidth;
    const dots = window.devicePixelRatio || 1;
    this.cells = plan(buckets, width);
    const { size, columns, rows } = this.cells;
    const height = rows * (size + GAP) - GAP;
    const { canvas } = this;
    if (canvas.width !== Math.round(width * dots) || canvas.height !== Math.round(height * dots)) {
      canvas.width = Math.round(width * dots);
      canvas.height = Math.round(height * dots);
      canvas.style.height = `${height}px`;
    }
    const paint = canvas.getContext("2d");
    paint.setTransform(dots, 0, 0, dots, 0, 0);
    paint.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const colours = Object.fromEntries(STATES.map(([state]) => [state, colour(state)]));
    const others = { committed: colour("committed-2"), reserved: colour("reserved-2") };
    const edge = colour("free-edge");
    for (let bucket = 0; bucket < buckets; bucket += 1) {
      const [x, y] = this.place(bucket);
      const pages = STATES.reduce((sum, [state]) => sum + map[state][bucket], 0);
      let bottom = y + size;
      for (const [state] of STATES) {
        if (map[state][bucket] === 0) continue;
        const part = (size * map[state][bucket]) / pages;
        const seam = bottom < y + size && part > 2 * SEAM ? SEAM : 0;
        paint.fillStyle = (map.lease[bucket] % 2 === 1 && others[state]) || colours[state];
        paint.fillRect(x, bottom - part, size, part - seam);
        if (state === "free") this.edge(paint, edge, [x, bottom - part, size, part - seam]);
        bottom -= part;
      }
    }
    this.outline(paint, colour("mark"), colour("card"));
  }

  /** What is free is pale and has an edge, which contrasts. */
  edge(paint, colour, [x, y, width, height]) {
    paint.strokeStyle = colour;
    paint.lineWidth = 1;
    if (height > 2) paint.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  place(bucket) {
    const { size, columns } = this.cells;
    return [(bucket % columns) * (size + GAP), Math.floor(bucket / columns) * (size + GAP)];
  }

  outline(paint, colour, card) {
    const { size } = this.cells;
    const one = this.pool.map.pages_per_bucket;
    const inner = 2 + SEAM / 2;
    for (const run of this.marked?.extents ?? []) {
      const last = Math.floor((run.first_page + run.page_count - 1) / one);
      for (let bucket = Math.floor(run.first_page / one); bucket <= last; bucket += 1) {
        const [x, y] = this.place(bucket);
        paint.strokeStyle = colour;
        paint.lineWidth = 2;
        paint.strokeRect(x + 1, y + 1, size - 2, size - 2);
        paint.strokeStyle = card;
        paint.lineWidth = SEAM;
        paint.strokeRect(x + inner, y + inner, size - 2 * inner, size - 2 * inner);
      }
    }
    if (this.cursor === null) return;
    const [x, y] = this.place(this.cursor);
    paint.strokeStyle = colour;
    paint.lineWidth = 2;
    paint.setLineDash([2, 2]);
    paint.strokeRect(x, y, size, size);
    paint.setLineDash([]);
  }

  point(event) {
    if (!this.cells) return;
    const { size, columns } = this.cells;
    const column = Math.floor(event.offsetX / (size + GAP));
    const bucket = Math.floor(event.offsetY / (size + GAP)) * columns + column;
    this.move(column < columns && bucket < this.pool.map.free.length ? bucket : null);
  }

  key(event) {
    if (!this.cells) return;
    const buckets = this.pool.map.free.length;
    const { columns } = this.cells;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -buckets, End: buckets };
    if (event.key === "Escape") return this.move(null);
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.move(this.cursor === null ? 0 : Math.max(0, Math.min(buckets - 1, this.cursor + steps[event.key])));
  }

  move(bucket) {
    if (bucket === this.cursor) return;
    this.cursor = bucket;
    this.draw();
    this.read(true);
  }

  /** Says what is under the cursor: aloud only when somebody moved it. */
  read(moved) {
    const line = at("map-readout");
    line.setAttribute("aria-live", moved ? "polite" : "off");
    if (this.cursor === null) return put(line, "Point at the map, or move over it with the arrow keys.");
    const { map, leases } = this.pool;
    const parts = STATES.filter(([state]) => map[state][this.cursor] > 0);
    const pages = parts.reduce((sum, [state]) => sum + map[state][this.cursor], 0);
    const first = this.cursor * map.pages_per_bucket;
    const range = pages === 1 ? `page ${count(first)}` : `pages ${count(first)} to ${count(first + pages - 1)}`;
    const lease = leases[map.lease[this.cursor] - 1];
    const whose = lease ? `; most of it lease ${lease.id}, ${count(lease.tokens)} tokens` : "";
    put(line, `${range}: ${parts.map(([state, name]) => `${count(map[state][this.cursor])} ${name}`).join(", ")}${whose}`);
  }
}
