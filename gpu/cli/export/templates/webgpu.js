// The GPU of this browser, and what it finds wrong.

// The device, with no more than what the model needs, or an Error that says why there is none.
export async function openDevice({ features, limits }) {
  if (!navigator.gpu) {
    throw new Error(globalThis.isSecureContext
      ? "This browser has no WebGPU. Use a recent Chrome, Edge, Firefox or Safari."
      : "WebGPU works on https:// and http://localhost only; this page came another way.");
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("WebGPU finds no GPU here that it can use (see chrome://gpu).");
  for (const name of features.filter((name) => !adapter.features.has(name))) {
    throw new Error(`This GPU lacks ${name}, which the kernels use: export without --f16.`);
  }
  for (const [name, least] of Object.entries(limits)) {
    if (adapter.limits[name] < least) {
      throw new Error(
        `The model needs a ${name} of ${least}, this GPU has ${adapter.limits[name]}.`);
    }
  }
  const device = await adapter.requestDevice(
    { requiredFeatures: features, requiredLimits: limits });
  const { description, vendor, architecture } = adapter.info ?? {};
  return { device, gpu: description || [vendor, architecture].filter(Boolean).join(" ") };
}

// What `action` gives; throws what WebGPU finds wrong with its calls.
export async function checked(device, action) {
  const kinds = ["internal", "out-of-memory", "validation"];
  kinds.forEach((kind) => device.pushErrorScope(kind));
  try {
    return await action();
  } finally {
    const errors = await Promise.all(kinds.map(() => device.popErrorScope()));
    const error = errors.find(Boolean);
    if (error) throw new Error(`WebGPU: ${error.message}`);
  }
}
