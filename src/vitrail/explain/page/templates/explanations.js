// The page of explanations: attention of a patch, saliency maps, one view or two side by side.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const GLOW = [[0, 0, 0], [48, 18, 96], [148, 38, 106], [226, 92, 48], [252, 178, 52], [255, 250, 206]];
const PATCHES = "patches";  // shows attention, patch by patch
const panels = [];
let pinned = null, hovered = null, light = 0.8;

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element && name !== "role") element[name] = value; else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};
const percent = (share) => `${(100 * share).toFixed(share >= 0.0995 ? 0 : 1)}\u00a0%`;

// --- numbers ---------------------------------------------------------------------------------------------------------

const opened = new Map();
const bytes = (text) => {  // base64 -> inflated bytes, once
  if (!opened.has(text)) {
    const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    opened.set(text, new Response(stream).arrayBuffer().then((buffer) => new Uint8Array(buffer)));
  }
  return opened.get(text);
};
const load = async (layer) => {
  if (layer.heads) layer.headBytes = await bytes(layer.heads);
  if (layer.mean) layer.meanBytes = await bytes(layer.mean);
  return layer;
};
const unpack = (store, maps, rows, columns, map, row) => {
  const place = map * rows + row, most = (store[2 * place] + 256 * store[2 * place + 1]) / 65535;
  const start = 2 * maps * rows + place * columns;
  return Float32Array.from(store.subarray(start, start + columns), (share) => most * (share / data.levels) ** 2);
};
const tokens = (layer) => layer.prefix.length + layer.cells[0] * layer.cells[1];
const weightsOf = (layer, head, spot) => {  // the row of a spot: one weight a token
  const prefix = layer.prefix.length, all = tokens(layer), q = layer.queries || 1;
  const full = spot.token === undefined ? prefix + spot.row * layer.cells[1] + spot.column : spot.token;
  if (head === null && layer.mean) return unpack(layer.meanBytes, 1, all, all, 0, full);
  const across = Math.ceil(layer.cells[1] / q), rows = prefix + Math.ceil(layer.cells[0] / q) * across;
  const inGroup = prefix + Math.floor(spot.row / q) * across + Math.floor(spot.column / q);
  const row = spot.token === undefined ? inGroup : spot.token;
  if (head !== null) return unpack(layer.headBytes, layer.count, rows, all, head, row);
  const mean = new Float32Array(all);
  for (let one = 0; one < layer.count; one++) {
    const weights = unpack(layer.headBytes, layer.count, rows, all, one, row);
    weights.forEach((weight, key) => mean[key] += weight / layer.count);
  }
  return mean;
};
const spotIn = (layer, place) => {  // a position (share of width and height, or a token) as a cell of a layer
  if (place && place.token !== undefined && place.token < layer.prefix.length) return { token: place.token };
  if (!place && layer.prefix.length) return { token: 0 };
  const { x, y } = place && place.x !== undefined ? place : { x: 0.5, y: 0.5 };
  const cell = (share, side) => Math.floor(Math.min(Math.floor(share * side), side - 1) / layer.side);
  return { row: cell(y, layer.grid[0]), column: cell(x, layer.grid[1]) };
};

// --- drawing ---------------------------------------------------------------------------------------------------------

const glow = (share) => {
  const place = Math.min(Math.max(share, 0), 1) * (GLOW.length - 1), low = Math.min(Math.floor(place), GLOW.length - 2);
  return GLOW[low].map((value, index) => value + (GLOW[low + 1][index] - value) * (place - low));
};
const paint = (canvas, height, width, share, solid) => {
  canvas.width = width; canvas.height = height;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
    const value = share(y, x), at = 4 * (y * width + x);
    image.data.set([...glow(value), solid ? 255 : 255 * (0.5 + 0.42 * value)], at);
  }
  context.putImageData(image, 0, 0);
};
const paintWeights = (canvas, layer, weights, solid) => {
  const prefix = layer.prefix.length, [height, width] = layer.grid, across = layer.cells[1];
  let most = 1e-9;
  for (let key = prefix; key < weights.length; key++) most = Math.max(most, weights[key]);
  paint(canvas, height, width, (y, x) => {
    const cell = prefix + Math.floor(y / layer.side) * across + Math.floor(x / layer.side);
    return Math.sqrt(weights[cell] / most);
  }, solid);
  return most;
};

