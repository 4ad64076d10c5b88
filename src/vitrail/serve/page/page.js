"use strict";
// Talks only to the service that it came from. Text is never parsed as HTML.
const at = (id) => document.getElementById(id);
const state = { model: null, file: null, target: null, turn: 0, abort: null, key: sessionStorage.getItem("vitrail-key") || "" };
const percent = (share) => (100 * share).toLocaleString("en", { maximumFractionDigits: 1 }) + " %";
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

async function request(path, options = {}) {
  const headers = state.key ? { "X-API-Key": state.key } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The service cannot be reached. Is it still running?");
  }
  if (response.status === 401) { at("key-form").hidden = false; at("key").focus(); }
  const data = await response.json().catch(() => ({ error: "the response is not JSON" }));
  if (!response.ok) throw new Error(sentence(data.error));
  return data;
}

function say(text, kind = "") {
  at("status").textContent = text;
  at("status").className = kind;  // "bad", or "spoken": for screen readers only, as the answer itself is visible
}

function form() {
  const data = new FormData();
  data.append("file", state.file, state.file.name || "image");
  return data;
}

async function use(file) {
  if (!file.type.startsWith("image/")) return say(`${file.name} is not an image.`, "bad");
  state.file = file;
  state.target = null;
  show(URL.createObjectURL(file));
  await predict();
}

function show(address) {
  const old = at("picture").src;
  at("overlay").hidden = true;
  at("caption").textContent = "";
  at("picture").src = address;
  if (old.startsWith("blob:")) URL.revokeObjectURL(old);
}

async function predict() {
  const turn = ++state.turn;
  if (state.abort) state.abort.abort();
  state.abort = null;
  say("Computing …");
  at("answer").classList.add("busy");
  try {
    const found = await request("predict?display=1", { method: "POST", body: form() });
    if (state.model && found.generation !== state.model.generation) await loadModel();  // it was reloaded meanwhile
    if (turn !== state.turn) return;
    const result = found.predictions[0];
    at("answer").hidden = false;
    render(result.display);
    at("picture").alt = `The picture. Answer: ${result.display.text}`;
    const spent = result.milliseconds;
    at("latency").textContent = `${found.milliseconds.toFixed(1)} ms in the service: ${spent.computing.toFixed(1)} ms computing`
      + ` (batch of ${result.batch}), ${spent.queued.toFixed(1)} ms in the queue.`;
    say(sentence(result.display.text), "spoken");
    if (canExplain()) await explain();
  } catch (error) {
    if (turn === state.turn) { say(error.message, "bad"); at("answer").hidden = true; }
  } finally {
    if (turn === state.turn) at("answer").classList.remove("busy");
  }
}

const canExplain = () => state.model !== null && state.model.explain.length > 0;

function render({ brief, bars, drawing, parts }) {  // the answer of any task
  const chosen = bars.filter((bar) => bar.chosen).map((bar) => bar.label);
  const [first] = bars;
  at("verdict").textContent = parts.length ? parts.map((part) => part.name).join(", ") : drawing !== null ? brief : bars.length > 1 && chosen.length ? chosen.join(", ") : first ? `${first.label} ${first.text}` : "";
  at("bars").replaceChildren(...bars.map((bar, number) => {
    const item = document.createElement("li");
    item.append(barRow(bar, number === 0));
    return item;
  }));
  at("drawn").hidden = drawing === null;
  if (drawing === null) at("drawing").removeAttribute("src");
  else at("drawing").src = drawing;
  at("drawing").alt = "The answer drawn on the picture";
  at("parts").replaceChildren(...parts.map(partFigure));
  hint();
}

function partFigure({ name, brief, drawing }) {  // one of several tasks
  const figure = document.createElement("figure"), caption = document.createElement("figcaption"), title = document.createElement("b");
  title.textContent = name;
  caption.append(title, ` ${brief}`);
  if (drawing !== null) {
    const image = document.createElement("img");
    image.src = drawing;
    image.alt = `The answer of ${name} drawn on the picture`;
    figure.append(image);
  }
  figure.append(caption);
  return figure;
}

function barRow(bar, pressed) {
  const explains = canExplain() && state.model.outputs.includes(bar.label);
  const row = document.createElement(explains ? "button" : "div");
  const label = document.createElement("b"), text = document.createElement("span");
  row.className = bar.chosen ? "bar chosen" : "bar";
  label.textContent = bar.label;
  text.textContent = bar.text;
  row.append(label, text);
  if (bar.share !== null) {
    const line = document.createElement("i");
    row.append(line);
    if (bar.colour) line.style.background = `rgb(${bar.colour.join(" ")})`;
    requestAnimationFrame(() => { line.style.width = `${100 * bar.share}%`; });
    if (bar.low !== null && 0 <= bar.low && bar.low <= bar.share && bar.share <= bar.high && bar.high <= 1) {
      const interval = document.createElement("u");
      interval.style.left = `${100 * bar.low}%`;
      interval.style.width = `${100 * (bar.high - bar.low)}%`;
      row.append(interval);
    }
  }
  if (explains) {
    row.type = "button";
    row.dataset.output = bar.label;
    row.setAttribute("aria-pressed", String(pressed));
    row.addEventListener("click", () => { state.target = bar.label; explain(); });
  }
  return row;
}

function hint() {
  at("hint").textContent = !canExplain() ? "" : method().targeted ? "Select a line to see which parts of the picture matter for it."
    : "This method shows what the model attends to, for any answer.";
}

