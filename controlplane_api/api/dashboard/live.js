// The stream of a page: the API tells by server-sent events when the answer at one of the page's addresses is another one.

const SLOTS = 4; // streams of a browser, which opens six connections to one host: pages ask beside them
const SILENT_MS = 30_000; // the API says something every ten seconds, unless a proxy keeps it back
const [SOON_MS, LATE_MS] = [1000, 30_000]; // until a page asks by itself, and tries the stream again: twice as long each time

/** One of the browser's slots, as what gives it back; null: other pages have them all. */
async function takeSlot() {
  if (!navigator.locks) return () => {};
  for (let slot = 0; slot < SLOTS; slot += 1) {
    const release = await new Promise((taken) => {
      navigator.locks.request(`menura-live-${slot}`, { ifAvailable: true }, (lock) => lock && new Promise(taken)).then(() => taken(null));
    });
    if (release !== null) return release;
  }
  return null;
}

/** `told`: the answer at an address is another one; it is null where the page shall ask for it. `again`: there is no stream, and it
 * is time to ask by oneself. `changed`: whether there is a stream is another thing now. */
export function following({ told, again, changed }) {
  let addresses = [];
  let path = "";
  let stream = null;
  let release = () => {};
  let opening = 0; // an opening that was overtaken opens nothing
  let timer = 0;
  let wait_ms = SOON_MS;
  let state = "opening"; // or live, or lost

  function become(next) {
    if (state === next) return;
    state = next;
    changed();
  }

  function close() {
    opening += 1;
    clearTimeout(timer);
    stream?.close();
    stream = null;
    release();
    release = () => {};
  }

  function lose() {
    close();
    become("lost");
    timer = setTimeout(again, wait_ms * (0.5 + Math.random() / 2));
    wait_ms = Math.min(2 * wait_ms, LATE_MS);
  }

  function hear() {
    clearTimeout(timer);
    timer = setTimeout(lose, SILENT_MS);
    wait_ms = SOON_MS;
    become("live");
  }

  async function open() {
    close();
    const mine = opening;
    const slot = await takeSlot();
    if (mine !== opening) return slot?.();
    if (slot === null) return lose();
    release = slot;
    stream = new EventSource(`${path}/live?${new URLSearchParams(addresses.map((address) => ["address", address]))}`);
    stream.addEventListener("beat", hear);
    stream.addEventListener("error", lose);
    stream.addEventListener("message", (event) => {
      hear();
      const { number, answer = null } = JSON.parse(event.data);
      told(addresses[number], answer);
    });
    timer = setTimeout(lose, SILENT_MS);
  }

  return {
    state: () => state,
    close,
    lose,
    /** Follows these addresses of a tenant's path; a stream of the same ones goes on, unless `isAnew`. */
    follow: (tenant, wanted, isAnew) => {
      const isOther = path !== tenant || addresses.join("\n") !== wanted.join("\n");
      if (!isOther && !isAnew) return;
      [path, addresses] = [tenant, wanted];
      open();
    },
  };
}
