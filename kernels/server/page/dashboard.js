// The page shows what the server's own routes say (docs/http-api.md) and asks nobody else. Everything that people or models wrote
// goes in as text, never as markup.

//
// numbers, as the command line writes them (pyrun/console.py)
//

export function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function size(bytes) {
  if (bytes < 1000) return `${bytes.toFixed(0)} B`;
  for (const [unit, scale, digits] of [["kB", 1e3, 1], ["MB", 1e6, 1], ["GB", 1e9, 2]]) {
    // What rounding would show as 1000.0 belongs to the next unit.
    if (bytes / scale < 1000 - 0.5 / 10 ** digits) return `${(bytes / scale).toFixed(digits)} ${unit}`;
  }
  return `${(bytes / 1e12).toFixed(2)} TB`;
}

export const count = (n) => Math.round(n).toLocaleString("en-US");

// A wait: short ones are told in milliseconds, because they differ.
const wait = (ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms / 1000));
const share = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(0)} %` : "0 %");
const ago = (ms) => `${duration(Math.max(0, (Date.now() - ms) / 1000))} ago`;
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
// Time that was saved; of little it says little, and it can be below zero where restoring was slower.
const saved = (ms) => (ms < 0 ? `−${wait(-ms)}` : wait(ms));

//
// elements
//

const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick" || name === "onchange") made[name] = value;
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Words of a prompt: whichever way they run, they stay in their own box.
const words = (text) => el("bdi", { class: "words", dir: "auto", tabindex: text.length > 600 ? "0" : undefined }, text);

function facts(into, pairs) {
  into.replaceChildren(...pairs.flatMap(([name, value, style]) => [el("dt", {}, name), el("dd", style ? { class: style } : {}, value)]));
}

// Parts of a whole, as [class, amount]; the label says what it shows to those who do not see it.
function bar(parts, whole, label) {
  const made = svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label });
  let x = 0;
  for (const [style, amount] of parts) {
    const width = whole > 0 ? Math.min(100 - x, (100 * amount) / whole) : 0;
    made.append(svg("rect", { class: style, x, y: 0, width, height: 10 }));
    x += width;
  }
  return made;
}

// One column for each of the last days, of parts on top of each other. columns: {day_ms, label, parts: [[class, amount]]}.
function columns(columns_, caption, limit = 0) {
  const n = columns_.length;
  const highest = Math.max(limit, 1e-9, ...columns_.map((c) => c.parts.reduce((sum, [, amount]) => sum + amount, 0)));
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${4 * n} 40`, preserveAspectRatio: "none", role: "img", "aria-label": caption });
  columns_.forEach((column, i) => {
    let y = 40;
    const group = svg("g", {}, svg("title", {}, column.label));
    for (const [style, amount] of column.parts) {
      const height = (40 * amount) / highest;
      y -= height;
      group.append(svg("rect", { class: style, x: 4 * i + 0.4, y, width: 3.2, height }));
    }
    chart.append(group);
  });
  if (limit > 0) chart.append(svg("line", { class: "limit", x1: 0, x2: 4 * n, y1: 40 - (40 * limit) / highest, y2: 40 - (40 * limit) / highest }));
  const list = el("ul", {}, ...columns_.filter((c) => c.parts.some(([, amount]) => amount > 0)).map((c) => el("li", {}, c.label)));
  return [chart, el("figcaption", {}, caption), el("details", {}, el("summary", {}, "as text"), list)];
}

function tell(trouble) {
  $("trouble").hidden = !trouble;
  if ($("trouble").textContent !== trouble) $("trouble").textContent = trouble;
}

//
// asking the server
//

const KEY = "llama-run-key"; // of this tab's storage: it is gone when the tab is
let model = null; // where the server routes between several
let keyAsked = null;

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function askForKey(wrong) {
  keyAsked ??= new Promise((resolve) => {
    $("key-text").textContent = wrong
      ? "That is not the server's key."
      : "This server wants its API key. It is kept until this tab is closed.";
    $("key").value = "";
    $("key-dialog").showModal();
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, $("key").value);
      $("key-dialog").close();
      keyAsked = null;
      resolve();
    };
  });
  return keyAsked;
}
$("key-dialog").addEventListener("cancel", (event) => event.preventDefault()); // nothing can be shown without it

