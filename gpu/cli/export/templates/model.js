// Runs the model in this folder with WebGPU. Written by `gpu export webgpu`; needs no other code:
//
//   import { loadModel } from "./model.js";
//   const model = await loadModel();
//   const outputs = await model.run({ images: new Float32Array(64) });
//
// model.inputs and model.outputs give the dtype and shape of each by name; arrays are of the class
// in ARRAYS and in row-major order. float16, bfloat16 and fp8 are float32 here, a bool is a byte.
// An input with a range is a plain whole number.

import { checked, openDevice } from "./webgpu.js";

export const ARRAYS = {
  float32: Float32Array, bool: Uint8Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
};

export const sizeOf = (shape) => shape.reduce((size, extent) => size * extent, 1);

export async function loadModel(folder = new URL(".", import.meta.url)) {
  const read = async (name, as) => {
    const response = await fetch(new URL(name, folder));
    if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
    return response[as]();
  };
  const graph = await read("model.json", "json");
  const { device, gpu } = await openDevice(graph);
  const files = [...new Set(graph.kernels.map((kernel) => kernel.file))];
  const [weights, ...texts] = await Promise.all(
    [read("weights.safetensors", "arrayBuffer"), ...files.map((file) => read(file, "text"))]);
  const sources = Object.fromEntries(files.map((file, i) => [file, texts[i]]));
  const model = new Model(graph, device, gpu);
  await checked(device, () => model.prepare(sources, readSafetensors(weights)));
  return model;
}

// The tensors of a file in the safetensors format, by name: {dtype, shape, bytes}.
export function readSafetensors(file) {
  const start = 8 + Number(new DataView(file).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, start - 8)));
  delete header.__metadata__;
  return Object.fromEntries(Object.entries(header).map(([name, about]) => {
    const [first, end] = about.data_offsets;
    return [name, { ...about, bytes: new Uint8Array(file, start + first, end - first) }];
  }));
}

class Model {
  #graph; #device; #buffers; #uniforms; #results; #steps; #seed;
  #lost; #runs = 0n; #turn = Promise.resolve();