const method = () => state.model.explain.find((one) => one.method === at("method").value);

function fill(select, box, options, kept) {  // hidden when there is nothing to choose
  at(select).replaceChildren(...options.map(([text, value]) => new Option(text, value)));
  if (options.some(([, value]) => value === kept)) at(select).value = kept;
  at(box).hidden = options.length === 0;
}

function fillLayers() {
  const count = method().layers, kept = at("layer").value || String(count - 1);
  const suffix = (number) => (number === count - 1 ? " (last)" : number === 0 ? " (first)" : "");
  fill("layer", "layer-box", Array.from({ length: count }, (_, number) => [number + suffix(number), String(number)]), kept);
  fillHeads();
}

function fillHeads() {
  const count = method().heads[Number(at("layer").value)] || 0;
  const heads = Array.from({ length: count }, (_, number) => [String(number), String(number)]);
  fill("head", "head-box", count ? [["Mean of all", ""], ...heads] : [], at("head").value);
}

function explainQuery() {
  const query = new URLSearchParams({ method: at("method").value });
  if (state.target !== null) query.set("target", state.target);
  for (const name of ["layer", "head"]) if (at(name).value) query.set(name, at(name).value);
  return query;
}

function caption(found) {
  const options = [found.method.replaceAll("_", " ")];
  if (found.layer !== null) options.push(`layer ${found.layer}`);
  if (found.head !== null) options.push(`head ${found.head}`);
  const bright = found.targeted ? `bright regions matter most for ${found.target.name}` : "bright regions get the most attention";
  const even = found.contrast < 0.3 ? ` The map is nearly even: it varies by ${percent(found.contrast)}.` : "";
  const size = state.model.image_size.join(" x ");
  return `What the model sees (resized to ${size} pixels); ${bright} (${options.join(", ")}, ${found.milliseconds.toFixed(0)} ms).${even}`;
}

async function explain() {
  if (state.abort) state.abort.abort();  // the service stops work that nobody waits for
  const abort = state.abort = new AbortController();
  at("caption").textContent = "Explaining …";
  let found;
  try {
    found = await request(`explain?${explainQuery()}`, { method: "POST", body: form(), signal: abort.signal });
  } catch (error) {
    if (abort === state.abort) at("caption").textContent = error.message;
    return;
  }
  if (abort !== state.abort) return;
  hint();
  show(found.picture);
  at("overlay").src = found.overlay;
  at("overlay").hidden = false;
  at("overlay").alt = found.targeted ? `Overlay: regions that matter for ${found.target.name} are bright`
    : "Overlay: regions that the model attends to are bright";
  at("caption").textContent = caption(found);
  for (const row of document.querySelectorAll("button.bar")) {
    row.setAttribute("aria-pressed", String(found.targeted && row.dataset.output === found.target.name));
  }
}

async function trySample(sample, button) {
  const image = await fetch(sample.address);
  for (const other of document.querySelectorAll("#samples button")) other.setAttribute("aria-pressed", String(other === button));
  await use(new File([await image.blob()], `${sample.label}.png`, { type: "image/png" }));
}

async function loadSamples() {
  const found = await (await fetch("samples.json")).json();
  at("samples-box").hidden = found.length === 0;
  at("samples").replaceChildren(...found.map((sample) => {
    const item = document.createElement("li"), button = document.createElement("button"), image = document.createElement("img");
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    image.src = sample.address;
    image.alt = `Sample: ${sample.label}`;
    button.append(image);
    button.addEventListener("click", () => trySample(sample, button));
    item.append(button);
    return item;
  }));
}

async function loadModel() {
  const found = state.model = await request("model");
  at("about").textContent = found.about;
  at("backend").textContent = found.backend;
  const size = (found.limits.bytes / 2 ** 20).toFixed(0), pixels = (found.limits.pixels / 1e6).toFixed(0);
  at("limits").textContent = `JPEG, PNG, WebP, GIF, TIFF, BMP; up to ${size} MB and ${pixels} megapixels`;
  at("calibration").textContent = found.calibration ? sentence(found.calibration) : "";
  at("method").replaceChildren(...found.explain.map(({ method: name }) => new Option(name.replaceAll("_", " "), name)));
  at("controls").hidden = found.explain.length === 0;
  if (found.explain.length) fillLayers();
}

at("file").addEventListener("change", () => { if (at("file").files[0]) use(at("file").files[0]); at("file").value = ""; });
at("picture").addEventListener("load", () => { at("stack").classList.toggle("tiny", at("picture").naturalWidth < 100); });
at("method").addEventListener("change", () => { fillLayers(); explain(); });
at("layer").addEventListener("change", () => { fillHeads(); explain(); });
at("head").addEventListener("change", () => explain());
at("strength").addEventListener("input", () => { at("overlay").style.opacity = at("strength").value / 100; });
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = at("key").value;
  sessionStorage.setItem("vitrail-key", state.key);
  loadModel().then(() => { at("key-form").hidden = true; say(""); at("file").focus(); }, (error) => say(error.message, "bad"));
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (file) { event.preventDefault(); use(file); }
});
document.addEventListener("dragover", (event) => { event.preventDefault(); at("drop").classList.add("over"); });
document.addEventListener("dragleave", () => at("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  at("drop").classList.remove("over");
  if (event.dataTransfer.files[0]) use(event.dataTransfer.files[0]);
});
loadSamples().catch((error) => say(error.message, "bad"));
loadModel().catch((error) => say(error.message, "bad"));