async function ask(path, { method = "GET", body, signal } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...(body ? { "Content-Type": "application/json" } : {}) };
    const about = model ? `${path}?model=${encodeURIComponent(model)}` : path;
    const answer = await fetch(about.slice(1), { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
    if (answer.status === 401) {
      if (keyAsked || key === sessionStorage.getItem(KEY)) await askForKey(key !== null);
      continue;
    }
    if (!answer.ok) {
      const message = await answer.json().then((told) => told.error.message, () => `the server answers with ${answer.status}`);
      throw new Refused(answer.status, message);
    }
    return answer;
  }
}

const get = async (path) => (await ask(path)).json();

// Where several models are served, each has a cache of its own: those that are loaded can be looked at.
async function findModels() {
  const known = (await (await ask("/v1/models")).json()).data;
  const loaded = known.filter((one) => (one.status?.value ?? "loaded") === "loaded").map((one) => one.id);
  $("models").hidden = false;
  if (!loaded.includes(model)) model = loaded[0] ?? null;
  const listed = [...$("model-choice").options].map((option) => option.value);
  if (listed.join("\n") !== loaded.join("\n")) {
    $("model-choice").replaceChildren(...loaded.map((id) => el("option", { value: id, selected: id === model }, id)));
  }
  if (!model) throw new Refused(400, "No model is loaded yet: the first request loads one.");
}

//
// now
//

let slots = { slots: [], waiting: [], at: 0 };
let cache = { enabled: false };

const PHASES = { idle: "idle", busy: "busy for somebody else", restoring: "restoring", evaluating: "evaluating the prompt", answering: "answering" };
const WAITS = { slot: "a free slot", files: "its files", prefix: "the same beginning, which another request evaluates" };

// Until the prompt is evaluated; null where nothing is known. The first batch tells nothing before its end, but others did.
function timeLeft(slot) {
  if (slot.phase !== "evaluating") return null;
  if (slot.left_ms !== undefined) return slot.left_ms;
  const speed = cache.speed?.eval_tokens_per_s ?? 0;
  return speed > 0 ? Math.max(0, (1000 * (slot.tokens - slot.tokens_reused)) / speed - slot.for_ms) : null;
}

function lane(slot) {
  const made = el("li", { class: "lane" });
  const text = [el("strong", {}, `Slot ${slot.id}`), el("span", {}, PHASES[slot.phase] ?? slot.phase)];
  if (slot.tokens) {
    const done = slot.tokens_reused + slot.tokens_evaluated;
    const left_ms = timeLeft(slot);
    // Between two events the clock goes on here.
    const left = left_ms === null ? "" : `, about ${duration(Math.max(0, left_ms - (Date.now() - slots.at)) / 1000)} left`;
    const speed = slot.tokens_per_s > 0 ? `, ${slot.tokens_per_s.toFixed(1)} tokens/s` : "";
    const said = slot.phase === "answering"
      ? `${plural(slot.tokens_answered, "token")}${speed}`
      : slot.phase === "restoring"
        ? `${count(slot.tokens)} tokens, for ${wait(slot.for_ms)}`
        : `${count(done)} of ${count(slot.tokens)} tokens, ${count(slot.tokens_reused)} reused${speed}${left}`;
    made.append(el("div", { class: "row" }, ...text, el("span", { class: "numbers faint" }, said)));
    made.append(bar([["reused", slot.tokens_reused], ["evaluated", slot.tokens_evaluated]], slot.tokens,
      `slot ${slot.id}: ${count(done)} of ${count(slot.tokens)} tokens of the prompt, ${count(slot.tokens_reused)} reused`));
  } else {
    made.append(el("div", { class: "row" }, ...text));
  }
  return made;
}

function showNow() {
  $("lanes").replaceChildren(...slots.slots.map(lane));
  $("line").textContent = slots.waiting.length === 0
    ? "Nobody waits."
    : `${plural(slots.waiting.length, "request")} waiting: ${slots.waiting.slice(0, 8).map((one) => `${count(one.tokens)} tokens for ${WAITS[one.waits_for] ?? one.waits_for}`).join("; ")}${slots.waiting.length > 8 ? "; ..." : ""}`;
  const speed = cache.speed ?? {};
  const predictions = cache.plan?.predictions;
  facts($("speeds"), [
    ["Evaluating", speed.eval_tokens_per_s > 0 ? `${speed.eval_tokens_per_s.toFixed(1)} tokens/s` : "not measured yet"],
    ["Reading", speed.disk_bytes_per_s > 0 ? `${size(speed.disk_bytes_per_s)}/s` : "not measured yet"],
    ["Copying", speed.copy_bytes_per_s > 0 ? `${size(speed.copy_bytes_per_s)}/s` : "not measured yet"],
    ...(predictions?.recent > 0 ? [["Predictions", `${share(predictions.within_1_5, 1)} right within a factor of 1.5`]] : []),
  ]);
}

