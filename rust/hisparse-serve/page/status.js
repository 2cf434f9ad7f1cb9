// The head of the page: what the node is, whether it grants, and whether what is shown is live.
import { at, each, h, put } from "./dom.js";
import { count, time } from "./format.js";

let standing = { text: "connecting", tone: "warn" };
let connection = "connecting";
let seen = null; // when the node last told something

const BROKEN = {
  reconnecting: "not connected: trying again",
  refused: "not connected: the service is away, or has as many viewers as it takes; trying again",
};

function draw() {
  const broken = BROKEN[connection];
  const old = broken && seen ? `; shown as of ${seen.toLocaleTimeString("en-GB")}` : "";
  put(at("standing"), broken ? broken + old : standing.text);
  document.documentElement.toggleAttribute("data-stale", Boolean(broken));
  at("standing").dataset.tone = broken ? "bad" : standing.tone;
}

/** `live`, `reconnecting` or `refused`. Said aloud only when it changes: `standing` is a polite live region. */
export function showConnection(now) {
  if (now === connection) return;
  connection = now;
  draw();
}

export function showNode(node) {
  const { capacity } = node;
  seen = new Date();
  standing = node.not_ready
    ? { text: node.not_ready, tone: capacity.draining ? "warn" : "bad" }
    : { text: "granting", tone: "good" };
  draw();
  put(at("model"), node.model);
  put(at("backing"), node.backing === "none" ? "an engine’s own" : "this service’s");
  put(at("epoch"), String(capacity.epoch));
  put(at("sequence"), count(capacity.sequence));
  put(at("uptime"), time(node.uptime));
  put(at("waiters"), count(node.waiters));
  put(at("sessions"), count(node.sessions));
  put(at("version"), node.version);
  at("notes").hidden = node.notes.length === 0;
  each(at("notes"), node.notes, () => h("li"), (line, note) => put(line, note));
}
