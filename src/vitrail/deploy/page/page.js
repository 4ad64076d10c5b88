"use strict";
// Talks to the service that it came from, and to nothing else; no text is ever read as HTML.
const at = (id) => document.getElementById(id);
const state = { model: null, file: null, target: null, turn: 0, key: sessionStorage.getItem("vitrail-key") || "" };
const percent = (share) => (100 * share).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) + " %";

async function ask(address, options = {}) {
  const headers = state.key ? { "X-API-Key": state.key } : {};
  let answer;
  try {
    answer = await fetch(address, { ...options, headers });
  } catch (error) {
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
  say("Looking …");
  at("answer").classList.add("busy");
  try {
    const found = await ask("predict?top=5", { method: "POST", body: form() });
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
  at("hint").textContent = can ? "Choose a class to see which parts of the picture speak for it." : "";
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
      row.addEventListener("click", () => { state.target = one.index; explain().catch((error) => say(error.message, "bad")); });
    }
    const item = document.createElement("li");
    item.append(row);
    return item;
  }));
}

async function explain() {
  const turn = state.turn, query = new URLSearchParams({ method: at("method").value });
  if (state.target !== null) query.set("target", state.target);
  at("caption").textContent = "Looking where …";
  const found = await ask(`explain?${query}`, { method: "POST", body: form() }).catch((error) => {
    at("caption").textContent = error.message;
    return null;
  });
  if (found === null || turn !== state.turn) return;
  show(found.seen);
  at("overlay").src = found.overlay;
  at("overlay").hidden = false;
  at("overlay").alt = `Overlay: the places that speak for ${found.target.label} are bright`;
  at("caption").textContent = `What the model gets; bright places speak for ${found.target.label}`
    + ` (${found.method}, ${found.milliseconds.toFixed(0)} ms).`
    + (found.contrast < 0.3 ? ` They differ little: by ${percent(found.contrast)} of the strongest.` : "");
  for (const row of document.querySelectorAll(".class")) {
    row.setAttribute("aria-pressed", String(Number(row.dataset.index) === found.target.index));
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
  at("method").replaceChildren(...found.explain.map((name) => new Option(name, name)));
  at("controls").hidden = found.explain.length === 0;
}

at("file").addEventListener("change", () => { if (at("file").files[0]) use(at("file").files[0]); at("file").value = ""; });
at("picture").addEventListener("load", () => { at("stack").classList.toggle("tiny", at("picture").naturalWidth < 100); });
at("method").addEventListener("change", () => explain());
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
