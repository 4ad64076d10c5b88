"use strict";
// Talks to the service that it came from, and to nothing else; no text is ever read as HTML.
const at = (id) => document.getElementById(id);
const state = { model: null, file: null, target: null, turn: 0, leave: null, key: sessionStorage.getItem("vitrail-key") || "" };
const percent = (share) => (100 * share).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) + " %";

async function ask(address, options = {}) {
  const headers = state.key ? { "X-API-Key": state.key } : {};
  let answer;
  try {
    answer = await fetch(address, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The service cannot be reached; is it still running?");
  }
  if (answer.status === 401) { at("key-form").hidden = false; at("key").focus(); }
  const data = await answer.json().catch(() => ({ error: "The service answered with something else than data." }));
  if (!answer.ok) throw new Error(sentence(data.error));
  return data;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

function say(text, kind = "") {
  at("status").textContent = text;
  at("status").className = kind;  // "bad", or "heard": told to screen readers, as the answer itself is in sight
}

function form() {
  const data = new FormData();
  data.append("file", state.file, state.file.name || "picture");
  return data;
}

async function use(file) {
  if (!file.type.startsWith("image/")) return say(`${file.name} is no picture.`, "bad");
  state.file = file;
  state.target = null;
  show(URL.createObjectURL(file));
  await answer();
}

function show(address) {
  const old = at("picture").src;
  at("overlay").hidden = true;
  at("caption").textContent = "";
  at("picture").src = address;
  if (old.startsWith("blob:")) URL.revokeObjectURL(old);
}

async function answer() {
  const turn = ++state.turn;
  if (state.leave) state.leave.abort();
  state.leave = null;
  say("Looking …");
  at("answer").classList.add("busy");
  try {
    const found = await ask("predict?top=5", { method: "POST", body: form() });
    if (state.model && found.generation !== state.model.generation) await model();  // it was swapped meanwhile
    if (turn !== state.turn) return;
    const result = found.predictions[0];
    at("answer").hidden = false;
    list(result);
    const best = result.answers[0];
    at("picture").alt = `The picture; the model sees: ${best.label}`;
    const spent = result.milliseconds, total = found.milliseconds;
    at("latency").textContent = `${total.toFixed(1)} ms in the service: ${spent.computing.toFixed(1)} ms of computing`
      + ` (batch of ${result.batch}), ${spent.queued.toFixed(1)} ms of waiting.`;
    say(`${best.label}, ${percent(best.probability)}.`, "heard");
    if (state.model && state.model.explain.length) await explain();
  } catch (error) {
    if (turn === state.turn) { say(error.message, "bad"); at("answer").hidden = true; }
  } finally {
    if (turn === state.turn) at("answer").classList.remove("busy");
  }
}

function list(result) {
  const can = state.model && state.model.explain.length > 0;
  at("verdict").textContent = result.answers[0].label;
  hint();
  at("classes").replaceChildren(...result.answers.map((one, number) => {
    const row = document.createElement(can ? "button" : "div");
    row.className = one.chosen ? "class chosen" : "class";
    const label = document.createElement("b"), share = document.createElement("span"), bar = document.createElement("i");
    label.textContent = one.label;
    share.textContent = percent(one.probability);
    row.append(label, share, bar);
    requestAnimationFrame(() => { bar.style.width = `${100 * one.probability}%`; });
    if (can) {
      row.type = "button";
      row.dataset.index = one.index;
      row.setAttribute("aria-pressed", String(number === 0));
      row.addEventListener("click", () => { state.target = one.index; explain(); });
    }
    const item = document.createElement("li");
    item.append(row);
    return item;
  }));
}

function hint() {
  const can = state.model && state.model.explain.length > 0;
  at("hint").textContent = !can ? "" : offer().targeted ? "Choose a class to see which parts of the picture speak for it."
    : "This way of explaining shows where the model looks, whatever the class.";
}

const offer = () => state.model.explain.find((one) => one.method === at("method").value);

function fill(select, box, options, kept) {  // a choice between nothing is not shown
  at(select).replaceChildren(...options.map(([text, value]) => new Option(text, value)));
  if (options.some(([, value]) => value === kept)) at(select).value = kept;
  at(box).hidden = options.length === 0;
}

function offerLayers() {
  const count = offer().layers, kept = at("layer").value || String(count - 1);
  const place = (number) => (number === count - 1 ? " (last)" : number === 0 ? " (first)" : "");
  fill("layer", "layer-box", Array.from({ length: count }, (_, number) => [number + place(number), String(number)]), kept);
  offerHeads();
}

function offerHeads() {
  const count = offer().heads[Number(at("layer").value)] || 0;
  const heads = Array.from({ length: count }, (_, number) => [String(number), String(number)]);
  fill("head", "head-box", count ? [["All, their mean", ""], ...heads] : [], at("head").value);
}

function question() {
  const query = new URLSearchParams({ method: at("method").value });
  if (state.target !== null) query.set("target", state.target);
  for (const name of ["layer", "head"]) if (at(name).value) query.set(name, at(name).value);
  return query;
}

function meaning(found) {  // what a bright place tells, and by which way it was found
  const bright = found.targeted ? `bright places speak for ${found.target.label}` : "it attends to bright places";
  const way = [found.method.replaceAll("_", " ")];
  if (found.layer !== null) way.push(`layer ${found.layer}`);
  if (found.head !== null) way.push(`head ${found.head}`);
  return { bright, way: way.join(", ") };
}

async function explain() {
  if (state.leave) state.leave.abort();  // the service drops what nobody waits for
  const leave = state.leave = new AbortController();
  at("caption").textContent = "Looking where …";
  let found;
  try {
    found = await ask(`explain?${question()}`, { method: "POST", body: form(), signal: leave.signal });
  } catch (error) {
    if (leave === state.leave) at("caption").textContent = error.message;
    return;
  }
  if (leave !== state.leave) return;
  const { bright, way } = meaning(found);
  hint();
  show(found.seen);
  at("overlay").src = found.overlay;
  at("overlay").hidden = false;
  at("overlay").alt = found.targeted ? `Overlay: the places that speak for ${found.target.label} are bright`
    : "Overlay: the places that the model attends to are bright";
  at("caption").textContent = `What the model gets; ${bright} (${way}, ${found.milliseconds.toFixed(0)} ms).`
    + (found.contrast < 0.3 ? ` They differ little: by ${percent(found.contrast)} of the strongest.` : "");
  for (const row of document.querySelectorAll(".class")) {
    row.setAttribute("aria-pressed", String(found.targeted && Number(row.dataset.index) === found.target.index));
  }
}

async function trySample(sample, button) {
  const picture = await fetch(sample.address);
  for (const other of document.querySelectorAll("#samples button")) other.setAttribute("aria-pressed", String(other === button));
  await use(new File([await picture.blob()], `${sample.label}.png`, { type: "image/png" }));
}

async function samples() {
  const found = await (await fetch("samples.json")).json();
  at("samples-box").hidden = found.length === 0;
  const buttons = found.map((sample) => {
    const button = document.createElement("button"), picture = document.createElement("img");
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    picture.src = sample.address;
    picture.alt = `Sample: ${sample.label}`;
    button.append(picture);
    button.addEventListener("click", () => trySample(sample, button));
    return button;
  });
  at("samples").replaceChildren(...buttons.map((button) => {
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
}

async function model() {
  const found = state.model = await ask("model");
  at("about").textContent = found.about;
  at("backend").textContent = found.backend;
  const size = (found.limits.bytes / 2 ** 20).toFixed(0), pixels = (found.limits.pixels / 1e6).toFixed(0);
  at("limits").textContent = `JPEG, PNG, WebP, GIF, TIFF, BMP; up to ${size} MB and ${pixels} megapixels`;
  at("calibration").textContent = `Confidence: ${found.calibration}.`;
  at("method").replaceChildren(...found.explain.map(({ method }) => new Option(method.replaceAll("_", " "), method)));
  at("controls").hidden = found.explain.length === 0;
  if (found.explain.length) offerLayers();
}

at("file").addEventListener("change", () => { if (at("file").files[0]) use(at("file").files[0]); at("file").value = ""; });
at("picture").addEventListener("load", () => { at("stack").classList.toggle("tiny", at("picture").naturalWidth < 100); });
at("method").addEventListener("change", () => { offerLayers(); explain(); });
at("layer").addEventListener("change", () => { offerHeads(); explain(); });
at("head").addEventListener("change", () => explain());
at("strength").addEventListener("input", () => { at("overlay").style.opacity = at("strength").value / 100; });
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = at("key").value;
  sessionStorage.setItem("vitrail-key", state.key);
  model().then(() => { at("key-form").hidden = true; say(""); at("file").focus(); }, (error) => say(error.message, "bad"));
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
samples().catch((error) => say(error.message, "bad"));
model().catch((error) => say(error.message, "bad"));
