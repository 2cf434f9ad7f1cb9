// The stream of events, kept open: the browser reconnects by itself after a break, we do after a refusal.
const AGAIN_MS = 5000;

export function follow(address, told) {
  const source = new EventSource(address);
  for (const kind of ["node", "pool"]) {
    source.addEventListener(kind, (event) => {
      told.connection("live");
      told[kind](JSON.parse(event.data));
    });
  }
  source.addEventListener("error", () => {
    if (source.readyState !== EventSource.CLOSED) {
      told.connection("reconnecting");
      return;
    }
    told.connection("refused");
    setTimeout(() => follow(address, told), AGAIN_MS);
  });
}
