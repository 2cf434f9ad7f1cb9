// What a checker of accessibility would look at: each gives a list of what is wrong.
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
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const luminance = ([red, green, blue]) =>
      0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
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
      const pair = [luminance(rgba(getComputedStyle(part).color)), luminance(ground(part))].sort((one, two) => two - one);
      const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
      if (ratio < 4.5) found.push([ratio.toFixed(2), part.tagName, part.className, text.slice(0, 40)]);
    }
    return found;
  },
};
