// The page around model.js: shows inputs and outputs of any model, and runs it.

import { ARRAYS, loadModel, readSafetensors, sizeOf } from "./model.js";

const MOST_TYPED = 4096; // numbers in a text field
const MOST_SHOWN = 256; // numbers of an output
const MOST_BARS = 32;

const WORDS = {
  true: 1, false: 0, inf: Infinity, "-inf": -Infinity, infinity: Infinity, "-infinity": -Infinity,
};

const at = (id) => document.getElementById(id);

function element(kind, options = {}, ...children) {
  const made = Object.assign(document.createElement(kind), options);
  made.append(...children);
  return made;
}

function tell(text, state) {
  at("status").textContent = text;
  at("status").className = state;
  document.body.dataset.state = state;
}

const heading = (name, { dtype, shape, range }) =>
  element("h2", {}, name,
    element("small", {}, range ? `${range[0]} to ${range[1]}` : `${dtype}[${shape.join(", ")}]`));

// Rows and columns of what can be shown as a picture, else null.
function picture({ dtype, shape }) {
  const [rows, columns, ...others] = shape.filter((size) => size > 1);
  const fits = others.length === 0 && [rows, columns].every((size) => size >= 4 && size <= 512);
  return fits && dtype !== "int64" && dtype !== "uint64" ? { rows, columns } : null;
}

