// What a checker of accessibility would look at: each gives a list of what is wrong.
const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
const luminance = ([red, green, blue]) =>
  0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
const contrast = (one, two) => {
  const [high, low] = [luminance(one), luminance(two)].sort((first, second) => second - first);
  return (high + 0.05) / (low + 0.05);
};
/** The map's dots, read from a copy. */
const dots = () => {
  const map = document.getElementById("map");
  const copy = Object.assign(document.createElement("canvas"), { width: map.width, height: map.height });
  const paint = copy.getContext("2d", { willReadFrequently: true });
  paint.drawImage(map, 0, 0);
  return paint.getImageData(0, 0, map.width, map.height);
};
const checks = {
  nameless() {
    const kinds = "button, a[href], summary, canvas, svg[role=img], table, section, [role=region], [role=group]";
    const named = (part) => part.getAttribute("aria-label") || part.textContent.trim()
      || document.getElementById(part.getAttribute("aria-labelledby"))?.textContent.trim();
    return [...document.querySelectorAll(kinds)].filter((part) => !named(part)).map((part) => part.outerHTML.slice(0, 120));
  },
  doubleIds() {
    const ids = [...document.querySelectorAll("[id]")].map((part) => part.id);
    return ids.filter((id, place) => ids.indexOf(id) !== place);
  },
  brokenReferences() {
    const names = ["aria-labelledby", "aria-describedby", "aria-activedescendant"];
    return names.flatMap((name) => [...document.querySelectorAll(`[${name}]`)].map((part) => part.getAttribute(name)))
      .filter((id) => !document.getElementById(id));
  },
  /** Text whose contrast with the ground behind it is below 4.5 to 1. */
  faint() {
    const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
      paint.clearRect(0, 0, 1, 1);
      paint.fillStyle = colour;
      paint.fillRect(0, 0, 1, 1);
      return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const ground = (part) => {
      for (let at = part; at; at = at.parentElement) {
        const colour = rgba(getComputedStyle(at).backgroundColor);
        if (colour[3] > 200) return colour;
      }
      return [255, 255, 255];
    };
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode.textContent.trim();
      const part = texts.currentNode.parentElement;
      if (!text || !part.checkVisibility() || part.closest(".unseen, script, .skip, svg")) continue;
      const ratio = contrast(rgba(getComputedStyle(part).color), ground(part));
      if (ratio < 4.5) found.push([ratio.toFixed(2), part.tagName, part.className, text.slice(0, 40)]);
    }
    return found;
  },
  /** The colours of the map. */
  colours() {
    const { data } = dots();
    const found = new Set();
    for (let place = 0; place < data.length; place += 4) {
      if (data[place + 3] === 255) found.add(data.slice(place, place + 3).join());
    }
    return [...found];
  },
  /** Colours that follow one another down the map, contrast less than 3 to 1, and have nothing of the card between them. */
  touching() {
    const { data, width, height } = dots();
    const found = new Set();
    for (let x = 0; x < width; x += 1) {
      let [last, thinnest] = [null, 255];
      for (let y = 0; y < height; y += 1) {
        const place = 4 * (y * width + x);
        const alpha = data[place + 3];
        thinnest = Math.min(thinnest, alpha);
        if (alpha < 255) continue;
        const colour = [...data.slice(place, place + 3)];
        const same = last && Math.max(...colour.map((part, at) => Math.abs(part - last[at]))) < 12;
        // Half of a seam that lies between two rows of dots still lets half of the card through.
        if (last && !same && thinnest > 160 && contrast(last, colour) < 3) found.add(`${last} above ${colour}`);
        [last, thinnest] = [colour, 255];
      }
    }
    return [...found];
  },
};
