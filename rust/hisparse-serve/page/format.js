// Numbers as people read them.
const grouped = new Intl.NumberFormat("en-US");

export const count = (number) => grouped.format(number);

/** A length in tokens: 8K is 8,192. Lengths that are no round number stay whole. */
export function tokens(number) {
  if (number >= 1 << 20 && number % (1 << 20) === 0) return `${number / (1 << 20)}M`;
  if (number >= 1024 && number % 1024 === 0) return `${count(number / 1024)}K`;
  return count(number);
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (number >= 1024 && place < units.length - 1) [number, place] = [number / 1024, place + 1];
  return `${number >= 100 || place === 0 ? Math.round(number) : number.toFixed(1)} ${units[place]}`;
}

export function time(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)}\u00a0%` : "–");

/** What people call a pool, and what it is counted in. */
export const POOLS = {
  host_pages: ["host pages", "pages"],
  seats: ["seats", "seats"],
  indexer_tokens: ["indexer tokens", "tokens"],
  request_slots: ["request slots", "requests"],
  window_tokens: ["window tokens", "tokens"],
};

export const poolName = (name) => POOLS[name]?.[0] ?? name.replaceAll("_", " ");

/** The states of a pool in the order in which bars show them, with what people call them. */
export const STATES = [
  ["committed", "in use"],
  ["reserved", "reserved"],
  ["quarantined", "quarantined"],
  ["scrubbing", "being zeroed"],
  ["evictable", "cached"],
  ["free", "free"],
];
