// node peers.mjs HOLDFAST - holdfast and its peers on one model, alternated, and the table of it (see README.md).
//
// From the environment: MODEL, THREADS, REPEAT, P and N (tests: tokens of prefill and of decode, "512,2048"),
// LLAMA_BENCH (commands, ';' between them).  The table goes to stdout, each sample to stderr.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import { Failure, compare, fromAddon, fromHoldfast, fromLlamaBench, markdown } from "./table.mjs";

const here = import.meta.dirname;

function numbers(name, fallback) {
  const text = process.env[name] || fallback;
  if (!/^\d{1,6}(,\d{1,6})*$/.test(text)) throw new Failure(`${name} takes numbers, as in ${fallback}: ${text}`);
  return text.split(",").map(Number);
}

// stdout of a command; the last line it says is the reason when it fails
function output(file, args) {
  try {
    return execFileSync(file, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], maxBuffer: 1 << 26 });
  } catch (e) {
    const said = String(e.stderr ?? "").trim().split("\n").at(-1);
    throw new Failure(`${[file, ...args].join(" ")}: ${said || e.message}`);
  }
}

// Ticks of CPU time since boot: of the whole machine, what was not idle (the hypervisor's share of it too), and of this
// process with the children it has waited for.
function ticks() {
  const [user, nice, system, idle, iowait, irq, softirq, steal] = fs
    .readFileSync("/proc/stat", "utf8")
    .match(/^cpu +(.*)/)[1]
    .split(" ")
    .map(Number);
  const busy = user + nice + system + irq + softirq + steal;
  const self = fs.readFileSync("/proc/self/stat", "utf8").split(") ")[1].split(" ").slice(11, 15).map(Number);
  return { busy, all: busy + idle + iowait, own: self.reduce((a, b) => a + b) };
}

// An engine has a name, about (what was measured), command, and run(kind, n): its variants in one test, from table.mjs.

function holdfast(binary, model, threads) {
  const flags = (kind, n) => ["-p", kind === "pp" ? n : 0, "-n", kind === "tg" ? n : 0, "-r", 2].map(String);
  const engine = {
    name: "holdfast",
    command: `${binary} bench -m MODEL -t ${threads} -r 2`,
    run(kind, n) {
      const args = ["bench", "-m", model, "-t", String(threads), "-q", "-o", "json", ...flags(kind, n)];
      const { variants, about } = fromHoldfast(output(binary, args));
      engine.about = about;
      return variants;
    },
  };
  return engine;
}

function llamaAddon(model, threads) {
  const script = path.join(here, "llama.mjs");
  const is = JSON.parse(output(process.execPath, [script]));
  return {
    name: `llama.cpp ${is.version}`,
    about: `prebuilt in ${is.package}, ${is.cpu}, f16 KV, 512 rows a forward; ${is.system}`,
    command: `node bench/peers/llama.mjs MODEL ${threads}`,
    run: (kind, n) => fromAddon(output(process.execPath, [script, model, threads, kind, n].map(String)), n).variants,
  };
}

function llamaBench(command, model, threads) {
  const [binary, ...own] = command.split(/\s+/);
  const flash = own.some((a) => a === "-fa" || a === "--flash-attn") ? [] : ["-fa", "0,1"];
  const engine = {
    name: ["llama-bench", ...own].join(" "),
    command: [command, "-m MODEL -t", threads, "-r 1", ...flash].join(" "),
    run(kind, n) {
      const size = ["-p", kind === "pp" ? n : 0, "-n", kind === "tg" ? n : 0].map(String);
      const args = [...own, "-m", model, "-t", String(threads), "-r", "1", "-o", "json", ...flash, ...size];
      const { variants, about } = fromLlamaBench(output(binary, args));
      engine.about = about;
      return variants;
    },
  };
  return engine;
}

function main() {
  const model = process.env.MODEL;
  if (!fs.existsSync(model)) throw new Failure(`there is no file ${model}`);
  const threads = numbers("THREADS", String(os.availableParallelism()))[0];
  const repeat = numbers("REPEAT", "5")[0];
  if (!threads || !repeat) throw new Failure("THREADS and REPEAT are at least 1");
  const tests = [
    ...numbers("P", "512,2048").map((n) => ["pp", n]),
    ...numbers("N", "64").map((n) => ["tg", n]),
  ].filter(([, n]) => n > 0);
  if (!tests.length) throw new Failure("P and N are both 0: there is nothing to measure");
  const commands = (process.env.LLAMA_BENCH ?? "").split(";").map((c) => c.trim()).filter(Boolean);
  const engines = [
    holdfast(path.resolve(process.argv[2]), model, threads),
    ...(process.env.PEERS_NPM === "no" ? [] : [llamaAddon(model, threads)]),
    ...commands.map((c, i) => {
      const e = llamaBench(c, model, threads);
      return commands.length > 1 ? Object.assign(e, { name: `${e.name} (${i + 1})` }) : e;
    }),
  ];

  const load = os.loadavg()[0];
  if (load > 0.5) console.error(`peers: the machine is busy (load ${load.toFixed(1)}); ratios count only from an idle one`);
  const before = ticks();
  const samples = [];
  for (let round = 0; round < repeat; round++)
    for (const [kind, n] of tests)
      for (const e of engines)
        for (const { variant, rate } of e.run(kind, n)) {
          samples.push({ round, test: kind + n, engine: e.name, variant, rate });
          const what = [e.name, variant].filter(Boolean).join(", ");
          process.stderr.write(`round ${round + 1}/${repeat}, ${kind}${n}: ${what}: ${rate.toFixed(1)} tok/s\n`);
        }

  const after = ticks();
  const others = (after.busy - before.busy - (after.own - before.own)) / (after.all - before.all);

  const mib = (fs.statSync(model).size / 2 ** 20).toFixed(0);
  const cpu = os.cpus()[0].model.trim();
  console.log(`${path.basename(model)} (${mib} MiB), ${threads} threads, ${repeat} rounds; ${cpu}`);
  console.log(`other work took ${(100 * others).toFixed(0)} % of the CPUs meanwhile`);
  console.log("median (min .. max); a ratio is of samples of one round\n");
  console.log(markdown(compare(samples, "holdfast"), "holdfast"));
  console.log();
  for (const e of engines) console.log(`- ${e.name}: ${e.about}\n  \`${e.command}\``);
}

try {
  main();
} catch (e) {
  if (!(e instanceof Failure)) throw e;
  console.error(`peers: ${e.message}`);
  process.exit(1);
}
