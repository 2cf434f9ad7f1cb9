// Scrolls through all leases and says how long each picture took, in milliseconds, and how many rows the document had.
const frames = async () => {
  const sheet = document.getElementById("leases");
  const [took, rows] = [[], []];
  const steps = 120;
  let before = performance.now();
  for (let step = 0; step <= steps; step += 1) {
    sheet.scrollTop = (sheet.scrollHeight * step) / steps;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    took.push(now - before);
    before = now;
    rows.push(sheet.querySelectorAll("tbody tr").length);
  }
  took.sort((one, two) => one - two);
  const at = (share) => Number(took[Math.floor((took.length - 1) * share)].toFixed(2));
  return { frames: took.length, p50_ms: at(0.5), p95_ms: at(0.95), max_ms: at(1), most_rows: Math.max(...rows) };
};