// --- words -----------------------------------------------------------------------------------------------------------

const named = (layer, index) => {
  const prefix = layer.prefix.length, cell = index - prefix;
  if (index < prefix) return `the ${layer.prefix[index]}`;
  return `row ${Math.floor(cell / layer.cells[1]) + 1}, column ${cell % layer.cells[1] + 1}`;
};
const sentence = (layer, weights, spot) => {
  const prefix = layer.prefix.length, unit = layer.side > 1 ? "cells" : "patches";
  const self = spot.token === undefined ? prefix + spot.row * layer.cells[1] + spot.column : spot.token;
  const order = [...weights.keys()].slice(prefix).sort((a, b) => weights[b] - weights[a]);
  const onPatches = order.reduce((sum, key) => sum + weights[key], 0);
  let half = 0, count = 0;
  while (count < order.length && half < onPatches / 2) half += weights[order[count++]];
  const who = named(layer, self), most = percent(weights[order[0]]);
  let text = `${who[0].toUpperCase()}${who.slice(1)} attends most to ${named(layer, order[0])} (${most})`;
  if (order[0] !== self) text += `, to itself ${percent(weights[self])}`;
  if (prefix && self !== 0) text += `, to ${named(layer, 0)} ${percent(weights[0])}`;
  return `${text}. Half of its attention to the picture is on ${count} of ${order.length} ${unit}.`;
};

// --- one panel -------------------------------------------------------------------------------------------------------

const choice = (title, options, value, change) => {
  const select = make("select", { onchange: () => change(select.value) });
  for (const [key, text] of options) select.append(make("option", { value: key, textContent: text }));
  select.value = value;
  return make("label", {}, title, select);
};
const apart = (names) => {  // without the folders that all names share: a narrow select shows only the start of a name
  const parts = names.map((name) => name.split("/"));
  let shared = 0;
  while (parts.every((one) => one.length > shared + 1 && one[shared] === parts[0][shared])) shared++;
  return parts.map((one, at) => [at, one.slice(shared).join("/")]);
};
const viewOf = (panel) => data.views.find((view) => view.picture === panel.picture && view.model === panel.model);
const layerOf = (panel) => {
  const { layers } = viewOf(panel);
  return layers.find((layer) => layer.index === panel.layer) || layers[layers.length - 1];
};
const methods = (view) => [...(view.layers.length ? [[PATCHES, "attention, patch by patch"]] : []),
  ...Object.keys(view.maps).map((name) => [name, name])];

const build = (panel) => {
  const view = viewOf(panel);
  if (!methods(view).some(([key]) => key === panel.show)) panel.show = methods(view)[0]?.[0];
  const pick = make("div", { className: "pick" });
  if (data.pictures.length > 1) pick.append(choice("Picture", apart(data.pictures),
    panel.picture, (value) => { panel.picture = Number(value); rebuild(panel, "Picture"); }));
  if (data.models.length > 1) pick.append(choice("Model", apart(data.models),
    panel.model, (value) => { panel.model = Number(value); rebuild(panel, "Model"); }));
  if (panel.show) pick.append(choice("Show", methods(view), panel.show,
    (value) => { panel.show = value; rebuild(panel, "Show"); }));
  panel.canvas = make("canvas", { "aria-hidden": "true" });
  panel.here = make("div", { className: "here", hidden: true });
  panel.status = make("p", { className: "status", role: "status" });
  panel.scale = make("div", { className: "scale" });
  panel.tokens = make("div", { className: "tokens", role: "group", "aria-label": "Tokens that are not patches" });
  panel.stage = stage(panel, data.images[view.image]);
  panel.strips = make("div", { className: "beside" });
  const left = make("div", {}, panel.stage, panel.scale, panel.tokens, panel.status);
  const beside = make("div", { className: "beside" }, facts(panel, view), panel.strips);
  if (view.missing) beside.append(make("p", { className: "note", textContent: view.missing }));
  panel.root.replaceChildren(pick, left, beside);
};
const rebuild = (panel, focus) => {
  build(panel);
  const label = [...panel.root.querySelectorAll("label")].find((one) => one.firstChild.textContent === focus);
  label?.querySelector("select").focus();
  return show(panel);
};

