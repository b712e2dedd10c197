// node table_test.mjs - the table is right for samples whose table is known.
import assert from "node:assert/strict";
import { test } from "node:test";
import { compare, fromAddon, fromHoldfast, fromLlamaBench, markdown, spread } from "./table.mjs";

const sample = (round, engine, rate, variant = "", name = "pp8") => ({ round, test: name, engine, variant, rate });

test("the median of an even number of samples lies between the middle two", () => {
  assert.deepEqual(spread([4, 1, 10, 2]), { median: 3, min: 1, max: 10 });
  assert.deepEqual(spread([7]), { median: 7, min: 7, max: 7 });
});

test("the ratio is the median of the rounds' ratios, not the ratio of medians", () => {
  // the machine slows down: 2, 2 and 3 times as fast in each round, while the medians are 40 and 20
  const rows = compare(
    [
      ...[sample(0, "a", 200), sample(0, "b", 100)],
      ...[sample(1, "a", 40), sample(1, "b", 20)],
      ...[sample(2, "a", 30), sample(2, "b", 10)],
    ],
    "a",
  );
  assert.equal(rows.length, 1);
  assert.deepEqual(rows[0].ratio, { median: 2, min: 2, max: 3 });
  assert.deepEqual(rows[0].ours, { median: 40, min: 30, max: 200 });
});

test("a peer is shown at its best setting, test by test", () => {
  const samples = [];
  for (const round of [0, 1, 2]) {
    samples.push(sample(round, "a", 10, "", "pp8"), sample(round, "a", 10, "", "tg8"));
    samples.push(sample(round, "b", 4, "off", "pp8"), sample(round, "b", 5, "on", "pp8"));
    samples.push(sample(round, "b", 8, "off", "tg8"), sample(round, "b", round ? 2 : 100, "on", "tg8"));
  }
  const rows = compare(samples, "a");
  assert.deepEqual(
    rows.map((r) => [r.test, r.variant, r.ratio.median]),
    [
      ["pp8", "on", 2],
      ["tg8", "off", 1.25],
    ],
  );
});

test("every peer has a row of its own", () => {
  const rows = compare([sample(0, "a", 6), sample(0, "b", 3), sample(0, "c", 2)], "a");
  assert.deepEqual(
    rows.map((r) => [r.peer, r.ratio.median]),
    [
      ["b", 2],
      ["c", 3],
    ],
  );
});

test("what engines print is read: the last pass counts", () => {
  const ours = fromHoldfast(
    JSON.stringify([
      { build_version: "1", kernels: "k", type_k: "f16", n_ubatch: 512, n_prompt: 8, n_gen: 0, samples_ns: [9e9, 4e9] },
      { n_prompt: 0, n_gen: 0, samples_ns: [1] }, // of the snapshot
    ]),
  );
  assert.equal(ours.variants[0].rate, 2);
  const one = { build_commit: "abc", build_number: 7, type_k: "f16", n_ubatch: 512, n_prompt: 0, n_gen: 8 };
  const bench = fromLlamaBench(
    JSON.stringify([
      { ...one, flash_attn: false, samples_ns: [2e9] },
      { ...one, flash_attn: 1, samples_ns: [4e9] },
    ]),
  );
  assert.deepEqual(bench.variants, [
    { variant: "flash attention off", rate: 4 },
    { variant: "flash attention on", rate: 2 },
  ]);
  assert.equal(bench.commit, "abc");
  assert.deepEqual(fromAddon('[{"test":"pp8","flash_attn":true,"seconds":4}]', 8).variants, [
    { variant: "flash attention on", rate: 2 },
  ]);
});

test("the table is Markdown", () => {
  const rows = compare([sample(0, "a", 6), sample(0, "b", 3, "on")], "a");
  assert.equal(
    markdown(rows, "a"),
    [
      "| test | a tok/s          | peer  | peer tok/s       | a / peer            |",
      "|------|------------------|-------|------------------|---------------------|",
      "| pp8  | 6.0 (6.0 .. 6.0) | b, on | 3.0 (3.0 .. 3.0) | 2.00 (2.00 .. 2.00) |",
    ].join("\n"),
  );
});