  constructor(graph, device, gpu) {
    Object.assign(this, { gpu, inputs: graph.inputs, outputs: graph.outputs });
    [this.#graph, this.#device] = [graph, device];
    device.lost.then(({ message }) => { this.#lost = message || "no reason given"; });
  }

  // Makes everything that runs have in common: buffers, pipelines and bind groups.
  async prepare(sources, weights) {
    const [graph, device] = [this.#graph, this.#device];
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
    const newBuffer = (size, usage) => device.createBuffer({ size: Math.max(size, 4), usage });
    this.#buffers = graph.slots.map((size) => newBuffer(size, STORAGE | COPY_SRC | COPY_DST));
    const kept = Object.values(graph.outputs).filter(({ slot }) => slot >= 0);
    const size = kept.reduce((sum, { slot }) => sum + graph.slots[slot], 0);
    this.#results = newBuffer(size, COPY_DST | MAP_READ);
    for (const [name, slot] of Object.entries(graph.weights)) {
      this.#write(slot, weights[name].bytes);
    }
    this.#seed = graph.random?.seed ?? crypto.getRandomValues(new BigUint64Array(1))[0];

    const spilled = newBuffer(Math.max(0, ...graph.kernels.map((k) => k.spilled)), STORAGE);
    const modules = {};
    for (const [file, code] of Object.entries(sources)) {
      modules[file] = device.createShaderModule({ label: file, code });
    }
    const kernels = await Promise.all(graph.kernels.map(async (kernel) => {
      const types = kernel.written.map((write) => (write ? "storage" : "read-only-storage"));
      if (kernel.spilled) types.push("storage");
      if (kernel.values) types.push("uniform");
      const layout = device.createBindGroupLayout({ entries: types.map((type, binding) => (
        { binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } })) });
      const pipeline = await device.createComputePipelineAsync({
        layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module: modules[kernel.file], entryPoint: kernel.entry },
      });
      return { ...kernel, layout, pipeline };
    }));
    this.#uniforms = new Map(); // each combination of values once
    for (const [, , values] of graph.steps.filter(([, , values]) => values.length)) {
      const buffer = newBuffer(16 * Math.ceil(values.length / 4), UNIFORM | COPY_DST);
      this.#uniforms.set(values.join(), { values, buffer });
    }
    this.#steps = graph.steps.map(([number, slots, values]) => {
      const { layout, pipeline, groups, spilled: spills } = kernels[number];
      const bound = slots.map((slot) => this.#buffers[slot]);
      if (spills) bound.push(spilled);
      if (values.length) bound.push(this.#uniforms.get(values.join()).buffer);
      const entries = bound.map((buffer, binding) => ({ binding, resource: { buffer } }));
      return { pipeline, groups, bindings: device.createBindGroup({ layout, entries }) };
    });
  }

  // Named typed arrays to named typed arrays. Runs that are asked for at once take turns.
  run(inputs = {}) {
    const run = this.#turn.then(() => this.#run(inputs));
    this.#turn = run.catch(() => {});
    return run;
  }

  // Gives the GPU's memory back.
  close() {
    this.#device.destroy();
  }

  async #run(inputs) {
    this.#check(inputs);
    try {
      await checked(this.#device, () => this.#submit(inputs));
      await this.#results.mapAsync(GPUMapMode.READ);
    } catch (error) {
      throw this.#lost ? new Error(`The GPU was lost: ${this.#lost}. Reload the page.`) : error;
    }
    const mapped = this.#results.getMappedRange();
    const outputs = {};
    let place = 0;
    for (const [name, { dtype, shape, slot }] of Object.entries(this.outputs)) {
      const bytes = sizeOf(shape) * ARRAYS[dtype].BYTES_PER_ELEMENT;
      outputs[name] = new ARRAYS[dtype](mapped.slice(place, place + bytes));
      place += slot < 0 ? 0 : this.#graph.slots[slot];
    }
    this.#results.unmap();
    return outputs;
  }

  #check(inputs) {
    for (const name of Object.keys(inputs).filter((name) => !Object.hasOwn(this.inputs, name))) {
      throw new TypeError(`There is no input ${name}: there is ${Object.keys(this.inputs)}.`);
    }
    for (const [name, { dtype, shape, range }] of Object.entries(this.inputs)) {
      const given = inputs[name], kind = ARRAYS[dtype], size = sizeOf(shape);
      if (range) {
        const [low, high] = range;
        if (Number.isInteger(given) && low <= given && given <= high) continue;
        throw new TypeError(
          `Input ${name} is a whole number from ${low} to ${high}, got ${given}.`);
      }
      if (given instanceof kind && given.length === size) continue;
      const isList = given?.length !== undefined;
      const got = isList ? `${given.constructor.name}(${given.length})` : given;
      throw new TypeError(
        `Input ${name} is ${dtype}[${shape}]: pass ${kind.name}(${size}), got ${got}.`);
    }
  }

  #submit(inputs) {
    const [{ slots, before, after, random }, encoder] =
      [this.#graph, this.#device.createCommandEncoder()];
    for (const [name, { slot }] of Object.entries(this.inputs)) {
      if (slot >= 0) this.#write(slot, inputs[name]);
    }
    for (const { values, buffer } of this.#uniforms.values()) {
      const numbers = values.map((value) => inputs[value] ?? value);
      this.#device.queue.writeBuffer(buffer, 0, new Int32Array(numbers));
    }
    for (const [slot, offset] of random?.states ?? []) {
      const word = BigInt(random.first) + this.#runs * BigInt(random.words) + BigInt(offset);
      this.#write(slot, new BigUint64Array([BigInt(this.#seed), BigInt.asUintN(64, word)]));
    }
    this.#runs += 1n;
    const copy = ([from, to, bytes]) => {
      encoder.copyBufferToBuffer(this.#buffers[from], 0, this.#buffers[to], 0, bytes);
    };
    before.forEach(copy);
    const pass = encoder.beginComputePass();
    for (const { pipeline, bindings, groups } of this.#steps) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, bindings);
      pass.dispatchWorkgroups(...groups);
    }
    pass.end();
    after.forEach(copy);
    let place = 0;
    for (const { slot } of Object.values(this.outputs).filter(({ slot }) => slot >= 0)) {
      encoder.copyBufferToBuffer(this.#buffers[slot], 0, this.#results, place, slots[slot]);
      place += slots[slot];
    }
    this.#device.queue.submit([encoder.finish()]);
  }

  // WebGPU writes whole words only.
  #write(slot, array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    const whole = bytes.length % 4 ? new Uint8Array(this.#graph.slots[slot]) : bytes;
    if (whole !== bytes) whole.set(bytes);
    this.#device.queue.writeBuffer(this.#buffers[slot], 0, whole);
  }
}