const stage = (panel, picture) => {
  const image = make("img", { src: picture.src, alt: "", draggable: false });
  if (Math.max(picture.width, picture.height) <= 96) image.className = "crisp";
  const element = make("div", { className: "stage", tabIndex: 0, role: "application", "aria-label":
    `${data.pictures[panel.picture]}: arrow keys move from patch to patch` + (viewOf(panel).layers[0]?.prefix.length
      ? "; Home goes to the class token" : "") }, image, panel.canvas, panel.here);
  element.style.aspectRatio = `${picture.width} / ${picture.height}`;
  const line = `<path d="${viewOf(panel).outline}"></path>`;  // dark below light is visible on any picture
  panel.here.insertAdjacentHTML("beforebegin",
    `<svg viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true">${line}${line}</svg>`);
  const placed = (event) => {
    const box = element.getBoundingClientRect(), inside = (share) => Math.min(Math.max(share, 0), 0.999999);
    return { x: inside((event.clientX - box.left) / box.width), y: inside((event.clientY - box.top) / box.height) };
  };
  element.onpointermove = (event) => { if (event.pointerType !== "touch") { hovered = placed(event); showAll(); } };
  element.onpointerleave = () => { hovered = null; showAll(); };
  element.onclick = (event) => { pinned = placed(event); hovered = null; showAll(); };
  element.onkeydown = (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Home") pinned = null;
    else if (event.key in moves) pinned = moved(panel, moves[event.key]);
    else return;
    hovered = null; event.preventDefault(); showAll();
  };
  return element;
};
const moved = (panel, [down, right]) => {
  const { layers } = viewOf(panel), square = { grid: [14, 14], cells: [14, 14], side: 1, prefix: [] };
  const layer = layers.length ? layerOf(panel) : square, spot = spotIn({ ...layer, prefix: [] }, pinned);
  const began = pinned && pinned.x !== undefined;
  const along = (from, by, count) => Math.min(Math.max(from + (began ? by : 0), 0), count - 1);
  const row = along(spot.row, down, layer.cells[0]), column = along(spot.column, right, layer.cells[1]);
  return { x: (column + 0.5) * layer.side / layer.grid[1], y: (row + 0.5) * layer.side / layer.grid[0] };
};

const facts = (panel, view) => {
  const answers = make("ol", { className: "answers" });
  for (const { label, text, share } of view.bars) {
    const line = make("li", { className: label === view.target ? "target" : "" },
      make("span", { textContent: label }), make("span", { textContent: text }));
    line.style.setProperty("--share", share ?? 0);
    answers.append(line);
  }
  const box = make("div", { className: "facts" },
    make("div", {}, make("h3", { textContent: "Answer of the model" }), answers));
  const shared = Object.keys(view.maps).filter((name) => view.maps[name].untargeted);
  if (Object.keys(view.maps).length) box.lastChild.append(make("p", { className: "note",
    textContent: `The maps explain “${view.target}”${shared.length ? `; ${shared.join(" and ")} would be the same ` +
      "for any other output" : ""}.${view.outline ? " It is what the outline shows." : ""}` }));
  if (view.scores.length) box.append(make("div", {}, make("h3", { textContent: "How faithful the maps are" }),
    scores(panel, view), make("p", { className: "note", textContent:
      "Area under the score as pixels are added (insertion) or blurred (deletion), the brightest first; the " +
      "columns are explained below." })));
  return box;
};
const scores = (panel, view) => {
  const columns = [["insertion", "insertion ↑", Math.max], ["deletion", "deletion ↓", Math.min],
    ["shuffled", "shuffled → 0"], ["pointing", "pointing"]]
    .filter(([key]) => view.scores.some((row) => row[key] !== null));
  const head = make("tr", {}, ...["method", ...columns.map((column) => column[1])].map((text, at) =>
    make("th", { scope: "col", className: at ? "number" : "", textContent: text })));
  const body = make("tbody");
  const ours = view.scores.filter((row) => !row.baseline);
  const best = columns.map(([key, , pick]) => pick ? pick(...ours.map((row) => row[key])) : undefined);
  const text = (value) => value === null ? "" : value === true ? "hit" : value === false ? "miss" : value.toFixed(3);
  for (const row of view.scores) {
    const name = row.baseline || !(row.method in view.maps) ? row.method : make("button", { textContent: row.method,
      onclick: () => { panel.show = row.method; rebuild(panel, "Show"); } });
    const styles = [row.baseline ? "base" : "", row.method === panel.show ? "now" : ""].join(" ").trim();
    body.append(make("tr", { className: styles }, make("th", { scope: "row" }, name),
      ...columns.map(([key], at) => make("td", { textContent: text(row[key]),
        className: `number${!row.baseline && row[key] === best[at] ? " best" : ""}` }))));
  }
  return make("table", { className: "scores" }, make("thead", {}, head), body);
};