//
// saved
//

const DAY = 86400000;
let totals = null;

const dayName = (ms) => new Date(ms).toLocaleDateString("en-GB", { timeZone: "UTC", day: "numeric", month: "short" });

// The last 30 days, also those on which nothing happened.
function lastDays(value) {
  const today = Math.floor(Date.now() / DAY) * DAY;
  const known = new Map(totals.days.map((day) => [day.day_ms, day]));
  return Array.from({ length: 30 }, (_, i) => today - (29 - i) * DAY).map((day_ms) => ({ day_ms, ...value(known.get(day_ms), dayName(day_ms)) }));
}

const NOTHING = { requests: 0, tokens_reused: 0, tokens_evaluated: 0, saved_ms: 0, bytes_written: 0, bytes_read: 0 };

function showSaved() {
  if (!totals?.ever) {
    $("saved-facts").replaceChildren();
    $("saved-chart").replaceChildren(el("p", {}, "Nothing is counted while the cache is off."));
    return;
  }
  const today = totals.days.find((day) => day.day_ms === Math.floor(Date.now() / DAY) * DAY) ?? NOTHING;
  const { ever } = totals;
  const tokens = (c) => `${count(c.tokens_reused)} of ${count(c.tokens_reused + c.tokens_evaluated)} tokens (${share(c.tokens_reused, c.tokens_reused + c.tokens_evaluated)})`;
  facts($("saved-facts"), [
    ["Today", saved(today.saved_ms), "big"],
    ["", `${tokens(today)} in ${plural(today.requests, "request")}`],
    [`Since ${dayName(totals.since_ms)}`, saved(ever.saved_ms), "big"],
    ["", `${tokens(ever)} in ${plural(ever.requests, "request")}`],
    ["Since the start", cache.requests ? `${tokens(cache.requests)} in ${plural(cache.requests.finished, "request")}` : "nothing"],
  ]);
  $("saved-chart").replaceChildren(...columns(lastDays((day = NOTHING, name) => ({
    label: `${name}: ${count(day.tokens_reused)} tokens reused, ${count(day.tokens_evaluated)} evaluated, ${saved(day.saved_ms)} saved`,
    parts: [["reused", day.tokens_reused], ["evaluated", day.tokens_evaluated]],
  })), "Tokens of prompts in the last 30 days: reused below, evaluated above. Time is that of evaluating everything, less what was spent."));
}

//
// requests
//

const SOURCES = { none: "nothing reused", slot: "from its slot", hot: "from RAM", warm: "from RAM", cold: "from disk", shared_folder: "from the shared folder" };
const REASONS = {
  new_tokens: "the conversation goes on",
  parted: "it departs from what is known",
  nothing_stored: "nothing like it is known",
  other_fingerprint: "it is stored for other settings of the model",
  no_anchor: "the model goes on only where an anchor is",
  recompute_faster: "evaluating was faster than reading",
  corrupt: "a file was damaged",
  io_error: "the disk refused to read",
  no_room: "the context had no room for it",
  off: "the request wanted no cache",
  media: "images and audio are not stored",
};
const REMEDIES = {
  parted: "A date, a random id or a reordered list early in the prompt costs all that follows: put it last.",
  other_fingerprint: "Start with the same model file, K/V cache types, flash attention and RoPE settings.",
  corrupt: "See llama-run cache verify, and look at the disk.",
  io_error: "Check the disk, and who owns the files.",
  no_room: "A larger --ctx, or fewer slots.",
  recompute_faster: "A faster disk, or more --cache-ssd-ram.",
};
let requests = [];
let shownRequests = 20;

// Which conversation a request belongs to: by its title, where it is stored and has one.
function nameOf(one) {
  if (!one.conversation) return [];
  const title = conversations.find((other) => other.hash === one.conversation)?.title;
  return [", ", title ? el("bdi", { dir: "auto" }, title) : el("code", { class: "faint" }, one.conversation)];
}

