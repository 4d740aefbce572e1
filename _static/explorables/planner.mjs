// Chapter 18: what training a larger model takes, in bytes on each device, time and money.
//
// planner.json holds, as `tools/export_explorables.py` wrote them, the package's devices, and what
// its `plan` counts of a layer of some models and of what is outside layers.

import { checkbox, data, element, fill, select, slider } from "./elements.mjs";

const BYTES = { mixed: [2, 2, 12], float32: [4, 4, 8] }; // of a parameter, its gradient, Adam's
const DAY = 86_400;

const parameters = (part) => part.weights + part.others + part.idle;

/** As the package's `plan`: bytes on each device by what they hold, and the seconds of all. */
export function plan(model, hardware, options) {
  const { tokens, gpus, rows, precision, fsdp, checkpointing, utilisation = 0.4 } = options;
  const { layers, layer, outside, length, width, vocabulary } = model;
  const [value, gradient, state] = BYTES[precision];
  const count = layers * parameters(layer) + parameters(outside);
  const operations = (part) => 6 * part.weights + 12 * part.attended * length;
  const perToken = layers * operations(layer) + operations(outside);
  const again = checkpointing ? (perToken - 6 * outside.weights) / 3 : 0;
  const shards = fsdp ? gpus : 1;
  const memory = {
    parameters: (value * count) / shards,
    gradients: (gradient * count) / shards,
    optimiser: (state * count) / shards,
  };
  if (shards > 1) {
    const [inside, others] = [parameters(layer), parameters(outside)];
    memory.gathered = value * (2 * inside + others) + gradient * Math.max(inside, others);
  }
  const kept = (part) => value * part.saved + part.masked;
  const inputs = checkpointing ? value * width * layers : 0;
  const inLayers = (checkpointing ? 1 : layers) * kept(layer);
  memory.activations = rows * length * (inputs + inLayers + kept(outside));
  memory.logits = rows * length * 8 * vocabulary;
  memory.total = Object.values(memory).reduce((sum, number) => sum + number);
  const peak = precision === "mixed" ? hardware.flops : hardware.flops_float32;
  const seconds = ((perToken + again) * tokens) / (gpus * peak * utilisation);
  return { parameters: count, memory, seconds };
}

const written = (number) =>
  number.toLocaleString("en-US", { maximumFractionDigits: number < 100 ? 1 : 0 });
const gigabytes = (number) => `${written(number / 1e9)} GB`;

export async function mount(place) {
  const { models, hardware } = await data("planner.json");
  const same = (names) => Object.fromEntries(names.map((name) => [name, name]));
  const power = (exponent) => written(2 ** exponent);
  const tokens = (index) => [1, 2, 5][index % 3] * 10 ** (9 + Math.floor(index / 3));

  const model = select("model", same(Object.keys(models)), draw);
  const device = select("device", same(Object.keys(hardware)), draw);
  const gpus = slider("devices", { min: 0, max: 12, value: 3, write: power }, draw);
  const rows = slider("rows on each", { min: 0, max: 7, value: 3, write: power }, draw);
  const amount = (index) => `${written(tokens(index) / 1e9)} billion`;
  const read = slider("tokens", { min: 0, max: 12, value: 3, write: amount }, draw);
  const precision = select("precision", { mixed: "mixed, 16 bits", float32: "float32" }, draw);
  const fsdp = checkbox("share parameters (FSDP)", false, draw);
  const checkpointing = checkbox("activation checkpointing", false, draw);
  const controls = [model, device, gpus, rows, read, precision, fsdp, checkpointing];
  const nodes = controls.map((control) => control.node);
  const { sentence, view } = fill(place, "A plan of memory and time", nodes);
  model.input.value = "LLaMA 7B";
  device.input.value = "H100";

  function draw() {
    const [chosen, one] = [models[model.input.value], hardware[device.input.value]];
    const number = 2 ** gpus.value;
    const { memory, seconds } = plan(chosen, one, {
      tokens: tokens(read.value),
      gpus: number,
      rows: 2 ** rows.value,
      precision: precision.input.value,
      fsdp: fsdp.input.checked,
      checkpointing: checkpointing.input.checked,
    });
    const hours = (number * seconds) / 3600;
    const fits = memory.total <= one.memory ? "fits" : "does not fit";
    sentence.textContent =
      `${model.input.value} ${fits}: each device needs ${gigabytes(memory.total)} and has ` +
      `${gigabytes(one.memory)}. Reading ${amount(read.value)} tokens takes ` +
      `${lasting(seconds)}, ${written(hours)} device hours, ${written(hours * one.price)} dollars.`;

    const widest = Math.max(memory.total, one.memory);
    const line = (name, size) => {
      const bar = element("div", { style: `width: ${(100 * size) / widest}%` });
      const cells = [element("th", { scope: "row" }, name), element("td", {}, gigabytes(size))];
      return element("tr", {}, ...cells, element("td", { class: "bar" }, bar));
    };
    const kinds = Object.entries(memory).map(([kind, size]) => line(kind, size));
    const foot = element("tfoot", {}, line(`${one.name} has`, one.memory));
    const where = `On each device, rows of ${written(chosen.length)} tokens`;
    const caption = element("caption", {}, where);
    const body = element("tbody", {}, ...kinds);
    view.replaceChildren(element("table", { class: "bars" }, caption, body, foot));
  }

  draw();
}

/** A time in words. */
function lasting(seconds) {
  if (seconds < 2 * DAY) return `${written(seconds / 3600)} hours`;
  const days = seconds / DAY;
  return days < 730 ? `${written(days)} days` : `${written(days / 365)} years`;
}
