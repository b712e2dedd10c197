// table.mjs - what engines print, as samples; samples, as a table.  Pure: no clock, no process.
//
// A sample is {round, test, engine, variant, rate}: tokens/s of one pass over one test; variant tells apart the settings
// an engine was tried with.

// The last of the passes of `holdfast bench -o json`; what comes before it only warms up.
export function fromHoldfast(json) {
  const r = JSON.parse(json).find((x) => x.n_prompt || x.n_gen);
  return {
    variants: [{ variant: "", rate: ((r.n_prompt || r.n_gen) * 1e9) / r.samples_ns.at(-1) }],
    about: `${r.build_version}, kernels ${r.kernels}, ${r.type_k} KV, ${r.n_ubatch} rows a forward`,
  };
}

// What a user can mend: its message is the only line said.
export class Failure extends Error {}

const flash = (on) => `flash attention ${on ? "on" : "off"}`;

// `llama-bench -o json` of llama.cpp and ik_llama.cpp; it warms up by itself.
export function fromLlamaBench(json) {
  let all;
  try {
    all = JSON.parse(json);
  } catch {
    throw new Failure("a llama-bench that does not print JSON when told -o json");
  }
  const r = all[0];
  return {
    variants: all.map((x) => ({
      variant: flash(Number(x.flash_attn) > 0),
      rate: ((x.n_prompt || x.n_gen) * 1e9) / x.samples_ns.at(-1),
    })),
    commit: r.build_commit,
    about: `build ${r.build_number} (${r.build_commit}), ${r.type_k} KV, ${r.n_ubatch} rows a forward`,
  };
}

// llama.mjs
export function fromAddon(json, n) {
  return {
    variants: JSON.parse(json).map((x) => ({ variant: flash(x.flash_attn), rate: n / x.seconds })),
  };
}

export function spread(values) {
  const v = values.toSorted((a, b) => a - b);
  const half = v.length >> 1;
  return {
    median: v.length % 2 ? v[half] : (v[half - 1] + v[half]) / 2,
    min: v[0],
    max: v.at(-1),
  };
}

const unique = (list) => [...new Set(list)];
const rates = (samples) => samples.map((s) => s.rate);

// One row a test and peer: the subject against the peer's best variant (of highest median, for each test).  The ratio
// is of samples of the same round, which shared what else the machine was doing.
export function compare(samples, subject) {
  const rows = [];
  for (const test of unique(samples.map((s) => s.test))) {
    const here = samples.filter((s) => s.test === test);
    const ours = here.filter((s) => s.engine === subject);
    for (const peer of unique(here.map((s) => s.engine)).filter((e) => e !== subject)) {
      const all = here.filter((s) => s.engine === peer);
      const tried = unique(all.map((s) => s.variant)).map((v) => all.filter((s) => s.variant === v));
      const theirs = tried.reduce((best, v) => (spread(rates(v)).median > spread(rates(best)).median ? v : best));
      const ratios = ours.map((o) => o.rate / theirs.find((t) => t.round === o.round).rate);
      rows.push({
        test,
        peer,
        variant: theirs[0].variant,
        ours: spread(rates(ours)),
        theirs: spread(rates(theirs)),
        ratio: spread(ratios),
      });
    }
  }
  return rows;
}

const show = (s, digits) =>
  `${s.median.toFixed(digits)} (${s.min.toFixed(digits)} .. ${s.max.toFixed(digits)})`;

export function markdown(rows, subject) {
  const cells = [
    ["test", `${subject} tok/s`, "peer", "peer tok/s", `${subject} / peer`],
    ...rows.map((r) => [
      r.test,
      show(r.ours, 1),
      r.variant ? `${r.peer}, ${r.variant}` : r.peer,
      show(r.theirs, 1),
      show(r.ratio, 2),
    ]),
  ];
  const width = cells[0].map((_, i) => Math.max(...cells.map((c) => c[i].length)));
  const line = (c) => `| ${c.map((x, i) => x.padEnd(width[i])).join(" | ")} |`;
  return [line(cells[0]), `|${width.map((w) => "-".repeat(w + 2)).join("|")}|`, ...cells.slice(1).map(line)].join("\n");
}