function request(one) {
  const all = one.tokens_reused + one.tokens_evaluated;
  const made = el("li", { class: "request" });
  made.append(el("div", { class: "row" },
    el("span", {}, el("time", { datetime: new Date(one.at_ms).toISOString(), title: new Date(one.at_ms).toLocaleString() }, ago(one.at_ms)), ...nameOf(one)),
    el("span", { class: "numbers" }, `${count(one.tokens_reused)} of ${count(all)} tokens reused, ${SOURCES[one.cache_source] ?? one.cache_source}`)));
  made.append(bar([["reused", one.tokens_reused], ["evaluated", one.tokens_evaluated]], all,
    `${count(one.tokens_reused)} tokens reused, ${count(one.tokens_evaluated)} evaluated`));
  const speed = one.answer_ms > 0 && one.tokens_answered > 1 ? ` at ${((1000 * (one.tokens_answered - 1)) / one.answer_ms).toFixed(1)} tokens/s` : "";
  const planned = one.planned_ms === undefined ? "" : `, planned ${wait(one.planned_ms)}`;
  const parts = [[one.queue_ms, "waiting"], [one.restore_ms, "restoring"]].filter(([ms]) => ms >= 1).map(([ms, what]) => `${wait(ms)} ${what}`);
  const first = one.first_token_ms === undefined ? "no token came" : `first token after ${wait(one.first_token_ms)}`;
  made.append(el("div", { class: "row faint numbers" },
    el("span", {}, `${first}${parts.length ? ` (${parts.join(", ")})` : ""}${planned}`), el("span", {}, `${plural(one.tokens_answered, "token")} answered${speed}`)));
  if (one.cache_miss && one.cache_miss.reason !== "none") {
    const reason = one.cache_miss.reason;
    made.append(el("div", {}, `${count(one.tokens_evaluated)} evaluated: ${REASONS[reason] ?? reason}${one.cache_miss.at ? ` at token ${count(one.cache_miss.at)}` : ""}`));
    if (one.parted) {
      made.append(words(one.parted.words));
    }
    // Where prompts part late, mostly in the user's own words, there is nothing to do about it.
    const costly = one.parted?.early || one.tokens_evaluated > one.tokens_reused;
    const help = one.parted?.advice || (reason !== "parted" || costly ? REMEDIES[reason] : "");
    if (help) made.append(el("div", { class: "faint" }, help));
  }
  return made;
}

function showRequests() {
  $("request-list").replaceChildren(...requests.slice(0, shownRequests).map(request));
  if (requests.length === 0) $("request-list").append(el("li", {}, "No request has ended since the server started."));
  $("more-requests").hidden = requests.length <= shownRequests;
}
$("more-requests").onclick = () => {
  shownRequests += 50;
  showRequests();
};

//
// conversations
//

let conversations = [];
let shownConversations = 20;

function conversation(one) {
  const name = one.title || one.hash;
  const left = el("div", {}, el("bdi", { class: "title", dir: "auto" }, name),
    el("div", { class: "faint numbers" },
      `${plural(one.turns, "turn")}, ${count(one.tokens)} tokens, ${size(one.bytes_own)} own, ${size(one.bytes_shared)} shared, ${one.tier}, used ${ago(one.last_used_ms)}${one.protected ? ", protected" : ""}${one.expire && one.expire !== "none" ? `, goes after ${one.expire} unused` : ""}`));
  const controls = el("div", { class: "row" });
  if (one.ttl !== undefined) {
    const choice = el("select", { "aria-label": `How long ${name} is kept` },
      ...["none", "5m", "1h", "24h", "forever"].map((ttl) => el("option", { value: ttl, selected: ttl === one.ttl }, ttl === "none" ? "keep: while there is room" : `keep: ${ttl}`)));
    choice.onchange = () => act(() => ask(`/cache/conversations/${one.hash}`, { method: "POST", body: { ttl: choice.value } }));
    controls.append(choice);
  }
  if (one.tier === "cold") {
    const warm = () => act(() => ask(`/cache/conversations/${one.hash}`, { method: "POST", body: { warm: true } }));
    controls.append(el("button", { type: "button", "aria-label": `Warm ${name}: read it into RAM`, title: "reads it into RAM", onclick: warm }, "Warm"));
  }
  controls.append(el("button", { type: "button", "aria-label": `Remove ${name}`, onclick: () => askToRemove(one) }, "Remove"));
  return el("li", { class: "conversation" }, left, controls);
}