// --- what is shown now -----------------------------------------------------------------------------------------------

const scale = (panel, low, high, unit) => {
  const bar = make("i"), stops = [0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${glow(share).join(" ")})`);
  bar.style.background = `linear-gradient(90deg, ${stops})`;
  const end = make("span", { textContent: `${high} ${unit}` });
  panel.scale.replaceChildren(make("span", { textContent: low }), bar, end);
};
const show = async (panel) => {
  const turn = panel.turn = (panel.turn || 0) + 1, view = viewOf(panel), place = hovered || pinned;
  panel.stage.style.setProperty("--light", light);
  panel.canvas.style.opacity = light;
  if (panel.show !== PATCHES) return panel.show ? showMap(panel, view.maps[panel.show], place, turn) : undefined;
  const layer = await load(layerOf(panel));
  if (turn !== panel.turn) return;
  const head = layer.heads && panel.head !== null && panel.head < layer.count ? panel.head : null;
  const spot = spotIn(layer, place), weights = weightsOf(layer, head, spot);
  panel.canvas.className = "crisp";
  const most = paintWeights(panel.canvas, layer, weights, false);
  scale(panel, "0", percent(most), "of its attention");
  outline(panel, layer, head, spot);
  panel.status.textContent = sentence(layer, weights, spot);
  tokenButtons(panel, layer, spot);
  await strips(panel, view, layer, head, place, turn);
};
const showMap = async (panel, map, place, turn) => {
  const values = await bytes(map.data);
  if (turn !== panel.turn) return;
  const [height, width] = map.size, target = viewOf(panel).target;
  panel.canvas.className = "";
  paint(panel.canvas, height, width, (y, x) => values[y * width + x] / 255, false);
  scale(panel, "lowest", "highest", "");
  panel.tokens.replaceChildren(); panel.strips.replaceChildren();
  panel.here.hidden = true;
  const top = values.indexOf(values.reduce((a, b) => Math.max(a, b), 0));
  const what = map.untargeted ? panel.show : `${panel.show} for “${target}”`;
  let text = `${what} is brightest ${percent((top % width + 0.5) / width)} from the left and ` +
    `${percent((Math.floor(top / width) + 0.5) / height)} from the top.`;
  if (place && place.x !== undefined) {
    const value = values[Math.floor(place.y * height) * width + Math.floor(place.x * width)] / 255;
    text += ` Here its value is ${percent(value)} of its range.`;
    const box = panel.here.style;
    box.left = `${100 * place.x - 1.5}%`; box.top = `${100 * place.y - 1.5}%`; box.width = box.height = "3%";
    panel.here.hidden = false;
  }
  panel.status.textContent = text;
};
const outline = (panel, layer, head, spot) => {
  panel.here.hidden = spot.token !== undefined;
  if (panel.here.hidden) return;
  const side = layer.side * (head === null ? 1 : layer.queries || 1), per = side / layer.side, box = panel.here.style;
  const edge = (cell, count) => [100 * Math.floor(cell / per) * side / count,
    100 * Math.min((Math.floor(cell / per) + 1) * side, count) / count];
  const [top, bottom] = edge(spot.row, layer.grid[0]), [left, right] = edge(spot.column, layer.grid[1]);
  box.top = `${top}%`; box.height = `${bottom - top}%`; box.left = `${left}%`; box.width = `${right - left}%`;
};
const tokenButtons = (panel, layer, spot) => {
  if (panel.tokens.children.length !== layer.prefix.length) {
    panel.tokens.replaceChildren(...layer.prefix.map((name, token) => make("button", { textContent: name,
      onclick: () => { pinned = { token }; hovered = null; showAll(); } })));
  }
  [...panel.tokens.children].forEach((button, at) => button.setAttribute("aria-pressed", spot.token === at));
};
const strips = async (panel, view, layer, head, place, turn) => {
  await Promise.all(view.layers.map(load));
  if (turn !== panel.turn) return;
  const fit = (one) => one.heads && head !== null && head < one.count ? head : null;
  const wanted = [
    ["Layers", view.layers.length > 1 ? view.layers.map((one) => ({ text: one.index, layer: one, head: fit(one),
      pressed: one === layer, title: `layer ${one.index}, ${one.name}`, pick: () => panel.layer = one.index })) : []],
    ["Heads", layer.heads ? [null, ...Array(layer.count).keys()].map((one) => ({ text: one === null ? "mean" : one,
      layer, head: one, pressed: one === head, title: one === null ? "mean over heads" : `head ${one}`,
      pick: () => panel.head = one })) : []],
  ];
  const signature = `${panel.picture} ${panel.model} ${layer.index}`;
  if (panel.signature !== signature || !panel.strips.children.length) {
    panel.strips.replaceChildren(...wanted.filter(([, items]) => items.length).map(([title, items]) => {
      const row = make("div", { className: "strip", role: "group", "aria-label": title });
      for (const item of items) row.append(make("button", { "aria-label": item.title, title: item.title },
        make("canvas", { className: "crisp" }), `${item.text}`));
      const heading = title === "Heads" ? `Heads of layer ${layer.index}` : title;
      return make("div", {}, make("h3", { textContent: heading }), row);
    }));
    if (!layer.heads && layer.count > 1) panel.strips.append(make("p", { className: "note",
      textContent: `For layer ${layer.index} this page has only the mean over its ${layer.count} heads.` }));
    panel.signature = signature;
  }
  const buttons = panel.strips.querySelectorAll(".strip button");
  wanted.flatMap(([, items]) => items).forEach((item, at) => {
    paintWeights(buttons[at].firstChild, item.layer, weightsOf(item.layer, item.head, spotIn(item.layer, place)), true);
    buttons[at].setAttribute("aria-pressed", item.pressed);
    buttons[at].onclick = () => { item.pick(); show(panel); };
  });
};
const showAll = () => Promise.all(panels.map(show));

// --- the page --------------------------------------------------------------------------------------------------------

const root = document.getElementById("panels"), compare = document.getElementById("compare");
const add = (picture, model) => {
  const panel = { picture, model, show: PATCHES, layer: Infinity, head: null };
  panel.root = make("article", { className: "panel", "aria-label": panels.length ? "second view" : "first view" });
  panels.push(panel); root.append(panel.root); build(panel);
  return panel;
};
const start = () => {
  if (!("DecompressionStream" in window)) {
    root.textContent = "This browser cannot decompress the maps (no DecompressionStream): use a browser of 2023 or later.";
    return undefined;
  }
  add(0, 0);
  compare.onclick = () => {
    const first = panels[0];
    if (panels.length > 1) panels.pop().root.remove();
    else if (data.models.length > 1) add(first.picture, (first.model + 1) % data.models.length);
    else add((first.picture + 1) % data.pictures.length, 0);
    compare.setAttribute("aria-pressed", panels.length > 1);
    root.classList.toggle("two", panels.length > 1);
    return showAll();
  };
  const strength = document.getElementById("light");
  strength.oninput = () => { light = strength.value / 100; showAll(); };
  light = strength.value / 100;
  return showAll();
};
Promise.resolve(start()).then(() => document.documentElement.dataset.ready = "yes");
