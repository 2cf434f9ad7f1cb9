// The few ways this page touches the document. Text only ever goes in as text.
export const at = (id) => document.getElementById(id);

/** An element with attributes (`class`, `data-…`, …) and children. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Sets a text, and leaves the document alone where it is that already. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Children of `parent`, one per entry: made by `make` once, brought up to date by `update` each time. */
export function each(parent, entries, make, update) {
  while (parent.children.length > entries.length) parent.lastElementChild.remove();
  entries.forEach((entry, place) => {
    const known = parent.children[place] ?? parent.appendChild(make(entry));
    update(known, entry, place);
  });
}

export function svg(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