function showConversations() {
  const wanted = $("filter").value.trim().toLowerCase();
  const order = $("order").value;
  const found = conversations
    .filter((one) => `${one.title ?? ""} ${one.hash} ${one.tier}`.toLowerCase().includes(wanted))
    .sort((a, b) => (order === "created_ms" ? a[order] - b[order] : b[order] - a[order]));
  // A list that is being used is not replaced below somebody's fingers.
  if ($("conversation-list").contains(document.activeElement) && document.activeElement.tagName === "SELECT") return;
  const focused = document.activeElement?.getAttribute("aria-label");
  $("conversation-list").replaceChildren(...found.slice(0, shownConversations).map(conversation));
  if (found.length === 0) $("conversation-list").append(el("li", {}, conversations.length === 0 ? "None is stored." : "None fits the filter."));
  $("more-conversations").hidden = found.length <= shownConversations;
  if (focused?.startsWith("Remove ") || focused?.startsWith("Warm ")) {
    [...$("conversation-list").querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === focused)?.focus();
  }
}
$("filter").oninput = showConversations;
$("order").onchange = showConversations;
$("more-conversations").onclick = () => {
  shownConversations += 100;
  showConversations();
};

function askToRemove(one) {
  $("remove-what").replaceChildren(el("bdi", { dir: "auto" }, one.title || one.hash));
  $("remove-frees").textContent = `It frees ${size(one.bytes_own)}.${one.bytes_shared > 0 ? ` ${size(one.bytes_shared)} that others need as well stays.` : ""}`;
  $("remove-yes").onclick = () => {
    $("remove-dialog").close();
    act(() => ask(`/cache/conversations/${one.hash}`, { method: "DELETE" }));
  };
  $("remove-dialog").showModal();
}
$("remove-no").onclick = () => $("remove-dialog").close();

// Does something that changes what is stored, and looks again.
async function act(change) {
  try {
    await change();
    tell("");
  } catch (error) {
    tell(error.message);
  }
  await refreshing; // It may have begun before the change.
  diskSeen.at = 0;
  await refresh();
}

//
// disk and RAM
//

let disk = null;
let diskSeen = { at: 0, bytes: -1, damaged: -1 };
const DISK_PAUSE = 60000;
const RATED_BYTES = 300e12; // what drives of half a terabyte are commonly rated for

// The server walks its folder for it: it is asked again only when something has changed there, and not every second then.
async function lookAtDisk() {
  const damaged = Object.values(cache.damaged ?? {}).reduce((sum, n) => sum + n, 0);
  const changed = cache.state?.disk_bytes !== diskSeen.bytes && Date.now() - diskSeen.at > DISK_PAUSE;
  if (!disk || changed || damaged !== diskSeen.damaged) {
    disk = await get("/cache/disk");
    diskSeen = { at: Date.now(), bytes: cache.state?.disk_bytes, damaged };
  }
}

function showDisk() {
  const { state, written } = cache;
  if (!state) {
    $("disk-bars").replaceChildren(el("p", {}, "The cache is off."));
    $("disk-facts").replaceChildren();
    $("written-chart").replaceChildren();
    return;
  }
  const full = (name, used, limit) => [
    el("div", { class: "row" }, el("strong", {}, name), el("span", { class: "numbers" }, `${size(used)} of ${size(limit)} (${share(used, limit)})`)),
    bar([["reused", used]], limit, `${name}: ${size(used)} of ${size(limit)}`),
  ];
  $("disk-bars").replaceChildren(...full("Disk", state.disk_bytes, state.disk_limit), ...full("RAM", state.ram_bytes, state.ram_limit));
  const rows = [];
  for (const one of disk?.models ?? []) {
    rows.push([one.served ? `${one.name || "this model"} (served)` : one.name || `model ${one.fingerprint.slice(0, 8)}`, size(one.bytes)]);
  }
  if (disk) {
    rows.push(["Shared prefixes", size(disk.shared)], ["Conversations' own", size(disk.conversations)]);
    if (cache.restores_at === "anchors") rows.push(["of both, anchors", size(disk.anchors)]);
    rows.push(["Damaged", size(disk.damaged)]);
  }
  const days = totals?.days ?? [];
  const today = days.find((day) => day.day_ms === Math.floor(Date.now() / DAY) * DAY) ?? NOTHING;
  const writtenToday = written?.today ?? today.bytes_written;
  rows.push(["Written today", written?.budget > 0 ? `${size(writtenToday)} of ${size(written.budget)}` : size(writtenToday)]);
  if (totals?.ever) {
    const n = Math.max(1, (Date.now() - totals.since_ms) / DAY);
    const yearly = (365 * totals.ever.bytes_written) / n;
    rows.push(["Written in a year, at this rate", size(yearly)]);
    const rated = written?.disk_rated ?? RATED_BYTES;
    if (yearly > 0) rows.push([`Wear of ${written?.disk_rated ? "this" : "a"} drive rated for ${size(rated)}`, `${((100 * yearly) / rated).toFixed(2)} % a year`]);
  }
  if (written?.disk_rated) rows.push(["Ever written to it, by everything", `${size(written.disk_written)} (${share(written.disk_written, written.disk_rated)})`]);
  if (written?.days_left !== undefined) rows.push(["Until it is worn, at the cache's pace", duration(86400 * written.days_left)]);
  if (state.queued_bytes > 0) rows.push(["Waits to be written", size(state.queued_bytes)]);
  facts($("disk-facts"), rows);
  if (totals?.ever) {
    $("written-chart").replaceChildren(...columns(lastDays((day = NOTHING, name) => ({
      label: `${name}: ${size(day.bytes_written)} written, ${size(day.bytes_read)} read`,
      parts: [["other", day.bytes_written]],
    })), "Written in the last 30 days.", written?.budget ?? 0));
  }
}