// Values as grey levels from the smallest to the largest of `range`.
function paint(canvas, values, [low, high]) {
  const pixels = new ImageData(canvas.width, canvas.height);
  values.forEach((value, i) => {
    const level = (255 * (value - low)) / (high - low || 1);
    pixels.data.set([level, level, level, 255], 4 * i);
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

// From 0 or below to 0 or above, so that black is nothing where nothing is negative.
const extent = (values) => Array.from(values, Number).filter(Number.isFinite).reduce(
  ([low, high], value) => [Math.min(low, value), Math.max(high, value)], [0, 0]);

const isWhole = (value) => typeof value === "bigint" || Number.isInteger(value);
const written = (value, digits = 6) =>
  isWhole(value) ? `${value}` : `${Number(value.toPrecision(digits))}`;
const listed = (values) => Array.from(values, (value) => written(value));

// Inputs.

class Editor {
  constructor(name, about, example, changed) {
    Object.assign(this, { name, about, example, changed });
    this.text = element("textarea", { spellcheck: false, onchange: () => this.#read() });
    this.text.setAttribute("aria-label", `values of ${name}`);
    this.error = element("p", { className: "note" });
    this.view = element("div", { className: "card" }, heading(name, about));
    const size = picture(about);
    if (size) this.view.append(this.#canvas(size));
    this.view.append(size ? element("details", {}, element("summary", {}, "Numbers"), this.text)
      : this.text, this.error);
    this.restore();
  }

  restore() {
    this.range = extent(this.example);
    this.set(this.example.slice());
  }

  set(values) {
    this.values = values;
    this.error.textContent = "";
    const many = values.length > MOST_TYPED;
    this.text.value = many ? "" : listed(values).join(" ");
    this.text.placeholder = many ? `${values.length} numbers; paste others to replace them` : "";
    if (this.canvas) paint(this.canvas, values, this.range);
  }

  // What was typed. A wrong number of values is told, and leaves those that were there.
  #read() {
    const kind = ARRAYS[this.about.dtype], wanted = sizeOf(this.about.shape);
    const words = this.text.value.toLowerCase().split(/[\s,;()[\]{}]+/).filter(Boolean);
    const convert = kind.name.startsWith("Big") ? BigInt : Number;
    try {
      const numbers = words.map((word) => convert(WORDS[word] ?? word));
      const wrong = words.find((word, i) => Number.isNaN(numbers[i]) && word !== "nan");
      if (wrong !== undefined) throw new SyntaxError(`${wrong} is not a number`);
      if (numbers.length !== wanted) {
        throw new RangeError(`${numbers.length} numbers, not ${wanted}`);
      }
      this.range = extent(numbers);
      this.set(kind.from(numbers));
      this.changed();
    } catch (error) {
      this.error.textContent = `Not used: ${error.message}.`;
    }
  }

  #canvas({ rows, columns }) {
    this.canvas = element("canvas", { width: columns, height: rows });
    if (rows > 64 || columns > 64) return this.canvas; // too fine to be drawn in
    this.canvas.classList.add("drawable");
    const draw = ({ clientX, clientY, buttons, shiftKey }) => {
      if (!buttons) return;
      const box = this.canvas.getBoundingClientRect();
      const x = Math.floor(((clientX - box.left) / box.width) * columns);
      const y = Math.floor(((clientY - box.top) / box.height) * rows);
      if (x < 0 || y < 0 || x >= columns || y >= rows) return;
      this.values[y * columns + x] = this.range[shiftKey || buttons === 2 ? 0 : 1] || 0;
      this.set(this.values);
      this.changed();
    };
    this.canvas.onpointerdown = (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      draw(event);
    };
    this.canvas.onpointermove = draw;
    this.canvas.oncontextmenu = (event) => event.preventDefault();
    const clear = element("button", { onclick: () => this.clear() }, "Clear");
    return element("div", {}, this.canvas, element("p", { className: "buttons" }, clear),
      element("p", { className: "note" }, "Draw with the pointer; the right button erases."));
  }

  clear() {
    this.set(this.values.fill(0));
    this.changed();
  }
}

// A whole number within bounds.
class Slider {
  constructor(name, about, example, changed) {
    Object.assign(this, { name, example });
    const [min, max] = about.range;
    this.number = element("output");
    this.slider = element("input", { type: "range", min, max, oninput: () => {
      this.number.value = this.values;
      changed();
    } });
    this.slider.setAttribute("aria-label", name);
    this.view = element("div", { className: "card" }, heading(name, about),
      element("div", { className: "slider" }, this.slider, this.number));
    this.restore();
  }

  get values() {
    return Number(this.slider.value);
  }

  restore() {
    this.slider.value = this.number.value = this.example[0];
  }
}

// Outputs.

function shown(about, values) {
  const size = picture(about);
  if (size) {
    const canvas = element("canvas", { width: size.columns, height: size.rows });
    paint(canvas, values, extent(values));
    return canvas;
  }
  return values.length > MOST_BARS || values.length < 2 ? numbers(values) : bars(values);
}

function numbers(values) {
  const more = values.length > MOST_SHOWN ? ` … and ${values.length - MOST_SHOWN} more` : "";
  return element("pre", {}, listed(values.slice(0, MOST_SHOWN)).join("  ") + more);
}

function bars(values) {
  const lengths = Array.from(values, Number);
  const [low, high] = [Math.min(...lengths), Math.max(...lengths)];
  const rows = lengths.flatMap((number, i) => {
    const bar = element("i", { className: number === high ? "largest" : "" });
    bar.style.width = `${high > low ? 1 + (99 * (number - low)) / (high - low) : 100}%`;
    return [element("span", {}, `${i}`), bar, element("span", {}, written(values[i], 3))];
  });
  return element("div", { className: "bars" }, ...rows);
}

// How far outputs are from those that Python computed, if it did.
function compare(outputs, expected) {
  const far = Object.entries(expected).map(([name, wanted]) => {
    const got = outputs[name];
    return wanted.reduce((most, value, i) => {
      const same = value === got[i] || (value !== value && got[i] !== got[i]);
      return same ? most : Math.max(most, Math.abs(Number(value) - Number(got[i])));
    }, 0);
  });
  const most = Math.max(0, ...far);
  return most === 0
    ? "Equal to what Python computed of this example."
    : `At most ${most.toExponential(1)} from what Python computed of this example.`;
}

// The page.

async function start() {
  const folder = new URL(".", import.meta.url);
  const read = async (name) => (await fetch(new URL(name, folder))).arrayBuffer();
  const about = JSON.parse(new TextDecoder().decode(await read("model.json")));
  document.title = at("title").textContent = about.title;
  at("text").textContent = about.text;
  tell("Compiling kernels …", "loading");
  const [model, file] = await Promise.all([loadModel(folder), read("example.safetensors")]);
  const example = { inputs: {}, outputs: {} };
  for (const [name, { bytes }] of Object.entries(readSafetensors(file))) {
    const [group, key] = [name.slice(0, name.indexOf(".")), name.slice(name.indexOf(".") + 1)];
    example[group][key] = new ARRAYS[model[group][key].dtype](bytes.slice().buffer);
  }
  const page = new Page(model, example, about.stateful);
  const kilobytes = Math.ceil(about.slots.reduce((sum, size) => sum + size, 0) / 1000);
  at("about").textContent = `${about.steps.length} launches of ${about.kernels.length} kernels, `
    + `${kilobytes.toLocaleString("en")} kB of memory, on ${model.gpu || "an unnamed GPU"}.`;
  at("main").hidden = false;
  await page.run();
}

class Page {
  #running = false; #again = false; #first = true;

  constructor(model, example, stateful) {
    Object.assign(this, { model, example, stateful, isExample: true });
    this.editors = Object.entries(model.inputs).map(([name, about]) =>
      new (about.range ? Slider : Editor)(name, about, example.inputs[name], () => this.changed()));
    at("inputs").replaceChildren(...this.editors.map((editor) => editor.view));
    at("run").onclick = () => this.run();
    at("example").onclick = () => this.restore();
  }

  changed() {
    this.isExample = false;
    this.run();
  }

  restore() {
    for (const editor of this.editors) editor.restore();
    this.isExample = true;
    this.run();
  }

  // Runs with what the editors have now; what changes meanwhile makes it run once more.
  async run() {
    if (this.#running) {
      this.#again = true;
      return;
    }
    this.#running = true;
    try {
      do {
        this.#again = false;
        await this.#runOnce();
      } while (this.#again);
    } catch (error) {
      tell(error.message, "error");
    } finally {
      this.#running = false;
    }
  }

  async #runOnce() {
    const inputs = Object.fromEntries(this.editors.map(({ name, values }) => [name, values]));
    const comparable = this.isExample && (this.#first || !this.stateful);
    const begin = performance.now();
    const outputs = await this.model.run(inputs);
    const time = performance.now() - begin;
    const cards = Object.entries(this.model.outputs).map(([name, about]) =>
      element("div", { className: "card" }, heading(name, about), shown(about, outputs[name])));
    at("outputs").replaceChildren(...cards);
    at("comparison").textContent =
      comparable && Object.keys(this.example.outputs).length
        ? compare(outputs, this.example.outputs) : "";
    tell(`Ran in ${time.toPrecision(3)} ms${this.#first ? ", the first time" : ""}.`, "done");
    this.#first = false;
  }
}

start().catch((error) => tell(error.message, "error"));
