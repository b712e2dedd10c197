// llama.mjs MODEL THREADS pp|tg N - llama.cpp's speed in one test, in the manner of llama-bench.
//
// Prints [{test, flash_attn, seconds}], one entry without and one with flash attention.  Each is the second pass of
// two over N random tokens, from an empty context: pp in batches of 512 with the logits of each batch's last token, tg
// one token at a time with its logits and nothing sampled.  `llama.mjs` alone prints what the binary is.
//
// The binary is the one prebuilt for node-llama-cpp.  Its addon is called directly: the package's own queue would add to
// each token the time of some JavaScript and of a sampler, which llama-bench does not count either.
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { createRequire } from "node:module";
import { performance } from "node:perf_hooks";

const batch = 512;

function load() {
  const name = `@node-llama-cpp/linux-${process.arch}`;
  const dir = path.join(import.meta.dirname, "node_modules", name);
  const bins = path.join(dir, "bins", `linux-${process.arch}`);
  const addon = createRequire(import.meta.url)(path.join(bins, "llama-addon.node"));
  const errorsOnly = 2;
  addon.setLogger((level, text) => process.stderr.write(text));
  addon.setLoggerLogLevel(errorsOnly);
  addon.loadBackends(bins); // of the builds for this architecture, the best one that runs here
  const read = (...p) => JSON.parse(fs.readFileSync(path.join(...p), "utf8"));
  return { addon, name, version: read(dir, "package.json").version, build: read(bins, "_nlcBuildMetadata.json") };
}

function about({ addon, name, version, build }) {
  const maps = fs.readFileSync("/proc/self/maps", "utf8");
  return {
    version: build.buildOptions.llamaCpp.release,
    package: `${name} ${version}`,
    cpu: [...new Set(maps.match(/libggml-cpu[^/\s]*\.so/g) ?? [])].join(", "),
    system: addon.systemInfo().trim(),
  };
}

async function pass(context, tokens, step) {
  context.disposeSequence(0);
  const start = performance.now();
  for (let i = 0; i < tokens.length; i += step) {
    const part = tokens.subarray(i, i + step);
    context.initBatch(part.length);
    context.addToBatch(0, i, part, Uint32Array.of(part.length - 1));
    await context.decodeBatch();
  }
  return (performance.now() - start) / 1e3;
}

async function measure(addon, model, flashAttention, threads, tokens, step) {
  const contextSize = Math.ceil((tokens.length + 1) / 256) * 256;
  const context = new addon.AddonContext(model, { contextSize, batchSize: batch, sequences: 1, threads, flashAttention });
  if (!(await context.init())) throw new Error(`no context of ${contextSize} tokens`);
  await pass(context, tokens, step);
  const seconds = await pass(context, tokens, step);
  await context.dispose();
  return seconds;
}

async function main([file, threads, kind, n]) {
  const llama = load();
  if (!file) return about(llama);
  const { addon } = llama;
  await addon.init();
  const model = new addon.AddonModel(path.resolve(file), { addonExports: addon, gpuLayers: 0 });
  if (!(await model.init())) throw new Error(`llama.cpp cannot load ${file}`);
  const tokens = Uint32Array.from({ length: Number(n) }, () => Math.floor(Math.random() * 1000)); // real vocabularies have more
  const out = [];
  for (const fa of [false, true]) {
    const seconds = await measure(addon, model, fa, Number(threads), tokens, kind === "tg" ? 1 : batch);
    out.push({ test: kind + n, flash_attn: fa, seconds });
  }
  await model.dispose();
  return out;
}

try {
  console.log(JSON.stringify(await main(process.argv.slice(2))));
  process.exit(0); // the addon's threads would keep the process alive
} catch (e) {
  console.error(e.message);
  process.exit(1);
}