//
// experts
//

let experts = null;

function showExperts() {
  $("experts-controls").hidden = !experts?.n_expert;
  if (!experts?.n_expert) {
    $("experts-text").textContent = "This model has none: all of it works on every token.";
    $("heat").replaceChildren();
    return;
  }
  $("track").textContent = experts.tracking_enabled ? "Stop counting" : "Start counting";
  $("track").setAttribute("aria-pressed", experts.tracking_enabled);
  $("experts-text").textContent = `${count(experts.n_expert)} experts in a layer, ${count(experts.n_expert_used)} for each token. ${experts.tracking_enabled ? "Counting" : "Not counting"}; ${plural(experts.total_tokens, "token")} counted.`;
  if (experts.layers.length === 0) {
    $("heat").replaceChildren(el("figcaption", {}, "Nothing is counted yet."));
    return;
  }
  // A path for each of a few shades: a rectangle for each expert would be tens of thousands.
  const shades = 10;
  const paths = Array.from({ length: shades }, () => "");
  const busiest = [];
  experts.layers.forEach((layer, y) => {
    const most = layer.activations[0]?.frequency ?? 0;
    busiest.push(`layer ${layer.layer}: expert ${layer.activations[0]?.expert} does ${(100 * most).toFixed(1)} %, ${layer.activations.filter((one) => one.count === 0).length} did nothing`);
    for (const one of layer.activations) {
      if (one.count > 0) paths[Math.min(shades - 1, Math.floor((shades * one.frequency) / (most || 1)))] += `M${one.expert} ${y}h1v1h-1z`;
    }
  });
  const chart = svg("svg", { class: "heat", viewBox: `0 0 ${experts.n_expert} ${experts.layers.length}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `which experts work, layer by layer: ${experts.layers.length} layers` });
  paths.forEach((d, i) => d && chart.append(svg("path", { d, opacity: (i + 1) / shades })));
  chart.setAttribute("height", String(Math.max(80, Math.min(480, 10 * experts.layers.length))));
  $("heat").replaceChildren(chart, el("figcaption", {}, "Experts from left to right, layers from top to bottom; the fuller, the more of its layer's tokens."),
    el("details", {}, el("summary", {}, "as text"), el("ul", {}, ...busiest.map((line) => el("li", {}, line)))));
}

const changeTracking = async (body) => {
  try {
    experts = await (await ask("/expert-tracking", { method: "POST", body })).json();
    showExperts();
  } catch (error) {
    tell(error.message);
  }
};
$("track").onclick = () => changeTracking({ enabled: !experts.tracking_enabled });
$("forget-counts").onclick = () => changeTracking({ reset: true });

//
// health
//

const SKIPPED = {
  skipped_queue_full: "saves were skipped because the disk is too slow",
  skipped_budget: "saves were skipped because --cache-ssd-max-size is too small",
  skipped_no_space: "saves were skipped because the disk is full",
  skipped_exhausted: "saves were skipped because memory or file handles ran out",
  skipped_io_error: "saves were skipped because the disk failed or is read-only",
  read_errors: "reads were refused by the disk",
  load_failures: "restores were given up",
};

function showHealth() {
  const items = [];
  const bad = (...text) => items.push(el("li", { class: "bad" }, ...text));
  const note = (...text) => items.push(el("li", {}, ...text));
  if (!cache.enabled) {
    bad("The cache is off: ", el("bdi", {}, cache.reason ?? "nothing is known"));
  } else {
    if (cache.last_error) bad("The last save failed: ", el("bdi", {}, cache.last_error));
    for (const [name, text] of Object.entries(SKIPPED)) {
      if (cache.counters[name] > 0) bad(`${count(cache.counters[name])} ${text}.`);
    }
    for (const [reason, n] of Object.entries(cache.damaged)) {
      if (n > 0) bad(`${plural(n, "file")} set aside since the start: ${reason.replaceAll("_", " ")}.`);
    }
    for (const one of (disk?.damaged_files ?? []).slice(0, 10)) bad(el("bdi", {}, `${one.file}: ${one.problem}`));
    if (cache.power?.writes_held) note("Nothing is written: the battery is low.");
    if (cache.takes_state === "at_once") note("State is copied out while nothing is evaluated: this model's device cannot do it beside.");
    if (cache.puts_state === "at_once") note("What is restored is copied in while nothing is evaluated: it goes into host memory, or the device cannot do it beside.");
    if (cache.restores_at === "anchors") note("This model goes on only at anchors, because it folds its past into one state: a prompt that parts between two is evaluated from the one before.");
    if (cache.draft) note("A draft model's state is kept, too.");
  }
  if (!items.some((item) => item.className === "bad")) items.unshift(el("li", {}, "No errors."));
  $("health-list").replaceChildren(...items);
}

//
// chat
//

let messages = [];
let underWay = null;

function bubble(role, text) {
  const made = el("div", { class: "message", "data-role": role, dir: "auto" }, text);
  $("talk").append(made);
  made.scrollIntoView({ block: "nearest" });
  return made;
}

// What was reused, as the answer's timings say it, and how long the first token took.
function reuse(timings, first, planned) {
  if (!timings) return "";
  const all = timings.cache_n + timings.prompt_n;
  const source = SOURCES[timings.cache_source];
  const restored = timings.restore_ms > 0 ? ` in ${wait(timings.restore_ms)}` : "";
  const plan = planned === null ? "" : ` (planned ${wait(planned)})`;
  return `${count(timings.cache_n)} of ${count(all)} tokens reused${source && timings.cache_n > 0 ? `, ${source}${restored}` : ""}; first token after ${wait(first)}${plan}; ${(timings.predicted_per_second ?? 0).toFixed(1)} tokens/s`;
}

// Predicted, where the server can and has measured something like it.
async function predict(body) {
  if (!cache.plan) return null;
  try {
    const plan = await (await ask("/cache/plan", { method: "POST", body })).json();
    return plan.measured ? plan.first_token_ms : null;
  } catch {
    return null;
  }
}

// Gives a function that adds text to an element, once in a frame: tokens can come faster than a page is drawn.
function writer(into) {
  let pending = "";
  return (more) => {
    if (!pending) {
      requestAnimationFrame(() => {
        into.append(pending);
        pending = "";
        $("talk").scrollTop = $("talk").scrollHeight;
      });
    }
    pending += more;
  };
}

async function say(text) {
  bubble("user", text);
  messages.push({ role: "user", content: text });
  const answer = bubble("assistant", "");
  const write = writer(answer);
  const own = messages; // "New chat" begins another list meanwhile.
  const body = { messages: own, stream: true, ...(model ? { model } : {}) };
  underWay = new AbortController();
  $("send").disabled = true;
  $("stop").hidden = false;
  $("talk").setAttribute("aria-busy", "true");
  let content = "";
  let timings = null;
  let first = 0;
  try {
    const planned = await predict({ messages: own });
    const began = performance.now();
    const stream = await ask("/v1/chat/completions", { method: "POST", body, signal: underWay.signal });
    for await (const { data } of serverSent(stream)) {
      if (data === "[DONE]") break;
      const told = JSON.parse(data);
      if (told.error) throw new Error(told.error.message);
      const delta = told.choices?.[0]?.delta ?? {};
      const more = delta.content ?? delta.reasoning_content ?? "";
      if (more && first === 0) first = performance.now() - began;
      content += delta.content ?? ""; // Thoughts are shown, and not sent back.
      write(more);
      timings = told.timings ?? timings;
    }
    $("talk").append(el("p", { class: "faint reuse" }, reuse(timings, first, planned)));
  } catch (error) {
    if (error.name !== "AbortError") {
      answer.classList.add("failed");
      write(content ? `\n${error.message}` : error.message);
    }
  }
  if (content) own.push({ role: "assistant", content });
  else own.pop();
  underWay = null;
  $("send").disabled = false;
  $("stop").hidden = true;
  $("talk").setAttribute("aria-busy", "false");
  $("talk").scrollTop = $("talk").scrollHeight;
}

$("say").onsubmit = (event) => {
  event.preventDefault();
  const text = $("words").value.trim();
  if (!text || underWay) return;
  $("words").value = "";
  say(text);
};
$("words").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("say").requestSubmit();
  }
};
$("stop").onclick = () => underWay?.abort();
$("fresh").onclick = () => {
  underWay?.abort();
  messages = [];
  $("talk").replaceChildren();
  $("words").focus();
};

//
// what comes by itself
//

// The events of a stream, as {event, data}.
async function* serverSent(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/);
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trimStart()).join("\n");
      if (field("data")) yield { event: field("event"), data: field("data") };
    }
  }
}

function connection(state, text) {
  $("connection").dataset.state = state;
  if ($("connection").textContent !== text) $("connection").textContent = text;
}

let started = null;
let listening = null;

async function listen() {
  let pause = 500;
  for (;;) {
    listening = new AbortController();
    try {
      for await (const { event, data } of serverSent(await ask("/cache/events", { signal: listening.signal }))) {
        const told = JSON.parse(data);
        pause = 500;
        if (event === "hello") {
          connection("live", started !== null && told.started_ms !== started ? "live, the server was restarted" : "live");
          started = told.started_ms;
          refresh();
        } else if (event === "slots") {
          slots = { ...told, at: Date.now() };
          showNow();
        } else if (event === "request") {
          requests = [told, ...requests].slice(0, 256);
          showRequests();
          refreshSoon();
        } else if (event === "lost") {
          refresh(); // What is missing is in the list of requests.
        }
      }
      connection("lost", "the server has gone; trying again");
    } catch (error) {
      if (error.status === 400) await findModels().catch((why) => tell(why.message));
      else if (error.name !== "AbortError") connection("lost", error instanceof Refused ? error.message : "the server does not answer; trying again");
    }
    slots = { slots: slots.slots.map(({ id }) => ({ id, phase: "idle" })), waiting: [], at: Date.now() };
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(3000, 2 * pause);
  }
}

$("model-choice").onchange = () => {
  model = $("model-choice").value;
  requests = [];
  disk = null;
  listening?.abort();
};

let refreshing = null;

// Asks for everything that is shown but does not come by itself. While the server sleeps, only what does not wake it.
async function look() {
  try {
    if (!$("models").hidden) await findModels(); // Others may have been loaded since.
    cache = await get("/cache");
    totals = await get("/cache/saved");
    requests = (await get("/cache/requests")).requests;
    experts = await get("/expert-stats");
    conversations = cache.enabled ? (await get("/cache/conversations")).conversations : [];
    if (cache.enabled) await lookAtDisk();
    else disk = null;
    // A server that nobody has given a name for its model calls it by its file.
    $("model").textContent = model ? "" : ((await get("/v1/models")).data[0]?.id ?? "").replace(/^\/.*\//, "");
    tell("");
  } catch (error) {
    if (error instanceof Refused && error.status !== 503) tell(error.message);
  }
  showNow();
  showSaved();
  showRequests();
  showConversations();
  showDisk();
  showExperts();
  showHealth();
}

function refresh() {
  refreshing ??= look().finally(() => {
    refreshing = null;
  });
  return refreshing;
}

let soon = null;
function refreshSoon() {
  soon ??= setTimeout(() => {
    soon = null;
    refresh();
  }, 400);
}

setInterval(() => {
  if (document.visibilityState === "visible" && $("connection").dataset.state === "live") refresh();
}, 10000);
setInterval(() => {
  if (slots.slots.some((slot) => slot.phase === "evaluating")) showNow();
}, 1000);
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") refresh();
});
listen();
